"""Objects as earlier versions made them: this operator takes them over and restarts no pod.

The fixtures are what the children program of each version printed (operator/core/examples/children.rs), with its uid replaced.
KVASIR_FREEZE=NAME writes one for this version; those that are there are never changed:

    KVASIR_FREEZE=0.1.0 python -m pytest -k frozen e2e/kubernetes
"""

import copy
import json
import os

import pytest
from running import ROOT, wait_until

from test_children import children

FROZEN = ROOT / "e2e/manifests/upgrade"
UID = "00000000-0000-0000-0000-000000000000"
SPEC = {
    "replicas": 2,
    "gateway": {"replicas": 1, "auth": {"apiKeySecrets": [{"name": "keys"}]}},
}


def renamed(text, uid, namespace):
    made = json.loads(text.replace(UID, uid))
    for item in made["items"]:
        item["metadata"]["namespace"] = namespace
        for subject in item.get("subjects", []):
            subject["namespace"] = namespace
    return made


def test_a_version_can_be_frozen(definition, space):
    stored = space.create(**copy.deepcopy(SPEC))
    text = json.dumps(children(stored), indent=1, sort_keys=True).replace(stored["metadata"]["uid"], UID).replace(space.name, "default")
    assert {item["kind"] for item in json.loads(text)["items"]} >= {"StatefulSet", "Deployment", "NetworkPolicy", "ControllerRevision"}
    if name := os.environ.get("KVASIR_FREEZE"):
        path = FROZEN / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        assert not path.exists(), "what was frozen stays as it is"
        path.write_text(text + "\n")


@pytest.mark.parametrize("path", sorted(FROZEN.glob("*.json")), ids=lambda path: path.stem)
def test_objects_of_an_earlier_version_are_taken_over_without_restarting_a_pod(cluster, space, operators, path):
    stored = space.create(**copy.deepcopy(SPEC))
    made = renamed(path.read_text(), stored["metadata"]["uid"], space.name)
    # As the operator writes them: what is new is created by its field manager.
    cluster.kubectl("create", "--field-manager=kvasir-operator", "-f", "-", stdin=json.dumps(made))
    wait_until(lambda: len(space.pods()) == 2, "the pods")
    before = space.uids()
    operators().wait_for("working")
    space.ready()
    assert space.uids() == before
    assert all(status["restartCount"] == 0 for pod in space.pods() for status in pod["status"]["containerStatuses"])
    assert space.status()["updatedReplicas"] == 2


def test_revisions_that_nobody_could_change_are_written_anew_and_an_orphaning_deletion_ends(api, cluster, space, operators):
    """The API server's encoder sorts keys and escapes some characters. An object that is immutable and was written otherwise can't be changed by
    anybody, not even by the garbage collector, which would try for ever to take its owner from it."""
    odd = {**copy.deepcopy(SPEC), "engine": {"env": [{"name": "ODD", "value": "<a> & b"}]}}
    stored = space.create(**odd)
    made = children(stored)
    [revision] = [item for item in made["items"] if item["kind"] == "ControllerRevision"]
    made["items"].remove(revision)
    cluster.kubectl("create", "--field-manager=kvasir-operator", "-f", "-", stdin=json.dumps(made))
    # As earlier versions wrote it; kubectl would sort and escape.
    revision["data"] = dict(sorted(json.loads(revision["data"]["text"]).items(), reverse=True))
    revision["metadata"]["annotations"]["kvasir.dev/desired-hash"] = "earlier"
    api.create("ControllerRevision", space.name, revision)
    name = revision["metadata"]["name"]
    wait_until(lambda: len(space.pods()) == 2, "the pods")
    before = space.uids()
    operators().wait_for("working")
    wait_until(lambda: "text" in ((space.get("ControllerRevision", name) or {}).get("data") or {}), "its data are kept as a text")
    space.ready()
    assert space.uids() == before
    cluster.kubectl("-n", space.name, "delete", "kis", "chat", "--cascade=orphan", "--timeout=60s")
    wait_until(lambda: not space.service(), "the service goes")
    assert space.groups() and not space.children()
    # What is left is in the way of another service of that name, and is named.
    space.create(**odd)
    space.wait("Accepted", "False", "NameCollision")
    named = ("ConfigMap chat-gateway-config", "Service chat-engines", "NetworkPolicy chat-deny", "Deployment chat-gateway", "Secret chat-authority")
    wait_until(lambda: all(name in space.message("Accepted") for name in named), lambda: space.message("Accepted"))
    assert space.condition("GatewayReady") == ("False", "DeploymentUnavailable"), "the earlier service's pods are ready, and aren't ours"
    assert "chat-g0-0 (of StatefulSet chat-g0)" in space.message("Degraded")
    assert space.uids() == before
