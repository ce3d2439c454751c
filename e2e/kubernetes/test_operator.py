"""The operator on a real control plane, with exactly the chart's rights. Numbers in names are those of complaints about other
operators that were collected before this one was written."""

import copy
import json
import time

import pytest
import yaml

import operator_process
from conftest import ROOT, eventually
from operator_process import Operator
from test_crd import CASES, changed

SAMPLES = sorted((ROOT / "charts/kvasir/samples").glob("*.yaml"))
FAST = {"maxGroupRestarts": 2, "windowSeconds": 3600, "backoffInitialSeconds": 1, "backoffMaxSeconds": 2}


@pytest.fixture(scope="module")
def operator(cluster, tmp_path_factory):
    operator_process.install(cluster, "--set", "operator.alphaTopology=true", "--set", "operator.resyncSeconds=30")
    running = Operator(cluster, tmp_path_factory.mktemp("operator")).wait_until_leading()
    yield running
    assert running.process.poll() is None, running.log_path.read_text()[-3000:]
    assert running.stop() == 0


@pytest.fixture
def space(cluster, operator, namespace):
    """A namespace with a claim and keys, and a way to make services in it."""
    cluster.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models", "namespace": namespace},
         "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": namespace}, "stringData": {"a.yaml": "[]"}},
    )
    return Space(cluster, namespace)


class Space:
    def __init__(self, cluster, namespace):
        self.cluster = cluster
        self.namespace = namespace

    def make(self, name="chat", **spec):
        spec.setdefault("gateway", {"replicas": 1, "auth": {"apiKeySecrets": [{"name": "keys"}]}})
        spec.setdefault("model", {"source": {"pvc": {"claimName": "models"}}})
        self.cluster.apply({"apiVersion": "kvasir.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": name, "namespace": self.namespace}, "spec": spec})

    def change(self, patch, name="chat"):
        self.cluster.kubectl("-n", self.namespace, "patch", f"kis/{name}", "--type=merge", "-p", json.dumps({"spec": patch}))

    def service(self, name="chat"):
        return self.cluster.get("-n", self.namespace, f"kis/{name}")

    def status(self, name="chat"):
        return (self.service(name) or {}).get("status", {})

    def condition(self, kind, name="chat"):
        found = [c for c in self.status(name).get("conditions", []) if c["type"] == kind]
        return (found[0]["status"], found[0]["reason"]) if found else (None, None)

    def message(self, kind, name="chat"):
        return next(c["message"] for c in self.status(name)["conditions"] if c["type"] == kind)

    def wait(self, kind, status, reason=None, name="chat", seconds=120):
        def holds():
            service = self.service(name) or {"metadata": {}}
            known = service.get("status", {})
            seen = known.get("observedGeneration") == service["metadata"].get("generation")
            found = [c for c in known.get("conditions", []) if c["type"] == kind]
            return seen and found and found[0]["status"] == status and (reason is None or found[0]["reason"] == reason)
        try:
            eventually(holds, seconds)
        except AssertionError:
            raise AssertionError(json.dumps(self.status(name), indent=1)) from None

    def ready(self, name="chat"):
        self.wait("Ready", "True", name=name)

    def pods(self, component="engine", name="chat"):
        selector = f"kvasir.dev/service={name},kvasir.dev/component={component}"
        return self.cluster.get("-n", self.namespace, "pods", "-l", selector)["items"]

    def uids(self, **of):
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods(**of)}

    def children(self, kind, name="chat"):
        return self.cluster.get("-n", self.namespace, kind, "-l", f"kvasir.dev/service={name}")["items"]

    def script(self, *rules):
        self.cluster.script(self.namespace, *rules)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_becomes_ready(cluster, operator, namespace, path):
    made = list(yaml.safe_load_all(path.read_text()))
    secrets = ["chat-keys", "private-keys"]
    cluster.apply(*({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": n, "namespace": namespace}} for n in secrets))
    claims = {item["metadata"]["name"] for item in made if item["kind"] == "PersistentVolumeClaim"}
    service = next(item for item in made if item["kind"] == "InferenceService")
    wanted = service["spec"]["model"]["source"]["pvc"]["claimName"]
    if wanted not in claims:
        made.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": wanted}, "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}})
    for item in made:
        item["metadata"]["namespace"] = namespace
    cluster.apply(*made)
    space = Space(cluster, namespace)
    name = service["metadata"]["name"]
    space.ready(name)
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"kis/{name}", "--timeout=10s")
    assert space.status(name)["readyReplicas"] == service["spec"].get("replicas", 1)


@pytest.mark.parametrize("case", [c for c in CASES if c["by"] == "operator"], ids=lambda case: case["name"])
def test_what_cannot_be_built_is_refused_with_its_field(cluster, operator, space, case):
    if "operator's flag" in case["name"] and "ranks" in case["name"]:
        pytest.skip("this operator has the flag")
    manifest = changed(case)
    manifest["metadata"]["namespace"] = space.namespace
    cluster.apply(manifest)
    space.wait("Accepted", "False")
    assert case["field"] in space.message("Accepted")
    assert space.condition("Ready") == ("False", "NotAccepted")
    assert not space.children("statefulset")


def test_1_a_service_is_ready_without_being_touched_again(space):
    space.make(topology={"tensor": 2, "devicesPerPod": 1})
    space.ready()
    assert len(space.pods()) == 2


@pytest.mark.parametrize("topology", [
    {"tensor": 2}, {"pipeline": 2}, {"data": 2}, {"tensor": 2, "pipeline": 2}, {"pipeline": 2, "data": 2}, {"tensor": 2, "pipeline": 2, "devicesPerPod": 2},
], ids=str)
def test_3_every_topology_becomes_ready(space, topology):
    space.make(topology=topology)
    space.ready()
    ranks = topology.get("tensor", 1) * topology.get("pipeline", 1) * topology.get("data", 1)
    assert len(space.pods()) == ranks // topology.get("devicesPerPod", 1)


def test_9_a_group_that_dies_of_memory_is_not_ready_and_says_so(space):
    space.make(restartPolicy=FAST)
    space.ready()
    space.script({"pods": "chat-g*", "exit": {"code": 137, "reason": "OOMKilled", "afterSeconds": 1}})
    space.wait("EnginesReady", "False")
    failure = eventually(lambda: next((g["lastFailure"] for g in space.status()["groups"] if "lastFailure" in g), None))
    assert failure["exitCode"] == 137
    assert space.condition("Ready")[0] == "False"


def test_10_an_edited_image_reaches_the_pods(space):
    space.make(engine={"image": "engine:1"})
    space.ready()
    before = space.status()["updateRevision"]
    space.change({"engine": {"image": "engine:2"}})
    eventually(lambda: {c["image"] for p in space.pods() for c in p["spec"]["containers"]} == {"engine:2"}, 120)
    space.ready()
    assert space.status()["updateRevision"] != before


def test_11_and_24_a_single_group_is_replaced_only_when_its_successor_serves(space):
    space.make(engine={"image": "engine:1"})
    space.ready()
    space.script({"images": "engine:2", "readyAfterSeconds": 3})
    space.change({"engine": {"image": "engine:2"}})
    lowest = 1
    while True:
        ready = [p for p in space.pods() if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))]
        lowest = min(lowest, len(ready))
        images = {c["image"] for p in space.pods() for c in p["spec"]["containers"]}
        if images == {"engine:2"} and ready:
            break
        time.sleep(0.1)
    assert lowest == 1


def test_12_counters_follow_the_groups_through_scaling(space):
    space.make()
    space.ready()
    for replicas in (5, 1):
        space.cluster.kubectl("-n", space.namespace, "scale", "kis/chat", f"--replicas={replicas}")
        eventually(lambda: len(space.children("statefulset")) == replicas, 120)
        space.ready()
        status = eventually(lambda: (s := space.status()).get("readyReplicas") == replicas and s, 120)
        assert (status["replicas"], status["updatedReplicas"], status["availableReplicas"]) == (replicas,) * 3


def test_17_an_engine_that_cannot_load_its_model_is_quoted(space):
    space.script({"pods": "chat-g*", "exit": {"code": 66, "message": "model: config.json names the unknown architecture mamba"}, "backoffSeconds": 1})
    space.make(restartPolicy=FAST)
    eventually(lambda: "unknown architecture mamba" in json.dumps(space.status()), 120)
    assert space.condition("Ready")[0] != "True"


def test_20_a_rank_that_always_ends_is_restarted_only_so_often(space):
    space.script({"pods": "chat-g*", "exit": {"code": 1, "message": "no"}, "backoffSeconds": 1})
    space.make(restartPolicy={**FAST, "maxGroupRestarts": 1}, topology={"tensor": 2})
    first = eventually(lambda: len(uids := space.uids()) == 2 and uids)
    # A group has two minutes to form again by itself, before and after its one restart.
    space.wait("Degraded", "True", "GroupRestartBudgetExhausted", seconds=400)
    last = space.uids()
    assert not set(first.values()) & set(last.values())
    group = space.status()["groups"][0]
    assert (group["restarts"], group["lastFailure"]["exitCode"], group["lastFailure"]["message"]) == (1, 1, "no")
    time.sleep(5)
    assert space.uids() == last


def test_23_a_good_image_heals_a_bad_one_without_help(space):
    space.script({"images": "engine:bad", "pull": "not found"})
    space.make(engine={"image": "engine:1"})
    space.ready()
    space.change({"engine": {"image": "engine:bad"}})
    eventually(lambda: any("engine:bad" in json.dumps(p["spec"]) for p in space.pods()), 60)
    space.change({"engine": {"image": "engine:3"}})
    eventually(lambda: {c["image"] for p in space.pods() for c in p["spec"]["containers"]} == {"engine:3"}, 120)
    space.ready()


def test_25_a_lost_node_costs_one_group_and_another_takes_its_place(space):
    space.make()
    space.ready()
    pod = space.pods()[0]
    node = pod["spec"]["nodeName"]
    space.cluster.kubectl("annotate", "node", node, "fake-kubelet.kvasir.dev/lost=true")
    try:
        def replaced():
            ready = [g for g in space.status()["groups"] if g["state"] == "Ready"]
            return ready and all(g["leaderPod"] != pod["metadata"]["name"] for g in ready)
        eventually(replaced, 240)
    finally:
        space.cluster.kubectl("annotate", "node", node, "fake-kubelet.kvasir.dev/lost-")
    space.ready()


def test_a_cordoned_node_is_left_by_its_groups_one_after_the_other(space):
    space.make()
    space.ready()
    pod = space.pods()[0]
    space.cluster.kubectl("cordon", pod["spec"]["nodeName"])
    try:
        eventually(lambda: (pods := space.pods()) and all(p["spec"].get("nodeName") not in (None, pod["spec"]["nodeName"]) for p in pods), 180)
        space.ready()
    finally:
        space.cluster.kubectl("uncordon", pod["spec"]["nodeName"])


def test_32_edited_and_deleted_children_come_back(space):
    space.make()
    space.ready()
    name = space.children("statefulset")[0]["metadata"]["name"]
    space.cluster.kubectl("-n", space.namespace, "patch", "statefulset", name, "--type=merge", "-p", '{"spec": {"replicas": 3}}')
    eventually(lambda: space.cluster.get("-n", space.namespace, "statefulset", name)["spec"]["replicas"] == 1)
    for kind in ("service", "configmap", "networkpolicy", "poddisruptionbudget", "deployment", "serviceaccount"):
        before = {c["metadata"]["name"]: c["metadata"]["uid"] for c in space.children(kind)}
        gone = sorted(before)[0]
        space.cluster.kubectl("-n", space.namespace, "delete", kind, gone, "--wait=false")
        eventually(lambda: (now := {c["metadata"]["name"]: c["metadata"]["uid"] for c in space.children(kind)}).keys() == before.keys() and now[gone] != before[gone])
    space.ready()


def test_44_the_selector_of_the_scale_is_there_from_the_first_status(space):
    space.make()
    status = eventually(space.status)
    assert status["selector"] == "kvasir.dev/service=chat,kvasir.dev/component=engine,apps.kubernetes.io/pod-index=0"


def test_8_a_rank_that_is_killed_is_noticed_named_and_its_group_forms_again(space):
    space.make(topology={"tensor": 2})
    space.ready()
    space.script({"pods": "chat-g*-1", "exit": {"code": 9, "message": "killed", "times": 1}, "backoffSeconds": 2, "readyAfterSeconds": 2})
    failure = eventually(lambda: next((g["lastFailure"] for g in space.status()["groups"] if "lastFailure" in g), None))
    assert (failure["rank"], failure["exitCode"]) == (1, 9)
    space.ready()


def test_suspending_and_waking_keeps_the_service(space):
    space.make()
    space.ready()
    space.change({"suspend": True})
    space.wait("Ready", "False", "Suspended")
    eventually(lambda: not space.pods(), 60)
    space.change({"suspend": False})
    space.ready()


def test_deleting_a_service_leaves_nothing(space):
    space.make()
    space.ready()
    space.cluster.kubectl("-n", space.namespace, "delete", "kis/chat", "--timeout=60s")
    kinds = "statefulsets,deployments,services,configmaps,secrets,networkpolicies,poddisruptionbudgets,serviceaccounts,roles,rolebindings,controllerrevisions,pods"
    eventually(lambda: not space.cluster.get("-n", space.namespace, kinds, "-l", "kvasir.dev/service=chat")["items"], 120)


def test_a_service_at_rest_causes_no_write_and_keeps_its_pods(space):
    space.make(replicas=2)
    space.ready()
    before = space.uids(), space.uids(component="gateway")
    time.sleep(5)
    since = operator_process.now()
    time.sleep(45)
    written = [m for m in operator_process.mutations(space.cluster, since) if f"/namespaces/{space.namespace}/" in m[1]]
    assert written == []
    assert (space.uids(), space.uids(component="gateway")) == before


def test_a_restarted_operator_finds_everything_as_it_was(space, operator, tmp_path):
    space.make(replicas=2)
    space.ready()
    before = space.uids(), copy.deepcopy(space.status())
    second = Operator(space.cluster, tmp_path)
    try:
        # It waits for the lease and changes nothing.
        eventually(lambda: second.get("/readyz") is not None, 60)
        assert "kvasir_operator_leader 1" not in second.get("/metrics")
    finally:
        assert second.stop() == 0
    assert (space.uids(), space.status()) == before


def test_the_operators_figures_are_those_that_alerts_and_dashboard_ask_for(space, operator):
    import re
    space.make()
    space.ready()
    exposed = set(re.findall(r"^(kvasir_operator_[a-z_]+)", operator.get("/metrics"), re.MULTILINE))
    files = ROOT / "charts/kvasir/files"
    text = (files / "rules.yaml").read_text() + (files / "dashboard.json").read_text()
    asked = set(re.findall(r"kvasir_operator_[a-z_]+", text))
    assert asked and asked <= exposed, asked - exposed


def test_nothing_was_forbidden(cluster, operator):
    """Last in this file: the rights of the chart were enough for all of the above."""
    refused = [(e["verb"], e["requestURI"]) for e in operator_process.audited(cluster) if e.get("responseStatus", {}).get("code") == 403]
    # What races with the end of its namespace is refused, whoever asks: that isn't about rights.
    ended = [e["requestURI"] for e in operator_process.audited(cluster) if "being terminated" in e.get("responseStatus", {}).get("message", "")]
    refused = [r for r in refused if r[1] not in ended]
    assert refused == []
