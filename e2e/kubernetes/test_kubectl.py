"""What people do with kubectl, and `kvasir-operator explain`."""

import json
import subprocess

import pytest
from running import BUILT, Operator, wait_until


@pytest.fixture(scope="module", autouse=True)
def operator(cluster, chart, tmp_path_factory):
    running = Operator(cluster, tmp_path_factory.mktemp("operator")).wait_for("working")
    yield running
    assert running.stop() == 0


def explain(cluster, space, name="chat"):
    """Its text and exit status."""
    environment = {"KUBECONFIG": str(cluster.kubeconfig), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([BUILT / "kvasir-operator", "explain", f"{space.name}/{name}"], env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr, done.returncode


def test_wait_ends_when_the_service_is_ready(cluster, space):
    space.create()
    cluster.kubectl("-n", space.name, "wait", "--for=condition=Ready", "kis/chat", "--timeout=60s")
    assert space.condition("Ready") == ("True", "AllComponentsReady")


def test_columns_show_what_people_ask_for(cluster, space):
    space.create(replicas=2, model={"name": "served", "source": {"pvc": {"claimName": "models"}}})
    wait_until(lambda: space.status().get("readyReplicas") == 2, lambda: space.status())
    space.ready()
    lines = cluster.kubectl("-n", space.name, "get", "kis").stdout.splitlines()
    row = dict(zip(lines[0].split(), lines[1].split(), strict=False))
    assert (row["NAME"], row["READY"], row["MODEL"], row["GROUPS"], row["READY-GROUPS"], row["UPDATED"]) == ("chat", "True", "served", "2", "2", "2")


def test_scale_changes_the_number_of_groups(cluster, space):
    space.create()
    space.ready()
    cluster.kubectl("-n", space.name, "scale", "kis/chat", "--replicas=2")
    wait_until(lambda: space.status().get("readyReplicas") == 2, lambda: space.status())
    scale = json.loads(cluster.kubectl("get", "--raw", f"/apis/kvasir.dev/v1alpha1/namespaces/{space.name}/inferenceservices/chat/scale").stdout)
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    # The selector finds the leading pods and no others.
    found = space.list("Pod", scale["status"]["selector"])
    assert sorted(pod["metadata"]["name"] for pod in found) == ["chat-g0-0", "chat-g1-0"]


def test_describe_shows_events_that_say_what_to_do(cluster, space):
    space.script({"pods": "chat-g*", "exit": {"code": 66, "message": "model: no such file: /models/absent.gguf"}, "backoffSeconds": 1})
    space.create()
    wait_until(space.events, "an event")
    text = cluster.kubectl("-n", space.name, "describe", "kis/chat").stdout
    assert "no such file: /models/absent.gguf" in text and "RankFailed" in text


def test_events_say_what_is_refused_and_that_all_is_well(space):
    def told(reason):
        return [event for event in space.events() if event["reason"] == reason]

    space.create(autoscaling={"maxReplicas": 3})
    [event] = wait_until(lambda: told("Unsupported"), "the refusal")
    assert event["type"] == "Warning" and "spec.autoscaling" in event["note"]
    space.change({"autoscaling": None})
    space.ready()
    [event] = wait_until(lambda: told("AllComponentsReady"), "that it is ready")
    assert event["type"] == "Normal"


def test_explain_follows_the_reasons_from_pods_up_to_ready(cluster, space):
    space.create()
    space.ready()
    text, code = explain(cluster, space)
    assert "Ready" in text and code == 0, text
    space.script({"pods": "chat-g*", "exit": {"code": 137, "reason": "OOMKilled", "message": "out of memory"}, "backoffSeconds": 60})
    space.wait("Ready", "False")
    text, code = explain(cluster, space)
    assert "chat-g0-0" in text and "137" in text and "out of memory" in text, text


def test_explain_of_nothing_says_so(cluster, space):
    text, code = explain(cluster, space, "absent")
    assert code != 0 and "absent" in text
