"""Eight clients stream without pause while something changes: no request fails and no stream is cut short."""

import contextlib
import subprocess
import time

import pytest

from cluster import Cluster, wait_until


@contextlib.contextmanager
def streaming(service, client, what):
    """Asserts that nothing was lost, and that requests were answered at all."""
    load = service.load(client)
    begin = time.monotonic()
    try:
        yield
        # The last change must have met running streams too.
        time.sleep(2)
    finally:
        counted = load.stop()
    Cluster.measured.append(f"{what}: {counted['finished']} streams, {len(counted['failures'])} lost, {time.monotonic() - begin:.0f} s")
    assert counted["failures"] == []
    assert counted["finished"] > 0


def uids(pods):
    return {pod["metadata"]["uid"] for pod in pods}


def all_pods(service, component):
    return service.cluster.get("-n", service.namespace, "pods", "-l", f"kvasir.dev/component={component}")["items"]


def replaced(pods, before):
    """As many pods as before are ready, and none of them is one of those."""
    now = uids(pods)
    return len(now) == len(before) and not now & before


def new_gateway_settings(service):
    """Some that need other processes; an edit of the Deployment itself would be set back."""
    limits = service.get()["spec"]["gateway"]["limits"]
    service.patch({"gateway": {"limits": {"queueTimeoutSeconds": limits["queueTimeoutSeconds"] + 1}}})


def test_a_rollout_by_surge_of_the_only_group_loses_nothing(laptop, client):
    before = uids(laptop.engines())
    length = laptop.get()["spec"]["engine"]["maxModelLen"]
    with streaming(laptop, client, "rollout"):
        laptop.patch({"engine": {"maxModelLen": length - 1024 if length > 1024 else length + 1024}})
        wait_until(lambda: replaced(laptop.engines(), before), seconds=180)
    laptop.wait_until_ready()


@pytest.mark.rotating
def test_scaling_from_two_groups_to_one_loses_nothing(laptop, client):
    laptop.patch({"replicas": 2})
    wait_until(lambda: len(laptop.engines()) == 2, seconds=120)
    laptop.wait_until_ready()
    with streaming(laptop, client, "scale 2 -> 1"):
        laptop.patch({"replicas": 1})
        wait_until(lambda: len(all_pods(laptop, "engine")) == 1, seconds=120)


@pytest.mark.rotating
def test_draining_the_node_of_the_only_group_loses_nothing(laptop, client, cluster):
    # The sample for a laptop lets its only group be evicted at any time.
    laptop.patch({"disruption": {"minAvailableGroups": 1}})
    laptop.wait_until_ready()
    node = laptop.engines()[0]["spec"]["nodeName"]
    drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=kvasir.dev/component=engine", "--timeout=150s")
    with streaming(laptop, client, "drain"):
        try:
            cluster.kubectl(*drain, timeout=200)
        finally:
            cluster.kubectl("uncordon", node)
    laptop.wait_until_ready()
    assert laptop.engines()[0]["spec"]["nodeName"] != node


@pytest.mark.rotating
def test_a_rollout_of_the_gateway_loses_nothing(laptop, client, cluster):
    before = uids(laptop.gateways())
    with streaming(laptop, client, "gateway rollout"):
        new_gateway_settings(laptop)
        wait_until(lambda: replaced(laptop.gateways(), before), seconds=120)
        wait_until(lambda: len(all_pods(laptop, "gateway")) == 1, seconds=90)


@pytest.mark.rotating
def test_deleting_the_operators_pods_loses_nothing(laptop, client, cluster):
    with streaming(laptop, client, "operator deleted"):
        cluster.kubectl("-n", "kvasir-system", "delete", "pods", "--all")
        cluster.kubectl("-n", "kvasir-system", "rollout", "status", "deployment/kvasir-operator", "--timeout=90s")


@pytest.mark.rotating
def test_renewing_every_certificate_loses_nothing(laptop, client, cluster):
    """Their Secrets are deleted, as somebody does whose keys have leaked: the operator makes new ones, and the pods take them over."""
    def leaves():
        secrets = cluster.get("-n", laptop.namespace, "secrets", "-l", "kvasir.dev/service=laptop")["items"]
        return {s["metadata"]["name"]: s["data"]["tls.crt"] for s in secrets if "tls.crt" in s["data"] and "tls.key" in s["data"]}
    before = leaves()
    assert len(before) >= 2
    with streaming(laptop, client, "certificates renewed"):
        cluster.kubectl("-n", laptop.namespace, "delete", "secrets", *before)
        wait_until(lambda: (now := leaves()).keys() == before.keys() and all(now[name] != before[name] for name in now), seconds=60)
        # Until the kubelets have brought them to the pods, and then new connections with them.
        time.sleep(25)
        before_gateways = uids(laptop.gateways())
        new_gateway_settings(laptop)
        wait_until(lambda: replaced(laptop.gateways(), before_gateways), seconds=120)
    laptop.wait_until_ready()


@pytest.mark.rotating
def test_thirty_seconds_without_an_api_server_lose_nothing(laptop, client, cluster):
    # The client's pod is reached through the API server: this one runs by itself until it has been told to stop by a file.
    before = uids(laptop.engines() + laptop.gateways())
    load = laptop.detached_load(client)
    cluster.run("stop", "kube-apiserver")
    try:
        time.sleep(30)
    finally:
        cluster.run("start", "kube-apiserver")
    wait_until(lambda: _answers(cluster), seconds=60)
    counted = load.stop()
    Cluster.measured.append(f"API server down for 30 s: {counted['finished']} streams, {len(counted['failures'])} lost")
    assert counted["failures"] == [] and counted["finished"] > 0
    # Whose kubelets couldn't report for so long aren't ready for a moment; one that was replaced has another uid for ever.
    wait_until(lambda: uids(laptop.engines() + laptop.gateways()) == before, seconds=60)
    laptop.wait_until_ready()


def _answers(cluster):
    try:
        return cluster.kubectl("get", "--raw", "/readyz", check=False, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        return False
