"""Eight clients stream without pause while something changes: no request fails and no stream is cut short."""

import base64
import contextlib
import subprocess
import time

import pytest

from authority import Authority
from cluster import Cluster, wait_until


@contextlib.contextmanager
def streaming(service, client, what, *of, **load):
    """Asserts that nothing was lost, and that requests were answered at all."""
    load = service.load(client, 8, *of, **load)
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


# No key, the first model, and a connection for each request.
FRESH = ("none", "", "fresh")


class Switches:
    """Changes whose certificates a service has, and meets old pods with new ones at every step."""

    def __init__(self, service):
        self.service, self.cluster = service, service.cluster

    def give(self, name, authority, uris, dns=()):
        metadata = {"name": name, "namespace": self.service.namespace}
        self.cluster.apply({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": authority.data(uris, dns)})

    def provide(self, name, authority):
        own = f"spiffe://kvasir.dev/ns/{self.service.namespace}/service/{self.service.name}"
        self.give(name, authority, [f"{own}/engine", f"{own}/gateway"], [self.service.host])

    def shown(self):
        """The authorities of what pods mount, and how many of them each trusts."""
        secrets = self.cluster.get("-n", self.service.namespace, "secrets", "-l", f"kvasir.dev/service={self.service.name}")["items"]
        mounted = [s["data"] for s in secrets if "tls.key" in s["data"] and s["metadata"]["name"].endswith(("-certificate", "-gateway-tls"))]
        return {base64.b64decode(data["ca.crt"]) for data in mounted}

    def trusts(self, number):
        return lambda: all(bundle.count(b"BEGIN") == number for bundle in self.shown())

    def new_gateways(self):
        """Their connections are new."""
        before = uids(self.service.gateways())
        new_gateway_settings(self.service)
        wait_until(lambda: replaced(self.service.gateways(), before), seconds=120)

    def switch(self, tls):
        """To another authority; new gateways come when both are trusted, and again when one is left."""
        self.service.patch({"tls": tls})
        wait_until(self.trusts(2), self.service.get, 30)
        self.new_gateways()
        wait_until(self.trusts(1), self.service.get, 180)


@pytest.mark.rotating
def test_changing_whose_certificates_a_service_has_loses_nothing(laptop, client, cluster, tmp_path_factory):
    """Internal, given, given by another authority, and back; every client's request has a connection of its own."""
    cluster.install("--set", "operator.extraArgs={--trust-time=30}", "--set", "operator.resyncSeconds=10")
    first, second = (Authority(tmp_path_factory.mktemp(name)) for name in ("first", "second"))
    switches = Switches(laptop)
    for name, authority in (("first", first), ("second", second)):
        switches.provide(name, authority)
        switches.give(f"{name}-operator", authority, ["spiffe://kvasir.dev/operator"])
    given = [(authority.folder / "ca.crt").read_bytes() for authority in (first, second)]
    engines = uids(laptop.engines())
    internal = base64.b64decode(laptop.authority())
    trusted = base64.b64encode(b"".join([internal, *given])).decode()
    with streaming(laptop, client, "Internal -> Provided -> another authority", *FRESH, authority=trusted):
        switches.switch({"mode": "Provided", "secretName": "first", "operatorSecretName": "first-operator"})
        switches.switch({"secretName": "second", "operatorSecretName": "second-operator"})
        switches.new_gateways()
    assert switches.shown() == {given[1]}
    laptop.patch({"tls": {"mode": "Internal", "secretName": None, "operatorSecretName": None}})
    # Whoever comes from outside hears of the next authority before anybody shows it.
    wait_until(switches.trusts(2), laptop.get, 30)
    with streaming(laptop, client, "Provided -> Internal", *FRESH, authority=laptop.authority()):
        wait_until(switches.trusts(1), laptop.get, 180)
        switches.new_gateways()
    assert not switches.shown() & {internal, *given}
    assert uids(laptop.engines()) == engines
    cluster.install()
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
