"""Complaints about other operators, turned into tests on a real control plane whose nodes are played. The numbers in the names are those of
the list in e2e/README.md, where each complaint's test is found, in whatever suite it is."""

import json
import re
import time

import pytest
from running import ROOT, Operator, Space, is_ready, lost, wait_until

FAST = {"maxGroupRestarts": 2, "windowSeconds": 3600, "backoffInitialSeconds": 1, "backoffMaxSeconds": 2}


@pytest.fixture(scope="module", autouse=True)
def operator(cluster, chart, tmp_path_factory):
    """Looks after the whole cluster."""
    running = Operator(cluster, tmp_path_factory.mktemp("operator"), "--alpha-topology").wait_for("working")
    yield running
    assert running.process.poll() is None, running.tail()
    assert running.stop() == 0


@pytest.fixture(scope="module", autouse=True)
def exhausted(api, operator):
    """A service whose ranks always end. It takes minutes until nothing more is tried: the other tests run meanwhile."""
    space = Space.make(api)
    space.script({"pods": "chat-g*", "exit": {"code": 1, "message": "no"}, "backoffSeconds": 1})
    space.create(restartPolicy={**FAST, "maxGroupRestarts": 1}, topology={"tensor": 2})
    first = wait_until(lambda: len(uids := space.uids()) == 2 and uids)
    yield space, first
    api.delete("Namespace", None, space.name)


def images(space):
    return {container["image"] for pod in space.pods() for container in pod["spec"]["containers"]}


def last_failure(space):
    return next((group["lastFailure"] for group in space.status()["groups"] if "lastFailure" in group), None)


def test_1_a_service_is_ready_without_being_touched_again(cluster, space):
    """kserve#6043: a status that isn't watched."""
    space.create(topology={"tensor": 2, "devicesPerPod": 1})
    cluster.kubectl("-n", space.name, "wait", "--for=condition=Ready", "kis/chat", "--timeout=60s")
    assert len(space.pods()) == 2


@pytest.mark.parametrize("topology", [
    {"tensor": 2}, {"pipeline": 2}, {"data": 2}, {"tensor": 2, "pipeline": 2}, {"pipeline": 2, "data": 2}, {"tensor": 2, "pipeline": 2, "devicesPerPod": 2},
], ids=str)
def test_3_every_topology_becomes_ready(space, topology):
    """kserve#5047: a topology that is accepted and can't be built."""
    space.create(topology=topology)
    space.ready()
    ranks = topology.get("tensor", 1) * topology.get("pipeline", 1) * topology.get("data", 1)
    assert len(space.pods()) == ranks // topology.get("devicesPerPod", 1)


def test_5_a_refused_token_is_said_and_not_tried_for_ever(space):
    """kserve#5326: an endless loop of downloads. The engine's last words say what the hub answered."""
    space.script({"pods": "chat-g*", "exit": {"code": 77, "message": "model: https://huggingface.co/org/model: 401 Unauthorized"}, "backoffSeconds": 1})
    source = {"huggingFace": {"repo": "org/model", "tokenSecretRef": {"name": "keys", "key": "a.yaml"}}}
    space.create(model={"source": source}, network={"modelEgress": [{"cidr": "192.0.2.0/24"}]}, restartPolicy=FAST)
    space.wait("ModelReady", "False", "Unauthorized")
    assert "401" in space.message("ModelReady")


def test_6_groups_with_a_claim_need_no_way_to_the_network(space):
    """kserve#4918: a model that lies on a volume is fetched again. No policy opens a way, no label asks for one, and the service starts."""
    space.create(replicas=2)
    space.ready()
    assert not space.get("NetworkPolicy", "chat-egress-model")
    assert all("kvasir.dev/loading" not in pod["metadata"]["labels"] for pod in space.pods())
    volumes = [volume.get("persistentVolumeClaim") for pod in space.pods() for volume in pod["spec"]["volumes"]]
    assert volumes.count({"claimName": "models", "readOnly": True}) == 2


def test_7_fetched_models_lie_where_the_spec_says(space):
    """kserve#4899: the place of the download can't be chosen."""
    source = {"huggingFace": {"repo": "org/model"}}
    space.create(model={"source": source}, network={"modelEgress": [{"cidr": "192.0.2.0/24"}]}, storage={"cache": {"size": "2Gi", "storageClassName": "fast"}})
    claim = wait_until(lambda: space.get("PersistentVolumeClaim", "cache-chat-g0-0"), "the claim")
    assert (claim["spec"]["storageClassName"], claim["spec"]["resources"]["requests"]["storage"]) == ("fast", "2Gi")


def test_8_a_rank_that_is_killed_is_noticed_named_and_its_group_forms_again(space):
    """kserve#3845: a worker dies, pod and service stay ready."""
    space.create(topology={"tensor": 2})
    space.ready()
    space.script({"pods": "chat-g*-1", "exit": {"code": 9, "message": "killed", "times": 1}, "backoffSeconds": 2, "readyAfterSeconds": 2})
    space.wait("Ready", "False", seconds=10)
    failure = wait_until(lambda: last_failure(space))
    assert (failure["rank"], failure["exitCode"]) == (1, 9)
    space.ready()


def test_9_a_group_that_dies_of_memory_is_not_ready_and_says_so(space):
    """kaito#1493: ready though a pod was killed for its memory."""
    space.create(restartPolicy=FAST)
    space.ready()
    space.script({"pods": "chat-g*", "exit": {"code": 137, "reason": "OOMKilled", "afterSeconds": 1}})
    space.wait("EnginesReady", "False", "CrashLoop")
    assert last_failure(space)["exitCode"] == 137
    assert space.condition("Ready")[0] == "False"
    told = wait_until(space.events, "an event")
    assert any("exit code 137" in event["note"] and event["type"] == "Warning" and event["regarding"]["name"] == "chat" for event in told)


def test_10_an_edited_image_reaches_the_pods(space):
    """kaito#2124: the edit is stored and nothing happens."""
    space.create(engine={"image": "engine:1"})
    space.ready()
    before = space.status()["updateRevision"]
    space.change({"engine": {"image": "engine:2"}})
    wait_until(lambda: images(space) == {"engine:2"}, "the image", 120)
    space.ready()
    assert space.status()["updateRevision"] != before


def test_11_and_24_a_single_group_is_replaced_only_when_its_successor_serves(space):
    """kaito#1132, lws#688: the only pod goes first."""
    space.create(engine={"image": "engine:1"})
    space.ready()
    space.script({"images": "engine:2", "readyAfterSeconds": 3})
    space.change({"engine": {"image": "engine:2"}})

    def replaced():
        ready = [pod for pod in space.pods() if is_ready(pod)]
        assert ready
        return images(space) == {"engine:2"}

    wait_until(replaced, "the new image alone", 120)


def test_12_counters_follow_the_groups_through_scaling(cluster, space):
    """dynamo#10527: a counter that is added up drifts."""
    space.create()
    space.ready()
    for replicas in (5, 1):
        cluster.kubectl("-n", space.name, "scale", "kis/chat", f"--replicas={replicas}")

        def counted(replicas=replicas):
            status = space.status()
            return len(space.groups()) == replicas and [status[key] for key in ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas")] == [replicas] * 4

        wait_until(counted, lambda: space.status(), 120)
        space.ready()


def test_17_an_engine_that_cannot_load_its_model_is_quoted(space):
    """ome#546: it restarts for ever and the status says nothing."""
    space.script({"pods": "chat-g*", "exit": {"code": 66, "message": "model: config.json names the unknown architecture mamba"}, "backoffSeconds": 1})
    space.create(restartPolicy=FAST)
    space.wait("ModelReady", "False")
    assert "unknown architecture mamba" in space.message("ModelReady")
    assert space.condition("Ready")[0] != "True"


def test_19_a_leader_that_is_deleted_once_is_made_once(api, space):
    """lws#804: recreated twice."""
    space.create(topology={"tensor": 2})
    space.ready()
    before = space.uids()
    seen = set(before.values())
    api.delete("Pod", space.name, "chat-g0-0")
    end = time.monotonic() + 8
    while time.monotonic() < end:
        seen |= set(space.uids().values())
        time.sleep(0.05)
    space.ready()
    after = space.uids()
    assert after["chat-g0-1"] == before["chat-g0-1"]
    assert len(seen) == 3 and after["chat-g0-0"] != before["chat-g0-0"]
    assert space.status()["groups"][0]["restarts"] == 0


def test_21_ranks_wait_for_a_leader_whose_image_is_pulled(space):
    """lws#746: the leader's name can't be resolved while its image is pulled, and the others end."""
    space.script({"pods": "chat-g0-0", "startAfterSeconds": 5})
    space.create(topology={"tensor": 2})
    worker = wait_until(lambda: space.get("Pod", "chat-g0-1"), "the second rank")
    space.ready()
    assert space.get("Pod", "chat-g0-1")["metadata"]["uid"] == worker["metadata"]["uid"]
    # The name is there before the pod is ready.
    assert space.get("Service", "chat-ranks")["spec"]["publishNotReadyAddresses"] is True


def test_22_no_request_goes_to_a_leader_that_is_not_ready(api, space):
    """lws#442: the Service for discovery carries requests too."""
    space.script({"pods": "chat-g1-0", "neverReady": True})
    space.create(replicas=2, topology={"tensor": 2})
    space.wait("EnginesReady", "True")

    def endpoints(name):
        slices = api.request("GET", f"/apis/discovery.k8s.io/v1/namespaces/{space.name}/endpointslices?labelSelector=kubernetes.io/service-name={name}")["items"]
        return {e["targetRef"]["name"] for s in slices for e in s.get("endpoints") or [] if e["conditions"]["ready"]}

    wait_until(lambda: endpoints("chat-ranks") == {"chat-g0-0", "chat-g0-1", "chat-g1-0", "chat-g1-1"}, lambda: endpoints("chat-ranks"))
    wait_until(lambda: endpoints("chat-engines") == {"chat-g0-0"}, lambda: endpoints("chat-engines"))


def test_23_a_good_image_heals_a_bad_one_without_help(space):
    """lws#567: the fix waits for pods that never become ready."""
    space.script({"images": "engine:bad", "pull": "not found"})
    space.create(engine={"image": "engine:1"})
    space.ready()
    space.change({"engine": {"image": "engine:bad"}})
    wait_until(lambda: "engine:bad" in images(space))
    space.change({"engine": {"image": "engine:3"}})
    wait_until(lambda: images(space) == {"engine:3"}, "the good image", 120)
    space.ready()


def test_25_a_lost_node_costs_one_group_and_another_takes_its_place(cluster, space):
    """lws#508: pods that end for ever on a node that is gone."""
    space.create()
    space.ready()
    pod = space.pods()[0]
    node = pod["spec"]["nodeName"]
    with lost(cluster, node):
        def replaced():
            ready = [group for group in space.status()["groups"] if group["state"] == "Ready"]
            return ready and all(group["leaderPod"] != pod["metadata"]["name"] for group in ready)

        wait_until(replaced, lambda: space.status(), 240)
    space.ready()


def test_a_node_that_is_declared_out_of_service_keeps_no_pod_for_ever(cluster, space):
    """What Kubernetes asks of people whose node is off for good: the taint, and then everything that was there goes."""
    space.create()
    space.ready()
    pod = space.pods()[0]
    node = pod["spec"]["nodeName"]
    with lost(cluster, node):
        try:
            wait_until(lambda: not is_ready(space.api.get("Node", None, node)), "the node doesn't answer", 90)
            cluster.kubectl("taint", "node", node, "node.kubernetes.io/out-of-service=:NoExecute")
            wait_until(lambda: any(group["id"] != 0 for group in space.status()["groups"]), lambda: space.status(), 20)
            # The garbage collector of pods looks every 20 seconds; the group goes when another one serves.
            wait_until(lambda: not space.get("Pod", pod["metadata"]["name"]), "the pod goes", 60)
            wait_until(lambda: not space.get("StatefulSet", "chat-g0"), "its group goes", 60)
            space.ready()
            assert all(other["spec"]["nodeName"] != node for other in space.pods())
        finally:
            cluster.kubectl("taint", "node", node, "node.kubernetes.io/out-of-service-", check=False)
    space.ready()


def test_a_cordoned_node_is_left_by_its_groups_one_after_the_other(cluster, space):
    space.create()
    space.ready()
    node = space.pods()[0]["spec"]["nodeName"]
    cluster.kubectl("cordon", node)
    try:
        wait_until(lambda: (pods := space.pods()) and all(pod["spec"].get("nodeName") not in (None, node) for pod in pods), lambda: space.status(), 180)
        space.ready()
    finally:
        cluster.kubectl("uncordon", node)


def test_32_an_edited_number_of_pods_is_set_back_and_said(api, space):
    """dynamo#4420: somebody scales a child, and nobody can scale any more."""
    space.create()
    space.ready()
    api.patch("StatefulSet", space.name, "chat-g0", {"spec": {"replicas": 3}})
    wait_until(lambda: space.get("StatefulSet", "chat-g0")["spec"]["replicas"] == 1, "the number is set back")
    wait_until(lambda: any("StatefulSet chat-g0" in event["note"] for event in space.events()), lambda: [event["note"] for event in space.events()])
    space.change({"replicas": 2})
    wait_until(lambda: space.status().get("readyReplicas") == 2, lambda: space.status())


def test_44_the_selector_of_the_scale_is_there_from_the_first_status(api, cluster, space):
    """kthena#799: a scale without a selector is refused by autoscalers."""
    stream = api.request("GET", api.path("InferenceService", space.name))["metadata"]["resourceVersion"]
    space.create()
    wait_until(space.status, "a status")
    path = f"{api.path('InferenceService', space.name)}?watch=true&resourceVersion={stream}&timeoutSeconds=1"
    events = [json.loads(line)["object"] for line in cluster.kubectl("get", "--raw", path).stdout.splitlines()]
    first = next(event["status"] for event in events if event.get("status"))
    assert first["selector"] == "kvasir.dev/service=chat,kvasir.dev/component=engine,apps.kubernetes.io/pod-index=0"
    scale = json.loads(cluster.kubectl("get", "--raw", f"/apis/kvasir.dev/v1alpha1/namespaces/{space.name}/inferenceservices/chat/scale").stdout)
    assert scale["status"]["selector"] == first["selector"]


def test_47_another_port_of_the_engine_is_the_same_everywhere(space):
    """aibrix#1691: the gateway goes to the pod's default port."""
    space.create(engine={"ports": {"grpc": 6001}})
    space.ready()
    container = space.pods()[0]["spec"]["containers"][0]
    assert 6001 in {port["containerPort"] for port in container["ports"]}
    assert [port["targetPort"] for port in space.get("Service", "chat-engines")["spec"]["ports"]] == [6001]
    policy = space.get("NetworkPolicy", "chat-from-gateway")["spec"]["ingress"][0]
    assert [port["port"] for port in policy["ports"]] == [6001]
    assert ":6001" in space.get("ConfigMap", "chat-gateway-config")["data"]["gateway.yaml"] or "6001" in json.dumps(space.get("ConfigMap", "chat-gateway-config")["data"])


def test_a_model_in_an_image_is_copied_in_a_restricted_namespace(space):
    """Volumes of images are missing in clusters before 1.35; the containers that copy must be admitted where privileges aren't."""
    space.api.patch("Namespace", None, space.name, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    reference = f"registry.example/model@sha256:{'a' * 64}"
    space.create(model={"source": {"image": {"reference": reference, "path": "weights"}}})
    space.ready()
    pod = space.pods()[0]["spec"]
    assert [container["name"] for container in pod["initContainers"]] == ["copier", "model"]
    assert pod["initContainers"][1]["image"] == reference
    assert "/weights" in pod["initContainers"][1]["args"]
    assert not any("image" in volume for volume in pod["volumes"])


def test_suspending_and_waking_keeps_the_service(space):
    space.create()
    space.ready()
    space.change({"suspend": True})
    space.wait("Ready", "False", "Suspended")
    wait_until(lambda: not space.pods(), "no pods")
    space.change({"suspend": False})
    space.ready()


def test_figures_are_those_that_alerts_and_dashboard_ask_for(operator, space):
    space.create()
    space.ready()
    exposed = set(re.findall(r"^(kvasir_operator_[a-z_]+)", operator.ask("/metrics")[1], re.MULTILINE))
    files = ROOT / "charts/kvasir/files"
    asked = set(re.findall(r"kvasir_operator_[a-z_]+", (files / "rules.yaml").read_text() + (files / "dashboard.json").read_text()))
    assert asked and asked <= exposed, asked - exposed


def test_20_a_rank_that_always_ends_is_restarted_only_so_often(exhausted):
    """lws#1048: thirty recreations in ninety seconds."""
    space, first = exhausted
    # A group has two minutes to form again by itself, before and after its one restart.
    space.wait("Degraded", "True", "GroupRestartBudgetExhausted", seconds=400)
    last = space.uids()
    assert not set(first.values()) & set(last.values())
    group = space.status()["groups"][0]
    assert (group["restarts"], group["lastFailure"]["exitCode"], group["lastFailure"]["message"]) == (1, 1, "no")
    time.sleep(3)
    assert space.uids() == last


def test_pods_that_a_quota_forbids_are_said_and_made_when_it_is_raised(api, space):
    """A StatefulSet says in its events alone why it has no pods."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": space.name}, "spec": {"hard": {"count/pods": "0"}}}
    path = f"/api/v1/namespaces/{space.name}/resourcequotas"
    api.request("POST", path, quota)
    wait_until(lambda: api.request("GET", f"{path}/few").get("status", {}).get("hard"), "the quota is in force")
    space.create()
    space.wait("Accepted", "False", "QuotaExceeded")
    assert "exceeded quota: few" in space.message("Accepted")
    assert space.condition("EnginesReady") == ("False", "InsufficientCapacity")
    api.request("DELETE", f"{path}/few")
    space.ready(seconds=180)
    assert space.condition("Accepted") == ("True", "Valid")
