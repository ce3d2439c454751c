"""The operator on a real API server: what it makes, keeps, reports and leaves alone."""

import contextlib
import json
import pathlib
import signal
import threading
import time

import pytest
import yaml
from running import CHILDREN, Refused, service, wait_until

from test_crd import CASES, changed

CONDITIONS = "Ready Accepted ModelReady EnginesReady GatewayReady NetworkSecured CertificatesReady AutoscalingActive Progressing Degraded".split()
# Rounds beside watches come often, so that what no watch shows (Secrets) comes back within the tests' patience.
OFTEN = ("--resync", "3")
# Everything that is made of one service with an Ingress.
KINDS = [kind for kind in CHILDREN]


def create(api, namespace, name="chat", **spec):
    return api.create("InferenceService", namespace, service(name, **spec))


def at_rest(api, namespace, name="chat"):
    """The children once nothing changes any more."""
    seen = []

    def still():
        children = {key: item["metadata"]["uid"] for key, item in api.children(namespace, name).items()}
        seen.append(children)
        return len(seen) > 10 and len(children) > 10 and all(children == other for other in seen[-8:])

    wait_until(still, "the children come to rest")
    return api.children(namespace, name)


@pytest.fixture
def ready(api, namespace, operators):
    """A service with an entrance from outside, and everything about it ready."""
    operators(*OFTEN).wait_for("working")
    create(api, namespace, gateway={"ingress": {"host": "chat.example.com"}})
    api.play_all(namespace, "chat")
    return at_rest(api, namespace)


def test_a_service_gets_all_its_children_and_every_condition(api, namespace, operators):
    operators().wait_for("working")
    create(api, namespace, gateway={"ingress": {"host": "chat.example.com"}})
    children = at_rest(api, namespace)
    assert {kind for kind, _ in children} == set(KINDS)
    status = api.get("InferenceService", namespace, "chat")["status"]
    assert [condition["type"] for condition in status["conditions"]] == CONDITIONS
    assert api.condition(namespace, "chat", "Accepted") == ("True", "Valid")
    for item in children.values():
        owner = item["metadata"]["ownerReferences"][0]
        assert owner["controller"] is True and owner["kind"] == "InferenceService"


def test_the_first_status_has_the_selector_that_autoscalers_need(cluster, api, namespace, operators):
    """kthena#799: a scale subresource without a selector is refused by autoscalers."""
    create(api, namespace)
    seen = []
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            status = api.get("InferenceService", namespace, "chat").get("status")
            if status is not None:
                seen.append(status)

    watcher = threading.Thread(target=watch)
    watcher.start()
    operators().wait_for("working")
    wait_until(lambda: api.condition(namespace, "chat", "Accepted"), "a status")
    stop.set()
    watcher.join()
    assert seen and all(status["selector"] == f"kvasir.dev/service=chat,kvasir.dev/component=engine,apps.kubernetes.io/pod-index=0" for status in seen)
    scale = json.loads(cluster.kubectl("get", "--raw", f"/apis/kvasir.dev/v1alpha1/namespaces/{namespace}/inferenceservices/chat/scale").stdout)
    assert scale["status"]["selector"]


def test_readiness_of_pods_reaches_the_status_without_touching_the_service(cluster, api, namespace, ready):
    """kserve#6043: serves traffic but stays not ready, because a child's status isn't watched."""
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", "kis/chat", "--timeout=20s")
    generation = api.get("InferenceService", namespace, "chat")["metadata"]["generation"]
    engine = "chat-g0-0"
    gateway = next(p["metadata"]["name"] for p in api.list("Pod", namespace, "kvasir.dev/component=gateway"))
    for pod, condition in ((engine, "EnginesReady"), (gateway, "GatewayReady")):
        for value in (False, True):
            pods = [gateway] if pod == gateway else [engine]
            if pod == gateway:
                pods = [p["metadata"]["name"] for p in api.list("Pod", namespace, "kvasir.dev/component=gateway")]
            for name in pods:
                api.play(namespace, name, ready=value)
            start = time.monotonic()
            wait_until(lambda: (api.condition(namespace, "chat", condition) or [""])[0] == ("True" if value else "False") or (not value and api.condition(namespace, "chat", condition)[0] == "Unknown"), condition, 5)
            assert time.monotonic() - start < 5
    assert api.get("InferenceService", namespace, "chat")["metadata"]["generation"] == generation
    wait_until(lambda: api.condition(namespace, "chat", "Ready") == ("True", "AllComponentsReady"), "Ready", 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_child_comes_back_and_nothing_else_changes(api, namespace, ready, kind):
    mine = [(key, item) for key, item in ready.items() if key[0] == kind]
    assert mine
    for (_, name), item in mine:
        api.delete(kind, namespace, name)

        def back():
            found = api.get(kind, namespace, name)
            return found and found["metadata"]["uid"] != item["metadata"]["uid"] and not found["metadata"].get("deletionTimestamp")

        if kind == "StatefulSet":
            # An id rests before it is used again: the group comes back under another one.
            wait_until(lambda: api.get(kind, namespace, "chat-g1"), "a replacement group")
        else:
            wait_until(back, f"{kind} {name}")
    others = {key for key in ready if key[0] != kind and "-g0" not in key[1]}
    after = api.children(namespace, "chat")
    assert {key: ready[key]["metadata"]["uid"] for key in others} == {key: after[key]["metadata"]["uid"] for key in others}


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
    # Its data is immutable.
    "ControllerRevision": {},
    "StatefulSet": {"spec": {"replicas": 7}},
    "Deployment": {"spec": {"replicas": 7}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_child_is_set_back_whatever_was_edited(api, namespace, ready, kind):
    """dynamo#4420 among others: somebody scales a child by hand."""
    for (_, name), before in [(key, item) for key, item in ready.items() if key[0] == kind]:
        with contextlib.suppress(Refused):
            api.patch(kind, namespace, name, EDITS[kind])
        # Without its label it is invisible to watches by label.
        api.patch(kind, namespace, name, {"metadata": {"labels": {"app.kubernetes.io/managed-by": "somebody"}}})

        def same():
            now = api.get(kind, namespace, name)
            return now and essence(now) == essence(before)

        wait_until(same, lambda: f"{name}: {essence(api.get(kind, namespace, name))} is not {essence(before)}")
        assert api.get(kind, namespace, name)["metadata"]["uid"] == before["metadata"]["uid"]


def essence(item):
    """What only an edit changes."""
    kept = {key: value for key, value in item.items() if key not in ("apiVersion", "metadata", "status")}
    if item["kind"] == "Secret":
        # Certificates are made anew; what they are for stays.
        kept["data"] = sorted(item["data"])
    return kept, item["metadata"]["labels"]


def test_annotations_and_labels_of_others_stay(api, namespace, ready):
    api.patch("Service", namespace, "chat-gateway", {"metadata": {"annotations": {"other/thing": "1"}, "labels": {"other": "1"}}})
    api.patch("InferenceService", namespace, "chat", {"spec": {"gateway": {"service": {"annotations": {"a": "b"}}}}})
    wait_until(lambda: api.get("Service", namespace, "chat-gateway")["metadata"].get("annotations", {}).get("a") == "b", "the annotation")
    metadata = api.get("Service", namespace, "chat-gateway")["metadata"]
    assert metadata["annotations"]["other/thing"] == "1" and metadata["labels"]["other"] == "1"


def test_what_the_spec_no_longer_says_is_taken_away_from_children_that_were_created(api, namespace, operators):
    """Fields of a creation outlive an apply that leaves them out, unless their owner is changed first."""
    operators().wait_for("working")
    create(api, namespace, gateway={"service": {"annotations": {"a": "b"}}}, disruption={"drainTimeoutSeconds": 60})
    at_rest(api, namespace)
    assert api.get("Service", namespace, "chat-gateway")["metadata"]["annotations"]["a"] == "b"
    api.patch("InferenceService", namespace, "chat", {"spec": {"gateway": {"service": {"annotations": None}}}})
    wait_until(lambda: "a" not in api.get("Service", namespace, "chat-gateway")["metadata"]["annotations"], "the annotation goes")
    api.patch("InferenceService", namespace, "chat", {"spec": {"gateway": {"enabled": False}}})
    wait_until(lambda: not api.get("Deployment", namespace, "chat-gateway") and not api.get("Service", namespace, "chat-gateway"), "the gateway goes")
    assert api.get("StatefulSet", namespace, "chat-g0")


def test_an_object_of_somebody_else_is_reported_and_left_alone(api, namespace, operators):
    foreign = api.create("ConfigMap", namespace, {"metadata": {"name": "chat-gateway-config"}, "data": {"mine": "1"}})
    operators(*OFTEN).wait_for("working")
    create(api, namespace)
    wait_until(lambda: api.condition(namespace, "chat", "Accepted") == ("False", "NameCollision"), "NameCollision")
    time.sleep(4)
    assert api.get("ConfigMap", namespace, "chat-gateway-config")["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
    api.delete("ConfigMap", namespace, "chat-gateway-config")
    wait_until(lambda: api.condition(namespace, "chat", "Accepted") == ("True", "Valid"), "Accepted")


def test_objects_that_only_carry_our_label_are_never_deleted(api, namespace, ready):
    """kserve#6113: everything with the label was taken for an orphan."""
    labels = {"app.kubernetes.io/managed-by": "kvasir", "kvasir.dev/service": "chat"}
    api.create("ConfigMap", namespace, {"metadata": {"name": "stray", "labels": labels}, "data": {}})
    time.sleep(5)
    assert api.get("ConfigMap", namespace, "stray")


def test_everything_goes_with_the_service_even_while_no_operator_runs(api, namespace, operators):
    operator = operators().wait_for("working")
    create(api, namespace)
    at_rest(api, namespace)
    assert operator.stop() == 0
    assert not api.get("InferenceService", namespace, "chat")["metadata"].get("finalizers")
    api.delete("InferenceService", namespace, "chat")
    wait_until(lambda: not api.children(namespace, "chat"), lambda: list(api.children(namespace, "chat")))


def test_a_service_that_is_deleted_with_its_children_first_gets_none_back(cluster, api, namespace, ready):
    cluster.kubectl("-n", namespace, "delete", "kis/chat", "--cascade=foreground", "--timeout=60s")
    assert not api.children(namespace, "chat")


@pytest.mark.parametrize("case", [c for c in CASES if c["by"] == "operator"], ids=lambda case: case["name"])
def test_what_the_api_server_cannot_judge_is_refused_with_the_fields_path(api, namespace, refusing, case):
    manifest = changed(case)
    name = case["name"].replace(" ", "-").replace("_", "-").lower()[:38].strip("-")
    api.create("InferenceService", refusing, {"metadata": {**manifest["metadata"], "name": name, "namespace": refusing}, "spec": manifest["spec"]})

    def refused():
        found = api.get("InferenceService", refusing, name).get("status", {}).get("conditions", [])
        return next((c for c in found if c["type"] == "Accepted" and c["status"] == "False"), None)

    condition = wait_until(refused, lambda: api.get("InferenceService", refusing, name).get("status"))
    assert case["field"] in condition["message"], condition
    assert not api.children(refusing, name)


@pytest.fixture(scope="module")
def refusing(cluster, api, definition, tmp_path_factory):
    """One namespace and operator for all manifests that are refused."""
    from running import Operator

    name = "refusing"
    api.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    operator = Operator(cluster, tmp_path_factory.mktemp("refusing"), namespace=name, lease=name)
    operator.wait_for("working")
    yield name
    operator.stop()


def test_a_crashed_rank_is_reported_with_its_exit_code_and_last_line(api, namespace, ready):
    """kaito#1493, kserve#3845: ready though a pod was killed for memory. ome#546: the status doesn't say why."""
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": "can't load model.safetensors: out of memory", "finishedAt": "2026-11-30T00:00:00Z"}
    api.play(namespace, "chat-g0-0", ready=False, restartCount=1, state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": ended})
    wait_until(lambda: (api.condition(namespace, "chat", "Ready") or [""])[0] == "False", "not ready", 10)
    assert api.condition(namespace, "chat", "EnginesReady") == ("False", "CrashLoop")
    failure = api.get("InferenceService", namespace, "chat")["status"]["groups"][0]["lastFailure"]
    assert failure["exitCode"] == 137 and failure["rank"] == 0 and "out of memory" in failure["message"]
    events = wait_until(lambda: [e for e in api.list("Event", namespace) if e.get("reportingController") == "kvasir.dev/operator"], "an event")
    assert any("exit code 137" in event["note"] and event["type"] == "Warning" and event["regarding"]["name"] == "chat" for event in events)


def test_counters_match_the_children_after_scaling_up_and_down(cluster, api, namespace, ready):
    """dynamo#10527: a counter that was added up drifts."""
    for count in (3, 1):
        cluster.kubectl("-n", namespace, "scale", "kis/chat", f"--replicas={count}")

        def there():
            for pod in api.list("Pod", namespace, "kvasir.dev/component=engine"):
                if not pod["metadata"].get("deletionTimestamp"):
                    with contextlib.suppress(Refused):
                        api.play(namespace, pod["metadata"]["name"])
            status = api.get("InferenceService", namespace, "chat")["status"]
            sets = api.list("StatefulSet", namespace, "kvasir.dev/service=chat")
            numbers = [status[key] for key in ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas")]
            return len(sets) == count and numbers == [count] * 4

        wait_until(there, lambda: api.get("InferenceService", namespace, "chat")["status"], 90)


def test_a_status_that_somebody_spoils_is_written_again(api, namespace, ready):
    api.patch("InferenceService", namespace, "chat", {"status": {"replicas": 99, "selector": "", "conditions": []}}, "status")
    wait_until(lambda: api.condition(namespace, "chat", "Ready") == ("True", "AllComponentsReady"), "Ready")
    status = api.get("InferenceService", namespace, "chat")["status"]
    assert status["replicas"] == 1 and status["selector"]


def test_a_restarted_operator_changes_nothing(api, namespace, operators):
    """kubeai#383 and others: a restart at idle must neither lose nor move anything."""
    first = operators().wait_for("working")
    create(api, namespace)
    api.play_all(namespace, "chat")
    before = at_rest(api, namespace)
    status = api.get("InferenceService", namespace, "chat")["status"]
    assert first.stop() == 0
    operators().wait_for("working")
    time.sleep(3)
    after = api.children(namespace, "chat")
    assert {key: item["metadata"]["uid"] for key, item in before.items()} == {key: item["metadata"]["uid"] for key, item in after.items()}
    assert {key: item["metadata"].get("generation") for key, item in before.items()} == {key: item["metadata"].get("generation") for key, item in after.items()}
    assert api.get("InferenceService", namespace, "chat")["status"] == status


def test_manifests_are_taken_while_no_operator_runs(api, namespace, operators):
    """KAI-Scheduler#883: an admission webhook that is down blocks everybody. There is none."""
    operator = operators().wait_for("working")
    create(api, namespace)
    at_rest(api, namespace)
    operator.send(signal.SIGKILL)
    operator.process.wait()
    api.patch("InferenceService", namespace, "chat", {"spec": {"replicas": 2}})
    pod = api.list("Pod", namespace, "kvasir.dev/component=engine")[0]
    api.delete("Pod", namespace, pod["metadata"]["name"])
    wait_until(lambda: any(p["metadata"]["uid"] != pod["metadata"]["uid"] for p in api.list("Pod", namespace, "kvasir.dev/component=engine")), "the pod comes back")
    operators("--lease-duration", "3").wait_for("working")
    wait_until(lambda: api.get("StatefulSet", namespace, "chat-g1"), "the second group")


def test_figures_name_what_services_are_and_what_was_done(api, namespace, operators):
    operator = operators().wait_for("working")
    create(api, namespace)
    at_rest(api, namespace)
    status, text = operator.ask("/metrics")
    assert status == 200
    assert f'kvasir_operator_service_condition{{namespace="{namespace}",service="chat",condition="Accepted",status="True",reason="Valid"}} 1' in text
    assert 'kvasir_operator_writes_total{kind="StatefulSet",verb="create",result="done"} 1' in text
    assert "kvasir_operator_leader 1" in text
    assert operator.ask("/healthz") == (200, "ok\n")
    api.delete("InferenceService", namespace, "chat")
    wait_until(lambda: 'service="chat"' not in operator.ask("/metrics")[1], "the figures go")
