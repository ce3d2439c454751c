"""Operators that come and go while services stay."""

import signal
import time

from running import is_ready, wait_until


def numbers(children):
    """What a write would change."""
    return {key: (item["metadata"]["uid"], item["metadata"].get("generation", item["metadata"]["resourceVersion"])) for key, item in children.items()}


def orphaned(api, space):
    """Deletes the service alone; what it leaves."""
    before = space.children()
    api.delete("InferenceService", space.name, "chat", policy="Orphan")
    wait_until(lambda: api.get("InferenceService", space.name, "chat") is None, lambda: space.service()["metadata"])
    return before


def test_everything_goes_with_the_service_even_while_no_operator_runs(api, space, operators):
    operator = operators().wait_for("working")
    space.create()
    space.at_rest()
    assert operator.stop() == 0
    assert not space.service()["metadata"].get("finalizers")
    api.delete("InferenceService", space.name, "chat")
    wait_until(lambda: not space.children(), lambda: list(space.children()))


def test_a_service_goes_without_its_objects_when_it_is_asked_to(api, space, operators):
    """The garbage collector patches every object first, the immutable ones too."""
    operators().wait_for("working")
    space.create()
    space.ready()
    before = orphaned(api, space)
    assert all(api.get(kind, space.name, name) for kind, name in before)


def test_an_authority_that_is_nobodys_signs_nothing(api, space, operators):
    """Whoever put it there may know its keys, and would speak for every engine."""
    operators().wait_for("working")
    space.create()
    space.ready()
    before = orphaned(api, space)
    others = [(kind, name) for kind, name in before if name != "chat-authority"]
    for kind, name in others:
        api.delete(kind, space.name, name)
    wait_until(lambda: not any(space.get(kind, name) for kind, name in others) and not space.list("Pod"), lambda: space.list("Pod"))
    space.create()
    space.wait("Accepted", "False", "NameCollision")
    assert "Secret chat-authority" in space.message("Accepted")
    api.delete("Secret", space.name, "chat-authority")
    space.ready()


def test_a_restarted_operator_changes_nothing(space, operators):
    """kubeai#383 and others: a restart at idle must neither lose nor move anything."""
    first = operators().wait_for("working")
    space.create(replicas=2)
    space.ready()
    before = numbers(space.at_rest())
    status = space.status()
    assert first.stop() == 0
    second = operators().wait_for("working")
    wait_until(lambda: second.figure("kvasir_operator_reconciles_total", result="done") >= 1, "a round")
    time.sleep(2)
    assert numbers(space.children()) == before
    assert space.status() == status
    assert not list(second.writes())


def test_an_operator_that_follows_a_last_write_writes_nothing(api, space, operators):
    """Nobody but the operator sees its last write, so nothing but itself makes it note that all is as it should be."""
    first = operators("--resync=3600").wait_for("working")
    space.create()
    space.ready()
    before = space.at_rest()["PodDisruptionBudget", "chat-gateway"]["metadata"]["uid"]
    api.delete("PodDisruptionBudget", space.name, "chat-gateway")
    wait_until(lambda: (found := space.get("PodDisruptionBudget", "chat-gateway")) and found["metadata"]["uid"] != before, "the budget comes back")
    space.at_rest()
    assert first.stop() == 0
    second = operators().wait_for("working")
    wait_until(lambda: second.figure("kvasir_operator_reconciles_total", result="done") >= 1, "a round")
    time.sleep(2)
    assert not list(second.writes())


def test_50_services_live_while_no_operator_runs(api, space, operators):
    """KAI-Scheduler#883: an admission webhook that is down blocks everybody. There is none."""
    operator = operators("--lease-duration=3").wait_for("working")
    space.create()
    space.ready()
    operator.send(signal.SIGKILL)
    operator.process.wait()
    space.change({"replicas": 2})
    before = space.uids()["chat-g0-0"]
    api.delete("Pod", space.name, "chat-g0-0")
    wait_until(lambda: is_ready(pod := space.get("Pod", "chat-g0-0")) and pod["metadata"]["uid"] != before, "the pod comes back")
    operators("--lease-duration=3").wait_for("working")
    wait_until(lambda: space.status().get("readyReplicas") == 2, lambda: space.status())


def test_14_a_service_that_slept_through_an_upgrade_wakes(cluster, space, operators):
    """dynamo#14278: scaled to zero before the operator's upgrade, stuck after."""
    first = operators().wait_for("working")
    space.create(replicas=0)
    space.wait("EnginesReady", "False", "ScaledToZero")
    assert first.stop() == 0
    operators().wait_for("working")
    cluster.kubectl("-n", space.name, "scale", "kis/chat", "--replicas=1")
    space.ready()


def test_a_secret_that_was_deleted_is_there_again_when_a_pod_needs_it(api, space, operators):
    """Secrets are read by name and never listed, so no watch shows that one is gone; a pod that waits for it does."""
    operators("--resync=3600").wait_for("working")
    space.create()
    space.ready()
    secret = next(name for kind, name in space.at_rest() if kind == "Secret" and "-g0" in name)
    api.delete("Secret", space.name, secret)
    before = space.uids()["chat-g0-0"]
    api.delete("Pod", space.name, "chat-g0-0")
    wait_until(lambda: is_ready(pod := space.get("Pod", "chat-g0-0")) and pod["metadata"]["uid"] != before, "the pod comes back")
    assert space.get("Secret", secret)


def comes_back(api, space, name):
    """Somebody deletes a Secret, and there is one again: what renewal does when half of a certificate's life is over."""
    api.delete("Secret", space.name, name)
    wait_until(lambda: space.get("Secret", name), name, 30)


def test_what_runs_keeps_its_certificates_when_its_spec_is_refused(api, space, operators):
    """They live a day: a wrong edit that nobody looks at over a weekend must not end the traffic."""
    operators("--resync=3").wait_for("working")
    space.create()
    space.ready()
    space.at_rest()
    before = space.uids()
    space.change({"autoscaling": {"maxReplicas": 3}, "gateway": {"enabled": False}})
    space.wait("Accepted", "False", "Unsupported")
    for name in ("chat-gateway-tls", "chat-g0-certificate"):
        comes_back(api, space, name)
    assert space.uids() == before and space.get("Deployment", "chat-gateway")
    # Whatever else happens is answered too: by the spec that was accepted last.
    old = space.get("StatefulSet", "chat-g0")["metadata"]["uid"]
    api.delete("StatefulSet", space.name, "chat-g0")
    wait_until(lambda: [group for group in space.groups() if group["metadata"]["uid"] != old], "another group", 60)
    space.wait("EnginesReady", "True")
    assert space.condition("Ready") == ("False", "NotAccepted")
    assert any("spec.autoscaling" in event["note"] and event["type"] == "Warning" for event in space.events())


def test_an_entrance_that_is_refused_holds_nothing_else_up(api, space, operators):
    operators("--resync=3").wait_for("working")
    space.create(replicas=2)
    wait_until(lambda: space.status().get("readyReplicas") == 2, lambda: space.status())
    space.change({"replicas": 1, "gateway": {"ingress": {"host": "not a host"}}})
    space.wait("Accepted", "False", "InvalidSpec")
    assert "Ingress chat-gateway" in space.message("Accepted")
    wait_until(lambda: len(space.groups()) == 1, "the group goes", 60)
    comes_back(api, space, "chat-gateway-tls")
    space.change({"gateway": {"ingress": {"host": "chat.example.com"}}})
    space.wait("Accepted", "True", "Valid", seconds=60)
    assert space.get("Ingress", "chat-gateway")


def test_figures_name_what_services_are_and_what_was_done(api, space, operators):
    operator = operators().wait_for("working")
    space.create()
    space.at_rest()
    status, text = operator.ask("/metrics")
    assert status == 200
    assert f'kvasir_operator_service_condition{{namespace="{space.name}",service="chat",condition="Accepted",status="True",reason="Valid"}} 1' in text
    assert operator.figure("kvasir_operator_writes_total", kind="StatefulSet", verb="create", result="done") == 1
    assert operator.figure("kvasir_operator_leader") == 1
    assert "kvasir_operator_queue_length 0\n" in text
    assert operator.ask("/healthz") == (200, "ok\n")
    api.delete("InferenceService", space.name, "chat")
    wait_until(lambda: 'service="chat"' not in operator.ask("/metrics")[1], "the figures go")
