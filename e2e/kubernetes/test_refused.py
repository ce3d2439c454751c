"""Manifests that only the operator can judge: each is refused with the field's path, and nothing is made of it."""

import re

import pytest
from running import Operator, Space, wait_until

from test_crd import CASES, changed

REFUSED = [case for case in CASES if case["by"] == "operator"]


def test_there_are_sixty_ways_to_be_refused():
    assert len(CASES) >= 60 and len({case["name"] for case in CASES}) == len(CASES)


@pytest.fixture(scope="module")
def refusing(cluster, chart, api, tmp_path_factory):
    """One operator without flags, and all manifests at once."""
    space = Space.make(api)
    operator = Operator(cluster, tmp_path_factory.mktemp("operator"), namespace=space.name).wait_for("working")
    try:
        for case in REFUSED:
            manifest = changed(case)
            api.create("InferenceService", space.name, {"metadata": {**manifest["metadata"], "name": name(case), "namespace": space.name}, "spec": manifest["spec"]})
        yield space
    finally:
        # One that went on would keep the lease from all that follow.
        assert operator.stop() == 0
        api.delete("Namespace", None, space.name)


def name(case):
    return re.sub("[^a-z0-9-]", "-", case["name"].lower())[:38].strip("-")


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_what_the_api_server_cannot_judge_is_refused_with_the_fields_path(refusing, case):
    service = name(case)
    wait_until(lambda: refusing.condition("Accepted", service)[0] == "False", lambda: refusing.status(service))
    assert case["field"] in refusing.message("Accepted", service)
    assert refusing.condition("Ready", service) == ("False", "NotAccepted")
    assert not refusing.children(service)
