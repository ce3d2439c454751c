"""The objects that the operator makes, on a real API server and its controllers."""

import copy
import json
import os
import pathlib
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SERVICES = {
    "plain": {},
    "full": {
        "replicas": 2,
        "topology": {"tensor": 2, "pipeline": 2, "devicesPerPod": 2, "placement": {"packTopologyKey": "kubernetes.io/hostname", "exclusive": True}},
        "engine": {
            "maxModelLen": 4096,
            "kv": {"memory": "1Gi"},
            "env": [{"name": "A", "value": "1"}, {"name": "B", "secretKeyRef": {"name": "s", "key": "k"}}],
            "envFrom": [{"configMapRef": {"name": "c"}}],
            "resources": {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        },
        "scheduling": {
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}],
            "topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        },
        "gateway": {
            "auth": {"apiKeySecrets": [{"name": "keys"}]},
            "tenants": [{"name": "a", "limits": {"requestsPerMinute": 10}}],
            "ingress": {"host": "chat.example.com", "tlsSecretName": "cert"},
            "service": {"type": "NodePort", "annotations": {"a": "b"}},
        },
        "network": {
            "monitoring": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
            "gatewayEgress": [{"cidr": "198.51.100.0/24", "except": ["198.51.100.128/25"], "ports": [443, 6379]}],
            "allowedClients": [{"ipBlock": {"cidr": "203.0.113.0/24"}}, {"podSelector": {"matchLabels": {"app": "client"}}}],
        },
        "storage": {"cache": {"size": "1Gi", "retention": "Retain"}},
        "podOverrides": {"spec": {
            "containers": [{"name": "engine", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        }},
    },
    "fetched": {
        "model": {"source": {"huggingFace": {"repo": "org/model", "tokenSecretRef": {"name": "hub", "key": "token"}}}},
        "network": {"modelEgress": [{"cidr": "192.0.2.0/24"}]},
        "gateway": {"auth": {"mode": "TokenReview"}},
    },
    "image": {"model": {"source": {"image": {"reference": "registry.example/model@sha256:" + "a" * 64, "path": "model.gguf"}}}},
}


def children(service):
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "release/examples/children"
    done = subprocess.run([program], input=json.dumps(service), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SERVICES)
def test_every_child_is_accepted_and_the_groups_pods_appear(cluster, definition, name):
    spec = {"model": {"source": {"pvc": {"claimName": "models"}}}, **copy.deepcopy(SERVICES[name])}
    manifest = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": f"made-{name}", "namespace": "default"},
        "spec": spec,
    }
    stored = json.loads(cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(manifest)).stdout)
    made = children(stored)
    # Strict: a field that the API server doesn't know is an error, not a warning.
    cluster.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=json.dumps(made))
    groups = [item for item in made["items"] if item["kind"] == "StatefulSet"]
    assert len(groups) == stored["spec"]["replicas"]
    expected = sum(group["spec"]["replicas"] for group in groups)
    selector = f"kvasir.dev/service=made-{name},kvasir.dev/component=engine"
    deadline = time.monotonic() + 60
    while True:
        pods = json.loads(cluster.kubectl("get", "pods", "-l", selector, "-o", "json").stdout)["items"]
        if len(pods) == expected:
            break
        assert time.monotonic() < deadline, f"{len(pods)} of {expected} pods"
        time.sleep(0.5)
    # Applying the same again changes nothing: defaults of the API server don't fight with what is wanted.
    before = versions(cluster, made)
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(made))
    assert versions(cluster, made) == before


def versions(cluster, made):
    names = [f"{item['kind']}/{item['metadata']['name']}" for item in made["items"]]
    listed = json.loads(cluster.kubectl("get", *names, "-o", "json").stdout)["items"]
    return {(item["kind"], item["metadata"]["name"]): item["metadata"]["generation"] if "generation" in item["metadata"] else item["metadata"]["resourceVersion"] for item in listed}
