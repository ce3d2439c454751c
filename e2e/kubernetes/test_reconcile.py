"""What the operator makes, keeps, reports and leaves alone. One operator and mostly one service, which is whole again after each test."""

import contextlib
import re
import time

import pytest
from running import CHILDREN, Operator, Refused, Space, is_ready, typed, wait_until

CONDITIONS = "Ready Accepted ModelReady EnginesReady GatewayReady NetworkSecured CertificatesReady AutoscalingActive Progressing Degraded".split()


@pytest.fixture(scope="module", autouse=True)
def operator(cluster, chart, tmp_path_factory):
    """Nothing here may wait for its regular rounds."""
    running = Operator(cluster, tmp_path_factory.mktemp("operator"), "--resync=3600").wait_for("working")
    yield running
    assert running.process.poll() is None, running.tail()
    assert running.stop() == 0


@pytest.fixture(scope="module")
def kept(api, operator):
    """A service with an entrance from outside, and everything about it ready."""
    space = Space.make(api)
    space.create(gateway={"replicas": 1, "ingress": {"host": "chat.example.com"}, "auth": {"apiKeySecrets": [{"name": "keys"}]}})
    space.ready()
    yield space
    api.delete("Namespace", None, space.name)


def uids(children):
    return {key: item["metadata"]["uid"] for key, item in children.items()}


def test_a_service_gets_all_its_children_and_every_condition(kept):
    children = kept.at_rest()
    assert {kind for kind, _ in children} == set(CHILDREN)
    assert [condition["type"] for condition in kept.status()["conditions"]] == CONDITIONS
    assert kept.condition("Accepted") == ("True", "Valid")
    for item in children.values():
        owner = item["metadata"]["ownerReferences"][0]
        assert owner["controller"] is True and owner["kind"] == "InferenceService"


@pytest.mark.parametrize("component, condition", [("engine", "EnginesReady"), ("gateway", "GatewayReady")])
def test_readiness_of_pods_reaches_the_status_within_five_seconds(kept, component, condition):
    kept.ready()
    generation = kept.service()["metadata"]["generation"]
    kept.script({"pods": kept.pods(component)[0]["metadata"]["name"], "neverReady": True})
    try:
        # A group that was ready and isn't is starting again as far as anybody knows: Unknown, until it takes too long.
        for each in (condition, "Ready"):
            wait_until(lambda each=each: kept.condition(each)[0] != "True", each, 5)
    finally:
        kept.script()
    for each in (condition, "Ready"):
        kept.wait(each, "True", seconds=5)
    assert kept.service()["metadata"]["generation"] == generation


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_deleted_child_comes_back_and_nothing_else_changes(api, kept, kind):
    kept.ready()
    before = kept.at_rest()
    groups = [name for (each, name) in before if each == "StatefulSet"]
    for (_, name), item in [(key, item) for key, item in before.items() if key[0] == kind]:
        api.delete(kind, kept.name, name)
        if kind == "StatefulSet":
            # An id rests before it is used again: the group comes back under another one.
            wait_until(lambda: [g for g in kept.groups() if g["metadata"]["name"] not in groups], "a replacement group")
            continue

        def back(name=name, item=item):
            found = kept.get(kind, name)
            return found and found["metadata"]["uid"] != item["metadata"]["uid"] and not found["metadata"].get("deletionTimestamp")

        wait_until(back, f"{kind} {name}")
    after = kept.at_rest()
    others = {key for key in before if key[0] != kind and not (kind == "StatefulSet" and key[1].startswith(tuple(groups)))}
    assert uids({key: before[key] for key in others}) == uids({key: after.get(key, {"metadata": {"uid": None}}) for key in others})
    kept.ready()


# What somebody changes, and that it can't be, where the API server refuses it.
EDITS = {
    "ServiceAccount": {"automountServiceAccountToken": True},
    "ConfigMap": {"data": {"engine.yaml": "{}", "gateway.yaml": "{}", "stray": "x"}},
    "Secret": {"data": {"ca.crt": "eA==", "salt": "eA==", "1.crt": "eA=="}},
    "Service": {"spec": {"publishNotReadyAddresses": True, "sessionAffinity": "ClientIP"}},
    "Role": {"rules": []},
    "RoleBinding": {"subjects": []},
    "NetworkPolicy": {"spec": {"policyTypes": ["Ingress"], "ingress": [{}]}},
    "Ingress": {"spec": {"rules": [{"host": "evil.example.com"}]}},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": None, "minAvailable": 3}},
    # Its data is immutable, and its number says no more than which of two is older.
    "ControllerRevision": {"metadata": {"labels": {"kvasir.dev/revision": "other"}}},
    "StatefulSet": {"spec": {"replicas": 7}},
    "Deployment": {"spec": {"replicas": 7}},
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_an_edited_child_is_set_back_whatever_was_edited(api, kept, kind):
    kept.ready()
    for (_, name), before in [(key, item) for key, item in kept.at_rest().items() if key[0] == kind]:
        if kind == "Secret" and name == "chat-gateway":
            # Another seed of tenants' salts is as good; it must be one.
            continue
        # Without its label it is invisible to watches by label, and with another service's it is that one's there. Secrets are read by name,
        # so theirs decide nothing.
        relabelled = [{"metadata": {"labels": labels}} for labels in ({"app.kubernetes.io/managed-by": "somebody"}, {"kvasir.dev/service": "other"})]
        edits = [EDITS[kind]] + relabelled * (kind != "Secret")
        for edit in edits:
            with contextlib.suppress(Refused):
                api.patch(kind, kept.name, name, edit)

            def same(name=name, before=before):
                found = kept.get(kind, name)
                return found and essence(kind, found) == essence(kind, before)

            wait_until(same, lambda name=name, before=before: f"{name}: {essence(kind, kept.get(kind, name))} is not {essence(kind, before)}")
        assert kept.get(kind, name)["metadata"]["uid"] == before["metadata"]["uid"]
    kept.ready()


def essence(kind, item):
    """What only an edit changes."""
    left = {key: value for key, value in item.items() if key not in ("apiVersion", "kind", "metadata", "status")}
    if kind == "Secret":
        # Certificates are made anew; what they are for stays. An authority whose key is lost is followed by the next one, and until all trust
        # that one its standing is kept.
        left["data"] = sorted(re.sub(r"^[0-9]+\.", "N.", key) for key in item["data"] if key != "standings")
    return left, item["metadata"]["labels"]


def test_annotations_and_labels_of_others_stay(api, kept):
    api.patch("Service", kept.name, "chat-gateway", {"metadata": {"annotations": {"other/thing": "1"}, "labels": {"other": "1"}}})
    kept.change({"gateway": {"service": {"annotations": {"a": "b"}}}})
    wait_until(lambda: kept.get("Service", "chat-gateway")["metadata"].get("annotations", {}).get("a") == "b", "the annotation")
    metadata = kept.get("Service", "chat-gateway")["metadata"]
    assert metadata["annotations"]["other/thing"] == "1" and metadata["labels"]["other"] == "1"


def test_what_the_spec_no_longer_says_is_taken_away_from_children_that_were_created(space):
    """Fields of a creation outlive an apply that leaves them out, unless their owner is changed first."""
    space.create(gateway={"replicas": 1, "service": {"annotations": {"a": "b"}}})
    space.at_rest()
    assert space.get("Service", "chat-gateway")["metadata"]["annotations"]["a"] == "b"
    space.change({"gateway": {"service": {"annotations": None}}})
    wait_until(lambda: "a" not in space.get("Service", "chat-gateway")["metadata"]["annotations"], "the annotation goes")
    space.change({"gateway": {"enabled": False}})
    wait_until(lambda: not space.get("Deployment", "chat-gateway") and not space.get("Service", "chat-gateway"), "the gateway goes")
    assert space.groups()


def test_an_object_of_somebody_else_is_reported_and_left_alone(api, space):
    foreign = api.create("ConfigMap", space.name, {"metadata": {"name": "chat-gateway-config"}, "data": {"mine": "1"}})
    space.create()
    space.wait("Accepted", "False", "NameCollision")
    assert "chat-gateway-config" in space.message("Accepted")
    time.sleep(4)
    assert space.get("ConfigMap", "chat-gateway-config")["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
    api.delete("ConfigMap", space.name, "chat-gateway-config")
    space.wait("Accepted", "True", "Valid")


def test_a_foreign_pod_with_the_name_of_an_engines_is_named(api, space):
    """The StatefulSet tries again for ever and tells nobody."""
    api.create("Pod", space.name, {"metadata": {"name": "chat-g0-0"}, "spec": {"containers": [{"name": "x", "image": "x"}]}})
    space.create()
    space.wait("EnginesReady", "False", "NameCollision")
    assert "pod chat-g0-0 exists and belongs to somebody else (its owner: nobody)" in space.message("EnginesReady")
    api.delete("Pod", space.name, "chat-g0-0")
    space.ready()


def test_pods_of_others_with_our_labels_are_named_and_neither_counted_nor_changed(api, space):
    space.create()
    space.ready()
    space.at_rest()
    for component, name in [("engine", "aa-0"), ("gateway", "aa-gateway")]:
        labels = {**space.pods(component)[0]["metadata"]["labels"], "kvasir.dev/loading": "true"}
        # With this one the ReplicaSet would make the pod its own.
        labels.pop("pod-template-hash", None)
        api.create("Pod", space.name, {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "x", "image": "x"}]}})
    space.wait("Degraded", "True", "ForeignPods")
    said = "pods aa-0 (of nobody) and aa-gateway (of nobody) carry this service's labels"
    assert space.message("Degraded").startswith(said)
    wait_until(lambda: any(said in event["note"] for event in space.events()), lambda: [e["note"] for e in space.events()])
    strangers = ("aa-0", "aa-gateway")
    wait_until(lambda: all(is_ready(space.get("Pod", name)) for name in strangers), "the strangers are ready")
    space.at_rest()
    versions = [space.get("Pod", name)["metadata"]["resourceVersion"] for name in strangers]
    space.script({"pods": "chat-*", "neverReady": True})
    space.wait("GatewayReady", "False", "DeploymentUnavailable")
    wait_until(lambda: space.condition("EnginesReady")[0] != "True", lambda: space.status())
    assert space.status()["groups"][0].get("readyPods", 0) == 0
    space.script()
    space.ready()
    assert [space.get("Pod", name)["metadata"]["resourceVersion"] for name in strangers] == versions
    for name in strangers:
        api.delete("Pod", space.name, name)
    space.wait("Degraded", "False", "AsExpected")


def test_a_pod_that_is_held_back_by_scheduling_gates_is_named(api, space):
    space.create(podOverrides={"spec": {"schedulingGates": [{"name": "queue.example/turn"}]}})
    space.wait("EnginesReady", "False", "SchedulingGated")
    assert "pod chat-g0-0 has scheduling gates (queue.example/turn)" in space.message("EnginesReady")
    api.patch("Pod", space.name, "chat-g0-0", {"spec": {"schedulingGates": None}})
    space.ready()


FOREIGN = {"tls.crt": "mine", "tls.key": "mine", "salt": "mine"}


@pytest.mark.parametrize(
    ("name", "data"),
    [("chat-gateway-salt", FOREIGN), ("chat-gateway-salt", {"salt": "x" * 32}), ("chat-gateway-tls", FOREIGN), ("chat-g0-certificate", FOREIGN)],
    ids=["salt", "usable-salt", "gateway", "group"],
)
def test_a_foreign_secret_with_the_name_of_one_that_pods_mount_is_named_and_mounted_by_nobody(api, space, name, data):
    foreign = api.create("Secret", space.name, {"metadata": {"name": name}, "stringData": data})
    space.create()
    space.wait("Accepted", "False", "NameCollision")
    assert f"Secret {name}" in space.message("Accepted")
    time.sleep(3)
    mounted = [volume.get("secret", {}).get("secretName") for pod in space.list("Pod") for volume in pod["spec"]["volumes"]]
    assert name not in mounted
    assert space.get("Secret", name)["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
    api.delete("Secret", space.name, name)
    space.ready()


def test_objects_that_only_carry_our_label_are_never_deleted(api, kept):
    """kserve#6113: everything with the label was taken for an orphan."""
    labels = {"app.kubernetes.io/managed-by": "kvasir", "kvasir.dev/service": "chat"}
    api.create("ConfigMap", kept.name, {"metadata": {"name": "stray", "labels": labels}, "data": {}})
    kept.change({"gateway": {"service": {"annotations": {"seen": "yes"}}}})
    wait_until(lambda: kept.get("Service", "chat-gateway")["metadata"]["annotations"].get("seen"), "a round")
    time.sleep(4)
    assert kept.get("ConfigMap", "stray")


def test_a_service_that_is_deleted_with_its_children_first_gets_none_back(cluster, space):
    space.create()
    space.ready()
    cluster.kubectl("-n", space.name, "delete", "kis/chat", "--cascade=foreground", "--timeout=60s")
    assert not space.children()


def test_deleting_a_service_leaves_nothing(cluster, space):
    space.create()
    space.ready()
    cluster.kubectl("-n", space.name, "delete", "kis/chat", "--timeout=60s")
    left = [*CHILDREN, "Pod"]
    wait_until(lambda: not any(space.list(kind, "kvasir.dev/service=chat") for kind in left), "nothing is left", 90)


def test_a_status_that_somebody_spoils_is_written_again(api, kept):
    kept.ready()
    before = kept.status()
    api.patch("InferenceService", kept.name, "chat", {"status": {"replicas": 99, "selector": "", "groups": [], "conditions": []}}, "status")
    wait_until(lambda: kept.condition("Ready") == ("True", "AllComponentsReady"), "Ready")
    after = kept.status()
    assert (after["replicas"], after["selector"]) == (1, before["selector"])
    assert [group["id"] for group in after["groups"]] == [group["id"] for group in before["groups"]]


def test_somebody_who_keeps_changing_a_child_is_answered_ever_more_slowly_and_named(api, operator, space):
    """Two controllers that both want the last word write for ever."""
    space.create()
    space.ready()
    begin = operator.figure("kvasir_operator_writes_total", kind="NetworkPolicy", verb="apply")
    end = time.monotonic() + 12
    edits = 0
    while time.monotonic() < end:
        api.patch("NetworkPolicy", space.name, "chat-deny", {"spec": {"policyTypes": ["Ingress"]}})
        edits += 1
        time.sleep(0.1)
    written = operator.figure("kvasir_operator_writes_total", kind="NetworkPolicy", verb="apply") - begin
    assert edits > 40 and 1 <= written <= 12, (edits, written)
    wait_until(lambda: any("NetworkPolicy chat-deny" in event["note"] for event in space.events()), lambda: [e["note"] for e in space.events()])
    assert operator.figure("kvasir_operator_edits_undone_total", kind="NetworkPolicy") >= written
    # The last word is the operator's all the same.
    wait_until(lambda: space.get("NetworkPolicy", "chat-deny")["spec"]["policyTypes"] == ["Ingress", "Egress"], "it is set back", 120)


def test_a_claim_of_the_namespace_that_is_missing_is_said(api, space):
    api.delete("PersistentVolumeClaim", space.name, "models")
    space.create()
    space.wait("EnginesReady", "False", "InsufficientCapacity")
    assert "models" in space.message("EnginesReady")
    api.apply({**typed("PersistentVolumeClaim"), "metadata": {"name": "models", "namespace": space.name}, "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}})
    space.ready()
