"""Complaints about other operators of which containers are a part, by the numbers of the collection that this operator was designed from."""

import json
import os
import time

import pytest

from cluster import Cluster, Service, condition, wait_until

SMALL = {"maxModelLen": 1024, "kv": {"memory": "64Mi"}, "resources": {"requests": {"cpu": "100m", "memory": "384Mi"}, "limits": {"memory": "1Gi"}}}
LATE = "kvasir.test/late:1"


def uids(pods):
    return {pod["metadata"]["uid"] for pod in pods}


def known(service, kind, status, *reasons):
    found = service.condition(kind)
    return found["status"] == status and found["reason"] in reasons and found


def must_say(service, kind, status, *reasons, seconds=90):
    return wait_until(lambda: known(service, kind, status, *reasons), lambda: json.dumps(service.get().get("status"), indent=1), seconds, pause=0.3)


def test_4_the_manifest_to_begin_with_answers(laptop, client):
    """kserve#4980: the tutorial's service hangs without an answer."""
    assert "Paris" in json.loads(laptop.ask(client).stdout)["answer"]


def test_16_a_name_that_is_not_served_is_an_error_and_no_success(laptop, client):
    """ome#781: every request was a 404, and the job was Completed. A group is Ready only after its engine has made a step itself."""
    done = laptop.stream(client, model="other", tokens=1)
    assert done["failures"] and "404" in done["failures"][0], done


def test_8_a_killed_rank_is_named_at_once_and_its_group_forms_again(laptop, cluster):
    """kserve#3845: the worker is dead, and pod and service stay ready."""
    pod = laptop.engines()[0]
    begin = time.monotonic()
    cluster.run("in", pod["spec"]["nodeName"], "pkill", "-9", "-f", "kvasir engine --config")
    found = must_say(laptop, "EnginesReady", "False", "RankFailed", "CrashLoop", seconds=20)
    Cluster.measured.append(f"complaint 8: named after {time.monotonic() - begin:.1f} s: {found['message']}")
    assert "rank 0" in found["message"] and "exit code 137" in found["message"]
    must_say(laptop, "EnginesReady", "True", "MinimumGroupsAvailable")
    assert uids(laptop.engines()) == {pod["metadata"]["uid"]}


def test_47_another_port_of_the_engine_is_used_end_to_end(laptop, client):
    """aibrix#1691: the gateway goes to the pod's default port."""
    before = uids(laptop.engines())
    laptop.patch({"engine": {"ports": {"grpc": 50777}}})
    wait_until(lambda: (now := uids(laptop.engines())) and not now & before, seconds=120)
    laptop.wait_until_ready()
    assert {port["name"]: port["containerPort"] for port in laptop.engines()[0]["spec"]["containers"][0]["ports"]}["grpc"] == 50777
    assert "Paris" in json.loads(laptop.ask(client).stdout)["answer"]


def test_10_11_and_21_an_image_that_comes_late_replaces_the_only_group_without_a_gap(laptop, client, cluster):
    """kaito#2124: an edited image reaches nobody; kaito#1132: the only pod goes first; lws#746: ranks end while an image is pulled."""
    [old] = laptop.engines()
    before, revision = uids([old]), laptop.get()["status"]["updateRevision"]
    load = laptop.load(client, clients=2)
    try:
        laptop.patch({"engine": {"image": LATE, "imagePullPolicy": "Never"}})
        late = wait_until(lambda: [pod for pod in laptop.pods("engine") if pod["spec"]["containers"][0]["image"] == LATE], "a pod of the new image", 60)
        time.sleep(20)
        assert before <= uids(laptop.engines())
        cluster.tag(image_of(old), LATE)
        wait_until(lambda: (now := uids(laptop.engines())) and not now & before, "the new image alone", 180)
        laptop.wait_until_ready()
    finally:
        counted = load.stop()
    assert counted["failures"] == [] and counted["finished"] > 0
    assert laptop.get()["status"]["updateRevision"] != revision
    pod = laptop.engines()[0]
    # The pod that waited is the one that serves: nothing was given up and made again.
    assert uids([pod]) == uids(late) and pod["status"]["containerStatuses"][0]["restartCount"] == 0
    Cluster.measured.append(f"complaints 10, 11, 21: {counted['finished']} streams, none lost")


def image_of(pod):
    """As containerd calls it."""
    image = pod["spec"]["containers"][0]["image"]
    return image if "/" in image else f"docker.io/library/{image}"


@pytest.mark.rotating
def test_35_long_streams_survive_a_smaller_number_of_groups(laptop, client):
    """dynamo#13559: running requests are cut after five seconds."""
    laptop.patch({"replicas": 2, "disruption": {"drainTimeoutSeconds": 120}})
    wait_until(lambda: len(laptop.engines()) == 2, seconds=120)
    # The time that running requests have is the gateway's too: it is replaced.
    wait_until(lambda: len(laptop.pods("gateway")) == 1, seconds=60)
    laptop.wait_until_ready()
    streams = laptop.start_stream(client, tokens=800, clients=4)
    begin = time.monotonic()
    laptop.patch({"replicas": 1})
    wait_until(lambda: any(group["state"] == "Draining" for group in laptop.get()["status"]["groups"]), "a draining group", 30)
    counted = streams.wait()
    Cluster.measured.append(f"complaint 35: {counted['finished']} streams of 800 tokens ended whole {time.monotonic() - begin:.0f} s after scaling down")
    assert counted["failures"] == [] and counted["finished"] == 4
    assert time.monotonic() - begin > 5
    wait_until(lambda: len(laptop.pods("engine")) == 1, seconds=150)


def test_48_encryption_is_never_switched_off_by_halves(laptop, client):
    """kserve PR 5716, PR 5525: switched off it still serves TLS; without its Secret it answers with errors."""
    laptop.patch({"tls": {"mode": "Off"}})
    found = must_say(laptop, "Accepted", "False", "Unsupported", seconds=30)
    assert "spec.tls.mode" in found["message"]
    assert "Paris" in json.loads(laptop.ask(client).stdout)["answer"]
    laptop.patch({"tls": {"mode": "Provided", "secretName": "given"}})
    found = must_say(laptop, "CertificatesReady", "False", "IssueFailed", seconds=30)
    assert "given" in found["message"]
    assert "Paris" in json.loads(laptop.ask(client).stdout)["answer"]
    laptop.patch({"tls": None})
    laptop.wait_until_ready()
    assert "Paris" in json.loads(laptop.ask(client).stdout)["answer"]


@pytest.mark.rotating
def test_9_an_engine_that_dies_of_memory_is_not_ready(operator):
    """kaito#1493: ready while its pod restarts for want of memory."""
    tiny = {"maxModelLen": 2048, "kv": {"memory": "256Mi"}, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}}
    with Service.applied(operator, "tiny", {"engine": tiny}, wait=0) as service:
        must_say(service, "EnginesReady", "False", "CrashLoop", seconds=120)
        assert condition(service.get(), "Ready")["status"] == "False"
        failures = [group["lastFailure"] for group in service.get()["status"]["groups"] if "lastFailure" in group]
        assert {failure["exitCode"] for failure in failures} == {137}, failures


@pytest.mark.rotating
def test_52_what_the_chart_gives_is_enough_for_a_while(operator, client):
    """production-stack#782: the router loops on its default memory. The gateway here has the defaults of its definition, and so has the operator."""
    spec = {"gateway": {"replicas": 1, "auth": {"mode": "None"}}, "engine": SMALL, "network": {"allowedClients": apps()}}
    with Service.applied(operator, "defaults", spec, wait=0) as service:
        service.wait_until_ready(180)
        load = service.load(client, clients=2)
        time.sleep(600 if os.environ.get("KVASIR_NODES_FULL") else 20)
        counted = load.stop()
        assert counted["failures"] == [] and counted["finished"] > 0
        own = operator.get("-n", "kvasir-system", "pods")["items"]
        for pod in service.gateways() + [pod for pod in own if "deletionTimestamp" not in pod["metadata"]]:
            limit = pod["spec"]["containers"][0]["resources"].get("limits", {}).get("memory", "all memory")
            assert [status["restartCount"] for status in pod["status"]["containerStatuses"]] == [0], pod["metadata"]["name"]
            Cluster.measured.append(f"complaint 52: {pod['metadata']['name']} lives with {limit}")


def apps():
    return [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}]
