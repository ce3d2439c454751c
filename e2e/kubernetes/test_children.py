"""The objects that the operator makes, on a real API server and its controllers."""

import copy
import json
import subprocess

import pytest
from running import BUILT, wait_until

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
    """What the operator's core makes of a service."""
    done = subprocess.run([BUILT / "examples/children"], input=json.dumps(service), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SERVICES)
def test_every_child_is_accepted_and_the_groups_pods_appear(cluster, definition, space, name):
    stored = space.create(f"made-{name}", **copy.deepcopy(SERVICES[name]))
    made = children(stored)
    # Strict: a field that the API server doesn't know is an error, not a warning.
    cluster.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=json.dumps(made))
    groups = [item for item in made["items"] if item["kind"] == "StatefulSet"]
    assert len(groups) == stored["spec"]["replicas"]
    expected = sum(group["spec"]["replicas"] for group in groups)
    wait_until(lambda: len(space.pods(name=f"made-{name}")) == expected, f"{expected} pods")
    # Applying the same again changes nothing: defaults of the API server don't fight with what is wanted.
    before = versions(space, made)
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(made))
    assert versions(space, made) == before


def versions(space, made):
    """What only a write changes; a status is written without one."""
    stored = {(item["kind"], item["metadata"]["name"]): space.get(item["kind"], item["metadata"]["name"]) for item in made["items"]}
    return {key: item["metadata"].get("generation") or item["metadata"]["resourceVersion"] for key, item in stored.items()}
