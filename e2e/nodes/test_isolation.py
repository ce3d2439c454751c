"""Who reaches whom: the table in section 10 of the design, tried from real pods on real nodes.

Two services in one namespace: `pair`, of two groups, is what everybody knocks at. Where an engine of one rank has no listener, the tests put one.
"""

import base64
import contextlib
import json
import subprocess
import time

import pytest

from cluster import FOLDER, ROOT, Cluster, Service, wait_until

ENGINE_PORTS = {"grpc": 50051, "rendezvous": 29500, "collective": 29501, "health": 8081, "admin": 8082, "metrics": 9090}
GATEWAY_PORTS = {"https": 8443, "metrics": 9090}
# Engines of one rank don't listen here.
RANK_PORTS = ("rendezvous", "collective")
KNOCK = 'for door; do { busybox nc -w 3 "${door%:*}" "${door#*:}" -e /bin/busybox true </dev/null 2>/dev/null && echo "$door"; } & done; wait'
APPS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}]
# Several services are on two small nodes at that time.
SMALL = {"maxModelLen": 1024, "kv": {"memory": "64Mi"}, "resources": {"requests": {"cpu": "100m", "memory": "384Mi"}, "limits": {"memory": "1Gi"}}}


def keyed(name):
    return {"network": {"allowedClients": APPS}, "engine": SMALL, "gateway": {"replicas": 1, "auth": {"apiKeySecrets": [{"name": f"keys-{name}"}]}}}


@pytest.fixture(scope="module")
def services(operator, client):
    """`pair` and its neighbour, with listeners on the ranks' ports of `pair`."""
    with Service.applied(operator, "pair", {**keyed("pair"), "replicas": 2}, wait=0) as pair, contextlib.ExitStack() as ending:
        other = pair.neighbour("other", keyed("other"))
        pair.secret, other.secret = pair.key("keys-pair"), other.key("keys-other")
        for service in (pair, other):
            service.wait_until_ready(240)
        wait_until(lambda: len(pair.engines()) == 2, seconds=60)
        for pod in pair.engines():
            for name in RANK_PORTS:
                listen = operator.inside(pod, "timeout", "900", "busybox", "nc", "-ll", "-p", str(ENGINE_PORTS[name]), "-e", "/bin/busybox", "true")
                process = subprocess.Popen([ROOT / "e2e/cluster", *listen], env=operator.environment, stdin=subprocess.DEVNULL)
                ending.callback(process.terminate)
        yield pair, other


@pytest.fixture(scope="module")
def pair(services):
    return services[0]


@pytest.fixture(scope="module")
def other(services):
    return services[1]


def doors(service, without=None):
    """Where everything listens, by the name of the port; a pod always reaches itself."""
    own = (without or {}).get("metadata", {}).get("uid")
    pods = [("engine", ENGINE_PORTS, pod) for pod in service.engines()] + [("gateway", GATEWAY_PORTS, pod) for pod in service.gateways()]
    return {f"{pod['status']['podIP']}:{port}": f"{kind} {name}" for kind, ports, pod in pods if pod["metadata"]["uid"] != own for name, port in ports.items()}


def names(found, output):
    return sorted(found[door] for door in output.split())


def reached(pod, service):
    """What a pod of tools reaches."""
    found = doors(service)
    return names(found, pod.shell(KNOCK.replace("busybox nc", "/bin/busybox nc"), *found).stdout)


def reached_by(cluster, pod, service):
    """What somebody in the network of a pod of the system itself reaches."""
    found = doors(service, pod)
    return names(found, cluster.run(*cluster.inside(pod, "sh", "-c", KNOCK, "sh", *found)).stdout)


def everything(service):
    return sorted(doors(service).values())


def secured(service, status, reason):
    """Waits until the operator says so of the network, and returns its message."""
    def said():
        condition = service.condition("NetworkSecured")
        return (condition["status"], condition["reason"]) == (status, reason) and condition["message"]
    return wait_until(said, lambda: json.dumps(service.condition("NetworkSecured")), seconds=130)


def test_every_port_has_a_listener_that_its_own_node_reaches(pair, cluster):
    """The positive control of all others: policies let nodes in to their own pods, as kubelets need it. What is refused below would answer."""
    found = doors(pair)
    nodes = {pod["status"]["podIP"]: pod["spec"]["nodeName"] for pod in pair.engines() + pair.gateways()}
    open_doors = []
    for node in set(nodes.values()):
        near = [door for door in found if nodes[door.split(":")[0]] == node]
        open_doors += cluster.run("in", node, "sh", "-c", KNOCK, "sh", *near).stdout.split()
    assert sorted(open_doors) == sorted(found)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_client_of_an_allowed_namespace_reaches_the_entrance_alone(pair, cluster, node):
    assert reached(cluster.pod("apps", f"allowed-{node}", node=node), pair) == ["gateway https"]


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_pod_of_another_namespace_reaches_nothing(pair, cluster, node):
    assert reached(cluster.pod("default", f"foreign-{node}", node=node), pair) == []


def test_a_pod_of_the_same_namespace_that_no_list_names_reaches_nothing(pair, cluster):
    assert reached(cluster.pod(pair.namespace, "neighbour"), pair) == []


def test_engine_and_gateway_of_a_neighbour_service_reach_nothing(pair, other, cluster):
    for pod in other.engines() + other.gateways():
        assert reached_by(cluster, pod, pair) == [], pod["metadata"]["name"]


def test_a_neighbour_group_of_the_same_service_reaches_nothing(pair, cluster):
    for pod in pair.engines():
        assert reached_by(cluster, pod, pair) == [], pod["metadata"]["name"]


def test_the_services_own_gateway_reaches_the_port_for_requests_alone(pair, cluster):
    assert reached_by(cluster, pair.gateways()[0], pair) == ["engine grpc", "engine grpc"]


def test_the_operator_reaches_the_port_for_itself_alone(pair, cluster):
    pods = cluster.get("-n", "kvasir-system", "pods")["items"]
    assert reached_by(cluster, pods[0], pair) == ["engine admin", "engine admin"]


def test_past_the_gateway_only_its_certificate_opens_an_engine(pair, cluster, tmp_path):
    """From the node, which no policy keeps out: a key is never read, because mutual TLS comes before it."""
    pod = pair.engines()[0]
    tmp_path.chmod(0o755)
    secret = cluster.get("-n", pair.namespace, "secret", "pair-gateway-tls")["data"]
    files = []
    for key in ("tls.crt", "tls.key"):
        files.append(str(tmp_path / key))
        (tmp_path / key).write_bytes(base64.b64decode(secret[key]))

    def knock(port, *pair_of_files):
        script = ("python3", str(FOLDER / "knock.py"), pod["status"]["podIP"], str(port), *pair_of_files)
        return cluster.run("in", pod["spec"]["nodeName"], *script).stdout.strip()

    assert knock(ENGINE_PORTS["grpc"], *files) == "answered"
    assert knock(ENGINE_PORTS["grpc"]).startswith("refused")
    assert knock(ENGINE_PORTS["admin"], *files).startswith("refused")
    assert knock(ENGINE_PORTS["admin"]).startswith("refused")


def test_without_a_key_or_with_a_wrong_or_a_foreign_one_nobody_is_answered(pair, other, client):
    asked = {key: json.loads(pair.ask(client, *key).stdout) for key in [(), ("none",), (other.secret,)]}
    assert all(answer == {"status": 401} for answer in asked.values()), asked
    assert "Paris" in json.loads(pair.ask(client, pair.secret).stdout)["answer"]


def test_the_operator_says_whether_policies_are_enforced_and_of_which_ports_it_can_not(pair, cluster):
    """With enforcement off a stranger reaches everything, so that only policies refused it before."""
    stranger = cluster.pod("default", "stranger")
    try:
        assert secured(pair, "True", "PoliciesApplied").endswith("may admit the operator: collective, rendezvous")
        cluster.run("policies", "off")
        with contextlib.ExitStack() as always:
            always.callback(cluster.run, "policies", "on")
            assert reached(stranger, pair) == everything(pair)
            begin = time.monotonic()
            message = secured(pair, "False", "EnforcementUnverified")
            Cluster.measured.append(f"enforcement ended: noticed after {time.monotonic() - begin:.0f} s: {message}")
            assert "of pair-g" in message
        secured(pair, "True", "PoliciesApplied")
        assert reached(stranger, pair) == []
    finally:
        cluster.kubectl("-n", "default", "delete", "pod", "stranger", "--wait=false")
