"""The fake kubelet plays what tests of the operator rely on: the scheduler and the controllers believe it."""

import json

from conftest import eventually

POD = {"containers": [{"name": "engine", "image": "engine:1"}]}


def workload(kind, name, namespace, replicas=1, pod=None, **spec):
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod or POD}, **spec},
    }


def engine(pod):
    statuses = pod["status"].get("containerStatuses", []) if pod else []
    return statuses[0] if statuses else {"state": {}, "ready": False}


def is_ready(pod):
    conditions = pod["status"].get("conditions", []) if pod else []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def test_pods_are_bound_get_addresses_and_become_ready(cluster, namespace):
    cluster.apply(workload("Deployment", "web", namespace, replicas=4))
    eventually(lambda: cluster.get("-n", namespace, "deployment", "web")["status"].get("availableReplicas") == 4)
    pods = cluster.get("-n", namespace, "pods")["items"]
    assert len({pod["status"]["podIP"] for pod in pods}) == 4
    assert {pod["spec"]["nodeName"] for pod in pods} <= {"fake-0", "fake-1", "fake-2"}


def test_a_rule_keeps_an_image_from_being_pulled_until_it_is_changed(cluster, namespace):
    cluster.script(namespace, {"images": "*:1", "pull": "unauthorized"})
    cluster.apply(workload("StatefulSet", "set", namespace))
    waiting = eventually(lambda: engine(cluster.get("-n", namespace, "pod", "set-0"))["state"].get("waiting"))
    assert waiting == {"reason": "ImagePullBackOff", "message": "unauthorized"}
    cluster.script(namespace)
    eventually(lambda: is_ready(cluster.get("-n", namespace, "pod", "set-0")))


def test_a_running_container_can_be_ended_with_code_reason_and_last_words(cluster, namespace):
    cluster.apply(workload("StatefulSet", "set", namespace))
    eventually(lambda: is_ready(cluster.get("-n", namespace, "pod", "set-0")))
    cluster.script(namespace, {"pods": "set-*", "exit": {"code": 137, "reason": "OOMKilled", "message": "bye", "times": 1}, "backoffSeconds": 1})
    status = eventually(lambda: (s := engine(cluster.get("-n", namespace, "pod", "set-0"))).get("restartCount") == 1 and s)
    ended = status["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (137, "OOMKilled", "bye")
    eventually(lambda: is_ready(cluster.get("-n", namespace, "pod", "set-0")))


def test_a_pod_waits_for_the_secret_it_mounts(cluster, namespace):
    pod = {**POD, "volumes": [{"name": "cert", "secret": {"secretName": "cert"}}]}
    cluster.apply(workload("StatefulSet", "set", namespace, pod=pod))
    waiting = eventually(lambda: engine(cluster.get("-n", namespace, "pod", "set-0"))["state"].get("waiting"))
    assert "cert" in waiting["message"]
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert", "namespace": namespace}})
    eventually(lambda: is_ready(cluster.get("-n", namespace, "pod", "set-0")))


def test_deleted_pods_end_and_come_back_with_other_uids(cluster, namespace):
    cluster.apply(workload("StatefulSet", "set", namespace))
    before = eventually(lambda: (p := cluster.get("-n", namespace, "pod", "set-0")) and is_ready(p) and p)
    cluster.kubectl("-n", namespace, "delete", "pod", "set-0", "--wait=false")
    after = eventually(lambda: (p := cluster.get("-n", namespace, "pod", "set-0")) and is_ready(p) and p["metadata"]["uid"] != before["metadata"]["uid"] and p)
    assert after["status"]["podIP"] != before["status"]["podIP"]


def test_claims_are_bound_and_a_pod_with_one_starts(cluster, namespace):
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    cluster.apply(workload("StatefulSet", "set", namespace, volumeClaimTemplates=[claim]))
    eventually(lambda: is_ready(cluster.get("-n", namespace, "pod", "set-0")))


def test_a_lost_node_falls_silent_and_its_pods_stay(cluster, namespace):
    cluster.apply(workload("StatefulSet", "set", namespace))
    pod = eventually(lambda: (p := cluster.get("-n", namespace, "pod", "set-0")) and is_ready(p) and p)
    node = pod["spec"]["nodeName"]
    cluster.kubectl("annotate", "node", node, "fake-kubelet.kvasir.dev/lost=true")
    try:
        eventually(lambda: not is_ready(cluster.get("node", node)), 90)
        cluster.kubectl("-n", namespace, "delete", "pod", "set-0", "--wait=false")
        assert cluster.get("-n", namespace, "pod", "set-0")["metadata"]["uid"] == pod["metadata"]["uid"]
    finally:
        cluster.kubectl("annotate", "node", node, "fake-kubelet.kvasir.dev/lost-")
    eventually(lambda: is_ready(cluster.get("node", node)))
    eventually(lambda: (p := cluster.get("-n", namespace, "pod", "set-0")) and p["metadata"]["uid"] != pod["metadata"]["uid"])


def test_a_restarted_fake_kubelet_goes_on_where_it_was(cluster, namespace):
    cluster.apply(workload("StatefulSet", "set", namespace, replicas=2))
    eventually(lambda: cluster.get("-n", namespace, "statefulset", "set")["status"].get("readyReplicas") == 2)
    before = {p["metadata"]["name"]: (p["metadata"]["uid"], p["status"]["podIP"]) for p in cluster.get("-n", namespace, "pods")["items"]}
    cluster.restart("fake-kubelet")
    cluster.kubectl("-n", namespace, "scale", "statefulset/set", "--replicas=3")
    eventually(lambda: cluster.get("-n", namespace, "statefulset", "set")["status"].get("readyReplicas") == 3)
    after = {p["metadata"]["name"]: (p["metadata"]["uid"], p["status"]["podIP"]) for p in cluster.get("-n", namespace, "pods")["items"]}
    assert {name: after[name] for name in before} == before
    assert after["set-2"][1] not in {address for _, address in before.values()}, json.dumps(after)
