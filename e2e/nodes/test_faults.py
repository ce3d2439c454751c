"""What breaks in a cluster, one thing after another: which condition says so, and what heals by itself. Each test prints its row."""

import contextlib
import json
import threading
import time

import pytest

from cluster import MODEL_FILE, Cluster, Service, condition, wait_until

ALLOWED = {"allowedClients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}]}
KINDS = ("Ready", "ModelReady", "EnginesReady", "GatewayReady", "NetworkSecured", "CertificatesReady", "Degraded")


class History:
    """Which conditions a service's status has had since the fault."""

    def __init__(self, service, what):
        self.service, self.what = service, what
        self.seen = []
        self.stop = threading.Event()
        self.begin = time.monotonic()
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def follow(self):
        last = {}
        while not self.stop.wait(0.5):
            with contextlib.suppress(Exception):
                item = self.service.get()
                for kind in KINDS:
                    found = condition(item, kind)
                    state = (found["status"], found["reason"])
                    if last.setdefault(kind, state) != state:
                        last[kind] = state
                        self.seen.append((time.monotonic() - self.begin, kind, *state, found["message"]))

    def had(self, kind, status, *reasons):
        return next((entry for entry in self.seen if entry[1:3] == (kind, status) and entry[3] in reasons), None)

    def must_have(self, kind, status, *reasons, seconds=90):
        return wait_until(lambda: self.had(kind, status, *reasons), lambda: json.dumps(self.seen, indent=1), seconds, pause=0.5)

    def row(self, more=""):
        """What stands in the table."""
        steps = "; ".join(f"{at:.0f} s {kind}={status}/{reason}" for at, kind, status, reason, _ in self.seen)
        Cluster.measured.append(f"fault {self.what}: {steps or 'no condition changed'}{'; ' + more if more else ''}")


@contextlib.contextmanager
def fault(service, what):
    history = History(service, what)
    try:
        yield history
    finally:
        history.stop.set()
        history.thread.join()
        history.row()


def engine(service):
    return wait_until(lambda: (pods := service.engines()) and pods[0], "an engine", 180)


def healed(service, seconds=180):
    wait_until(lambda: len(service.engines()) >= 1, "a ready engine", seconds, pause=0.5)
    service.wait_until_ready(seconds)


@pytest.mark.rotating
def test_a_killed_engine_starts_again_in_its_pod(laptop, cluster):
    pod = engine(laptop)
    with fault(laptop, "kill -9 of the engine") as history:
        cluster.run("in", pod["spec"]["nodeName"], "pkill", "-9", "-f", "kvasir engine --config")
        history.must_have("EnginesReady", "False", "RankFailed", "CrashLoop")
        healed(laptop)
        history.must_have("Ready", "True", "AllComponentsReady")
    again = engine(laptop)
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] == 1


@pytest.mark.rotating
def test_a_deleted_pod_comes_back(laptop, cluster):
    pod = engine(laptop)
    with fault(laptop, "pod deleted") as history:
        cluster.kubectl("-n", laptop.namespace, "delete", "pod", pod["metadata"]["name"], "--wait=false")
        wait_until(lambda: (pods := laptop.engines()) and pods[0]["metadata"]["uid"] != pod["metadata"]["uid"], "another pod", 120)
        healed(laptop)
        history.must_have("Ready", "True", "AllComponentsReady", seconds=30)


@pytest.mark.rotating
def test_an_engine_without_memory_says_so_and_lives_with_more(operator):
    small = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}
    sample = {"maxModelLen": 2048, "kv": {"memory": "256Mi"}}
    with Service.applied(operator, "small", {"engine": {**sample, "resources": small}}, wait=0) as service, fault(service, "memory limit of 64 MiB") as history:
        _, _, _, _, message = history.must_have("EnginesReady", "False", "RankFailed", "CrashLoop")
        assert "OOMKilled" in message or "memory" in message, message
        service.patch({"engine": {"resources": {"requests": {"memory": "768Mi"}, "limits": {"memory": "1Gi"}}}})
        healed(service)


@pytest.mark.rotating
def test_without_its_kubelet_a_node_is_left(laptop, cluster):
    pod = engine(laptop)
    node = pod["spec"]["nodeName"]
    with fault(laptop, "kubelet killed") as history:
        cluster.run("stop", f"{node}-kubelet")
        try:
            wait_until(lambda: any(p["spec"]["nodeName"] != node for p in laptop.engines()), "an engine on the other node", 240, pause=1)
            history.must_have("Degraded", "True", "NodeLost", seconds=5)
        finally:
            cluster.run("start", f"{node}-kubelet")
        healed(laptop)
        history.must_have("Ready", "True", "AllComponentsReady")


@pytest.mark.rotating
def test_without_containerd_what_runs_goes_on(laptop, client, cluster):
    node = engine(laptop)["spec"]["nodeName"]
    # What an earlier test broke may still be on its way back.
    wait_until(lambda: laptop.ask(client, check=False).returncode == 0, "an answer", 120, pause=1)
    # The client's pod may be on that node, where nobody can be called into it meanwhile.
    load = laptop.detached_load(client, clients=2)
    with fault(laptop, "containerd stopped"):
        cluster.run("stop", f"{node}-containerd")
        time.sleep(30)
        cluster.run("start", f"{node}-containerd")
        healed(laptop)
        counted = load.stop()
        assert counted["failures"] == [] and counted["finished"] > 0


@pytest.mark.rotating
def test_without_dns_what_is_connected_goes_on(laptop, client, cluster):
    load = laptop.load(client, clients=2)
    with fault(laptop, "DNS gone") as history:
        cluster.kubectl("-n", "kube-system", "scale", "deployment/dns", "--replicas=0")
        try:
            wait_until(lambda: not cluster.get("-n", "kube-system", "pods", "-l", "k8s-app=kube-dns")["items"], "no DNS", 60)
            time.sleep(15)
            counted = load.stop()
        finally:
            cluster.kubectl("-n", "kube-system", "scale", "deployment/dns", "--replicas=1")
            cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/dns", "--timeout=60s")
        # Whoever asks for the name anew doesn't find it, which clients that open a connection for each stream do; what had begun went on.
        assert all("APIConnectionError" in failure["failure"] for failure in counted["failures"]), counted
        assert counted["finished"] > 0
        assert not history.had("Ready", "False", "EnginesNotReady", "GatewayNotReady")


@pytest.mark.rotating
def test_corrupt_weights_are_refused_at_the_next_start(operator):
    with Service.applied(operator, "corrupt") as service, fault(service, "weights corrupt, restarted") as history:
        whole = service.model.read_bytes()
        # The file may be the machine's own model under another name.
        service.model.unlink()
        service.model.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
        operator.kubectl("-n", service.namespace, "delete", "pod", engine(service)["metadata"]["name"])
        history.must_have("EnginesReady", "False", "RankFailed", "CrashLoop", seconds=120)
        (service.model.parent / "whole").write_bytes(whole)
        (service.model.parent / "whole").chmod(0o644)
        (service.model.parent / "whole").rename(service.model.parent / MODEL_FILE)
        healed(service, 240)
