"""Last of all: the chart's rights were enough for every operator that ran, and none of them was for nothing."""

import pytest
from running import ACCOUNT, NAME, when


@pytest.mark.last
def test_nothing_was_forbidden(cluster):
    mine = [event for event in cluster.audit(ACCOUNT) if event["user"]["username"] == ACCOUNT]
    assert len(mine) > 100
    # What races with the end of its namespace is refused, whoever asks, and so is what meets an API server that has only just started:
    # that isn't about rights.
    refused = [
        (event["verb"], event["requestURI"]) for event in mine
        if event.get("responseStatus", {}).get("code") == 403 and "being terminated" not in event["responseStatus"].get("message", "")
        and not any(begin <= when(event) <= end for begin, end in cluster.restarts)
    ]
    assert refused == []


@pytest.mark.last
def test_no_operator_panicked(tmp_path_factory):
    logs = list(tmp_path_factory.getbasetemp().rglob("operator-*.log"))
    assert logs
    assert [log for log in logs if "panicked at" in log.read_text()] == []


# Rights that no request shows.
UNSEEN = {
    ("kvasir.dev", "inferenceservices/finalizers", "update"): "asked for where the admission plugin OwnerReferencesPermissionEnforcement runs",
    ("authentication.k8s.io", "tokenreviews", "create"): "the operator gives it to gateways, and nobody gives rights that they lack",
}


def given(api):
    """By role of the chart: group, resource and verb of each right. Those for people are for whatever kubectl does."""
    roles = [role for kind in ("ClusterRole", "Role") for role in api.list(kind, labels="app.kubernetes.io/instance=kvasir")]
    for role in roles:
        if not any("/aggregate-to-" in label for label in role["metadata"]["labels"]):
            yield role["metadata"]["name"], {
                (group, resource, verb) for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]}


def used(cluster, is_asked_by):
    """What was asked for, and may be: whether it was there or not."""
    for event in cluster.audit():
        code = event.get("responseStatus", {}).get("code", 0)
        if is_asked_by(event["user"]["username"]) and (code < 400 or code in (404, 409)) and "objectRef" in event:
            about = event["objectRef"]
            resource = "/".join(about[key] for key in ("resource", "subresource") if key in about)
            yield about.get("apiGroup", ""), resource, event["verb"]


@pytest.mark.last
def test_every_right_was_used_or_says_why_it_is_there(api, cluster, whole_run):
    operators = set(used(cluster, lambda user: user == ACCOUNT))
    gateways = set(used(cluster, lambda user: user.startswith("system:serviceaccount:test-")))
    rights = dict(given(api))
    reviewers = rights.pop(f"{NAME}-token-reviewers")
    assert sorted(reviewers - gateways) == []
    assert sorted(set().union(*rights.values()) - operators) == sorted(UNSEEN)
