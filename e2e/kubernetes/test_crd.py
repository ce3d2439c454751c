"""The custom resource definition on a real API server: accepted, explained, and strict."""

import copy
import json
import pathlib

import pytest
import yaml

MANIFESTS = pathlib.Path(__file__).parents[1] / "manifests"
CASES = yaml.safe_load((MANIFESTS / "invalid.yaml").read_text())
MINIMAL = {
    "apiVersion": "kvasir.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat", "namespace": "default"},
    "spec": {"model": {"source": {"pvc": {"claimName": "models"}}}},
}


def put(manifest, path, value):
    *parents, last = path.split(".")
    for key in parents:
        manifest = manifest.setdefault(key, {})
    manifest[last] = value


def changed(case):
    manifest = copy.deepcopy(MINIMAL)
    for path, value in case.get("set", {}).items():
        put(manifest, path, value)
    for path in case.get("unset", []):
        *parents, last = path.split(".")
        inner = manifest
        for key in parents:
            inner = inner[key]
        del inner[last]
    return manifest


def create(cluster, manifest, *options):
    return cluster.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-o", "json", *options, "-f", "-",
        stdin=json.dumps(manifest), check=False,
    )


def test_definition_is_structural_and_cheap_enough(api, definition):
    conditions = api.get("CustomResourceDefinition", None, "inferenceservices.kvasir.dev")["status"]["conditions"]
    by_type = {condition["type"]: condition for condition in conditions}
    assert by_type["Established"]["status"] == "True"
    assert by_type.get("NonStructuralSchema", {"status": "False"})["status"] == "False"


def test_51_both_ways_to_apply_take_the_definition(cluster, definition):
    """kserve#3487: too large for the annotation that plain `kubectl apply` keeps."""
    assert definition.stat().st_size < 200_000
    cluster.kubectl("apply", "--dry-run=server", "--server-side", "--force-conflicts", "-f", str(definition))
    cluster.kubectl("apply", "--dry-run=server", "-f", str(definition))


def test_a_minimal_manifest_is_accepted_and_gets_its_defaults(cluster, definition):
    done = create(cluster, MINIMAL)
    assert done.returncode == 0, done.stderr
    spec = json.loads(done.stdout)["spec"]
    assert spec["replicas"] == 1
    assert spec["topology"] == {"tensor": 1, "pipeline": 1, "data": 1, "devicesPerPod": 1, "expertParallel": False}
    assert spec["engine"]["ports"]["grpc"] == 50051
    assert spec["gateway"]["auth"]["mode"] == "APIKey"
    assert spec["network"]["dns"]["ports"] == [53]
    assert spec["rollout"]["maxSurge"] == 1


@pytest.mark.parametrize("case", [c for c in CASES if c["by"] == "api"], ids=lambda case: case["name"])
def test_api_server_refuses_and_names_the_field(cluster, definition, case):
    done = create(cluster, changed(case))
    assert done.returncode != 0, done.stdout
    assert case["field"] in done.stderr, done.stderr


@pytest.mark.parametrize("case", [c for c in CASES if c["by"] == "operator"], ids=lambda case: case["name"])
def test_api_server_leaves_to_the_operator_what_only_it_can_judge(cluster, definition, case):
    done = create(cluster, changed(case))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path, value, field", [
    ("spec.model.name", "other", "spec.model.name"),
    ("spec.tenant", "other", "spec.tenant"),
    ("spec.roles", [{"name": "Prefill"}, {"name": "Decode"}], "spec.roles"),
])
def test_what_clients_rely_on_cannot_be_changed(cluster, definition, path, value, field):
    manifest = copy.deepcopy(MINIMAL)
    manifest["metadata"]["name"] = "fixed"
    put(manifest, "spec.model.name", "served")
    put(manifest, "spec.tenant", "team")
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    put(manifest, path, value)
    done = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest), check=False)
    assert done.returncode != 0
    assert field in done.stderr, done.stderr


def test_explain_describes_every_field_of_the_spec(cluster, definition):
    text = cluster.kubectl("explain", "inferenceservices.kvasir.dev.spec", "--recursive").stdout
    assert "devicesPerPod" in text and "apiKeySecrets" in text
    topology = cluster.kubectl("explain", "kis.spec.topology").stdout
    assert "Ranks that share each layer." in topology


def test_short_name_category_columns_field_selector_and_scale_work(cluster, definition):
    manifest = copy.deepcopy(MINIMAL)
    manifest["metadata"]["name"] = "scaled"
    put(manifest, "spec.model.name", "served-scaled")
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    header = cluster.kubectl("get", "kis", "-o", "wide").stdout.splitlines()[0].split()
    assert header == "NAME READY MODEL GROUPS READY-GROUPS UPDATED KV REASON AGE TP PP DP REVISION URL IMAGE".split()
    assert "scaled" in cluster.kubectl("get", "kvasir").stdout
    selected = cluster.kubectl("get", "kis", "--field-selector", "spec.model.name=served-scaled", "-o", "name").stdout.split()
    assert selected == ["inferenceservice.kvasir.dev/scaled"]
    cluster.kubectl("scale", "kis/scaled", "--replicas=3")
    assert cluster.kubectl("get", "kis/scaled", "-o", "jsonpath={.spec.replicas}").stdout == "3"
