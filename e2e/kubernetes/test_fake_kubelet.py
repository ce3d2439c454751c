"""The fake kubelet plays what tests of the operator rely on: the scheduler and the controllers believe it."""

from running import is_ready, lost, typed, wait_until

POD = {"containers": [{"name": "engine", "image": "engine:1"}]}


def workload(kind, name, space, replicas=1, pod=None, **spec):
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod or POD}
    return {**typed(kind), "metadata": {"name": name, "namespace": space.name}, "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **spec}}


def engine(pod):
    statuses = pod["status"].get("containerStatuses", []) if pod else []
    return statuses[0] if statuses else {"state": {}, "ready": False}


def ready_pod(space, but=None):
    """The first pod of a set once it is ready, and not the one with the uid `but`."""
    def there():
        pod = space.get("Pod", "set-0")
        return pod if is_ready(pod) and pod["metadata"]["uid"] != but else None

    return wait_until(there, "set-0 is ready", 90)


def addresses(space):
    return {pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["podIP"]) for pod in space.list("Pod")}


def test_pods_are_bound_get_addresses_and_become_ready(api, space):
    api.apply(workload("Deployment", "web", space, replicas=4))
    wait_until(lambda: space.get("Deployment", "web")["status"].get("availableReplicas") == 4)
    pods = space.list("Pod")
    assert len({pod["status"]["podIP"] for pod in pods}) == 4
    assert {pod["spec"]["nodeName"] for pod in pods} <= {"fake-0", "fake-1", "fake-2"}


def test_a_rule_keeps_an_image_from_being_pulled_until_it_is_changed(api, space):
    space.script({"images": "*:1", "pull": "unauthorized"})
    api.apply(workload("StatefulSet", "set", space))
    waiting = wait_until(lambda: engine(space.get("Pod", "set-0"))["state"].get("waiting"))
    assert waiting == {"reason": "ImagePullBackOff", "message": "unauthorized"}
    space.script()
    ready_pod(space)


def test_a_running_container_can_be_ended_with_code_reason_and_last_words(api, space):
    api.apply(workload("StatefulSet", "set", space))
    ready_pod(space)
    space.script({"pods": "set-*", "exit": {"code": 137, "reason": "OOMKilled", "message": "bye", "times": 1}, "backoffSeconds": 1})
    status = wait_until(lambda: (s := engine(space.get("Pod", "set-0"))).get("restartCount") == 1 and s)
    ended = status["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (137, "OOMKilled", "bye")
    ready_pod(space)


def test_a_pod_waits_for_the_secret_it_mounts(api, space):
    pod = {**POD, "volumes": [{"name": "cert", "secret": {"secretName": "cert"}}]}
    api.apply(workload("StatefulSet", "set", space, pod=pod))
    waiting = wait_until(lambda: engine(space.get("Pod", "set-0"))["state"].get("waiting"))
    assert "cert" in waiting["message"]
    api.create("Secret", space.name, {"metadata": {"name": "cert"}})
    ready_pod(space)


def test_deleted_pods_end_and_come_back_with_other_uids(api, space):
    api.apply(workload("StatefulSet", "set", space))
    before = ready_pod(space)
    api.delete("Pod", space.name, "set-0")
    after = ready_pod(space, but=before["metadata"]["uid"])
    assert after["status"]["podIP"] != before["status"]["podIP"]


def test_claims_are_bound_and_a_pod_with_one_starts(api, space):
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    api.apply(workload("StatefulSet", "set", space, volumeClaimTemplates=[claim]))
    ready_pod(space)


def test_a_lost_node_falls_silent_and_its_pods_stay(cluster, api, space):
    api.apply(workload("StatefulSet", "set", space))
    pod = ready_pod(space)
    node = pod["spec"]["nodeName"]
    with lost(cluster, node):
        wait_until(lambda: not is_ready(api.get("Node", None, node)), "the node isn't ready", 90)
        api.delete("Pod", space.name, "set-0")
        assert space.get("Pod", "set-0")["metadata"]["uid"] == pod["metadata"]["uid"]
    wait_until(lambda: is_ready(api.get("Node", None, node)))
    ready_pod(space, but=pod["metadata"]["uid"])


def test_a_restarted_fake_kubelet_goes_on_where_it_was(cluster, api, space):
    api.apply(workload("StatefulSet", "set", space, replicas=2))
    wait_until(lambda: space.get("StatefulSet", "set")["status"].get("readyReplicas") == 2)
    before = addresses(space)
    cluster.restart("fake-kubelet")
    api.patch("StatefulSet", space.name, "set", {"spec": {"replicas": 3}})
    wait_until(lambda: space.get("StatefulSet", "set")["status"].get("readyReplicas") == 3)
    after = addresses(space)
    assert {name: after[name] for name in before} == before
    assert after["set-2"][1] not in {address for _, address in before.values()}, after
