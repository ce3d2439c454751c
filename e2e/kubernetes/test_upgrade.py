"""Objects as earlier versions made them: this operator takes them over and restarts no pod.

The fixtures are what the children program of each version printed (operator/core/examples/children.rs), with its uid replaced.
KVASIR_FREEZE=NAME writes one for this version; those that are there are never changed.
"""

import copy
import json
import os
import pathlib

import pytest

import operator_process
from conftest import ROOT, eventually
from operator_process import Operator
from test_children import children

FROZEN = ROOT / "e2e/manifests/upgrade"
UID = "00000000-0000-0000-0000-000000000000"
SPEC = {
    "replicas": 2,
    "model": {"source": {"pvc": {"claimName": "models"}}},
    "gateway": {"replicas": 1, "auth": {"apiKeySecrets": [{"name": "keys"}]}},
}


def service(namespace):
    return {"apiVersion": "kvasir.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "chat", "namespace": namespace}, "spec": copy.deepcopy(SPEC)}


def store(cluster, namespace):
    """The service as the API server stores it."""
    cluster.apply(service(namespace))
    return cluster.get("-n", namespace, "kis/chat")


def renamed(text, uid, namespace):
    made = json.loads(text.replace(UID, uid))
    for item in made["items"]:
        item["metadata"]["namespace"] = namespace
        for subject in item.get("subjects", []):
            subject["namespace"] = namespace
    return made


def test_a_version_can_be_frozen(cluster, definition, namespace):
    stored = store(cluster, namespace)
    text = json.dumps(children(stored), indent=1, sort_keys=True).replace(stored["metadata"]["uid"], UID).replace(namespace, "default")
    assert {item["kind"] for item in json.loads(text)["items"]} >= {"StatefulSet", "Deployment", "NetworkPolicy", "ControllerRevision"}
    if name := os.environ.get("KVASIR_FREEZE"):
        path = FROZEN / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        assert not path.exists(), "what was frozen stays as it is"
        path.write_text(text + "\n")


@pytest.mark.parametrize("path", sorted(FROZEN.glob("*.json")), ids=lambda path: path.stem)
def test_objects_of_an_earlier_version_are_taken_over_without_restarting_a_pod(cluster, namespace, path, tmp_path):
    operator_process.install(cluster, "--set", "operator.alphaTopology=true")
    stored = store(cluster, namespace)
    cluster.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models", "namespace": namespace},
         "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}},
        *({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}} for name in ("keys",)),
    )
    made = renamed(path.read_text(), stored["metadata"]["uid"], namespace)
    # As the operator writes them: what is new is created by its field manager.
    cluster.kubectl("create", "--field-manager=kvasir-operator", "-f", "-", stdin=json.dumps(made))
    engines = "kvasir.dev/service=chat,kvasir.dev/component=engine"
    pods = eventually(lambda: (found := cluster.get("-n", namespace, "pods", "-l", engines)["items"]) and len(found) == 2 and found)
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
    operator = Operator(cluster, pathlib.Path(tmp_path)).wait_until_leading()
    try:
        def ready():
            conditions = cluster.get("-n", namespace, "kis/chat").get("status", {}).get("conditions", [])
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        eventually(ready, 120)
        after = cluster.get("-n", namespace, "pods", "-l", engines)["items"]
        assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in after} == before
        assert all(status["restartCount"] == 0 for pod in after for status in pod["status"]["containerStatuses"])
    finally:
        assert operator.stop() == 0
