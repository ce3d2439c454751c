"""Who reaches whom: the table in section 10 of the design, tried from real pods on real nodes."""

import contextlib
import json
import time

import pytest

from cluster import Cluster, Service, wait_until

ENGINE_PORTS = {"grpc": 50051, "rendezvous": 29500, "collective": 29501, "health": 8081, "admin": 8082, "metrics": 9090}
GATEWAY_PORTS = {"https": 8443, "metrics": 9090}
# What listens in an engine of one rank; the ports of ranks are tried where there are ranks.
LISTENING = ("grpc", "health", "admin", "metrics")


def targets(service):
    for pod in service.engines():
        for name, port in ENGINE_PORTS.items():
            yield f"engine {name}", pod["status"]["podIP"], port
    for pod in service.gateways():
        for name, port in GATEWAY_PORTS.items():
            yield f"gateway {name}", pod["status"]["podIP"], port


def reached(pod, service):
    return sorted(what for what, address, port in targets(service) if pod.connects(address, port))


def secured(service, status, reason):
    """Waits until the operator says so of the network, and returns its message."""
    def said():
        condition = service.condition("NetworkSecured")
        return (condition["status"], condition["reason"]) == (status, reason) and condition["message"]
    return wait_until(said, seconds=100)


def test_without_enforcement_every_listening_port_is_reached_and_with_it_none(laptop, cluster):
    """The positive control: what the other tests see refused does listen, and only policies refuse it. The operator finds out both."""
    stranger = cluster.pod("default", "stranger")
    try:
        assert reached(stranger, laptop) == []
        assert secured(laptop, "True", "PoliciesApplied").endswith("may admit the operator: collective, rendezvous")
        cluster.run("policies", "off")
        with contextlib.ExitStack() as always:
            always.callback(cluster.run, "policies", "on")
            listening = sorted([f"engine {name}" for name in LISTENING] + [f"gateway {name}" for name in GATEWAY_PORTS])
            assert reached(stranger, laptop) == listening
            begin = time.monotonic()
            message = secured(laptop, "False", "EnforcementUnverified")
            Cluster.measured.append(f"enforcement ended: noticed after {time.monotonic() - begin:.0f} s: {message}")
            assert "port 50051 (grpc) of laptop-g" in message
        secured(laptop, "True", "PoliciesApplied")
    finally:
        cluster.kubectl("-n", "default", "delete", "pod", "stranger", "--wait=false")


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_client_of_an_allowed_namespace_reaches_the_entrance_alone(laptop, cluster, client, node):
    pod = cluster.pod("apps", f"allowed-{node}", node=node)
    assert reached(pod, laptop) == ["gateway https"]


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_pod_of_another_namespace_reaches_nothing(laptop, cluster, node):
    pod = cluster.pod("default", f"foreign-{node}", node=node)
    assert reached(pod, laptop) == []


def test_a_pod_of_the_same_namespace_that_no_list_names_reaches_nothing(laptop, cluster):
    pod = cluster.pod(laptop.namespace, "neighbour")
    assert reached(pod, laptop) == []


def test_a_neighbour_service_reaches_nothing(laptop, cluster):
    pod = cluster.pod(laptop.namespace, "other", labels={"kvasir.dev/service": "other", "kvasir.dev/component": "gateway"})
    assert reached(pod, laptop) == []


def test_without_a_key_or_with_a_wrong_or_a_foreign_one_nobody_is_answered(operator, client):
    allowed = {"allowedClients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}]}
    # Small, because three services are on two small nodes at that time.
    small = {"maxModelLen": 1024, "kv": {"memory": "64Mi"}, "resources": {"requests": {"cpu": "100m", "memory": "384Mi"}, "limits": {"memory": "1Gi"}}}
    keyed = {"network": allowed, "engine": small, "gateway": {"replicas": 1, "auth": {"apiKeySecrets": [{"name": "keys"}]}}}
    with Service.applied(operator, "mine", keyed, wait=0) as mine, Service.applied(operator, "theirs", keyed, wait=0) as theirs:
        keys = {service.name: service.key("keys") for service in (mine, theirs)}
        for service in (mine, theirs):
            service.wait_until_ready(180)
        asked = {key: json.loads(mine.ask(client, *key).stdout) for key in [(), ("none",), (keys["theirs"],)]}
        assert all(answer == {"status": 401} for answer in asked.values()), asked
        assert "Paris" in json.loads(mine.ask(client, keys["mine"]).stdout)["answer"]
