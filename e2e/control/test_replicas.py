"""Two replicas, lost leases, lost connections: it converges, and nothing is made twice."""

import contextlib
import datetime
import signal
import subprocess
import threading
import time

import pytest
from running import ROOT, Operator, Refused, Wire, audit, service, wait_until

SHORT = ("--lease-duration", "4")
WRITES = ("create", "update", "patch", "delete", "deletecollection")


def writes(cluster, user, since=None, leases=False):
    """Requests of `user` that change something, from the audit log."""
    for event in audit(cluster.environment["KVASIR_CLUSTER"]):
        if event.get("impersonatedUser", {}).get("username") != user or event["verb"] not in WRITES:
            continue
        at = datetime.datetime.fromisoformat(event["requestReceivedTimestamp"])
        about = event.get("objectRef", {})
        if (since is None or at >= since) and (about.get("resource") == "leases") == leases:
            yield at, event["verb"], about.get("resource"), about.get("name"), event.get("responseStatus", {}).get("code")


def complete(api, namespace, count):
    """All services are accepted and have exactly one group."""
    def check():
        services = api.list("InferenceService", namespace)
        accepted = [s for s in services if any(c["type"] == "CertificatesReady" and c["status"] == "True" for c in s.get("status", {}).get("conditions", []))]
        sets = api.list("StatefulSet", namespace)
        return len(accepted) == count and len(sets) == count

    wait_until(check, lambda: f"{len(api.list('StatefulSet', namespace))} groups for {count} services", 120)
    # A round that was cut off between its status and its objects leaves an id unused, and the next one takes another.
    owners = sorted(item["metadata"]["labels"]["kvasir.dev/service"] for item in api.list("StatefulSet", namespace))
    assert owners == sorted(f"chat-{i}" for i in range(count))


def test_the_lease_goes_over_at_once_when_it_is_given_back(api, namespace, operators):
    first = operators("--lease-duration", "60").wait_for("working")
    second = operators("--lease-duration", "60").wait_for("waiting")
    assert first.stop() == 0
    second.wait_for("working", 15)
    holder = api.get("Lease", "default", namespace)["spec"]["holderIdentity"]
    assert holder.startswith("operator_")


def test_a_replica_that_was_stopped_in_the_middle_of_an_apply_writes_nothing_more(cluster, api, namespace, operators):
    first, second = f"first-{namespace}", f"second-{namespace}"
    one = operators(*SHORT, user=first).wait_for("working")
    two = operators(*SHORT, user=second).wait_for("waiting")
    count = 12
    for i in range(count):
        api.create("InferenceService", namespace, service(f"chat-{i}"))
    wait_until(lambda: len(api.list("StatefulSet", namespace)) >= 2, "the first groups")
    one.send(signal.SIGSTOP)
    unfinished = count - len(api.list("StatefulSet", namespace))
    assert unfinished > 0
    two.wait_for("working", 30)
    taken = min(at for at, _, _, _, code in writes(cluster, second, leases=True) if code in (200, 201))
    one.send(signal.SIGCONT)
    assert one.process.wait(30) == 75
    complete(api, namespace, count)
    late = [write for write in writes(cluster, first) if write[0] >= taken]
    assert not late, late


def test_a_replica_that_cannot_renew_stops_before_another_can_take_over(cluster, api, namespace, operators):
    wire = Wire(int(cluster.environment["KVASIR_CLUSTER_PORT"]))
    one = operators(*SHORT, user=f"cut-{namespace}", port=wire.port).wait_for("working")
    two = operators(*SHORT, user=f"kept-{namespace}").wait_for("waiting")
    wire.open = False
    wire.cut()
    assert one.process.wait(30) == 75
    two.wait_for("working", 30)
    api.create("InferenceService", namespace, service("chat-0"))
    complete(api, namespace, 1)
    wire.close()


def test_cut_connections_and_a_slow_api_server_lose_nothing(cluster, api, namespace, operators):
    wire = Wire(int(cluster.environment["KVASIR_CLUSTER_PORT"]))
    operators(port=wire.port).wait_for("working")
    count = 6
    for i in range(count):
        api.create("InferenceService", namespace, service(f"chat-{i}"))
        time.sleep(0.3)
        assert wire.cut() > 0
    complete(api, namespace, count)
    # Watches work again: something that only a watch can show is noticed.
    wire.delay = 0.02
    api.delete("Service", namespace, "chat-3-engines")
    wait_until(lambda: api.get("Service", namespace, "chat-3-engines"), "the Service comes back")
    wire.close()


def test_a_restarted_api_server_loses_nothing(cluster, api, namespace, operators):
    operator = operators("--lease-duration", "60").wait_for("working")
    count = 6
    for i in range(count):
        api.create("InferenceService", namespace, service(f"chat-{i}"))
    subprocess.run([ROOT / "e2e/cluster", "restart", "kube-apiserver"], env=cluster.environment, check=True, timeout=120, capture_output=True)
    complete(api, namespace, count)
    before = {s["metadata"]["name"]: s["metadata"]["uid"] for s in api.list("StatefulSet", namespace)}
    api.patch("InferenceService", namespace, "chat-0", {"spec": {"replicas": 2}})
    wait_until(lambda: len(api.list("StatefulSet", namespace, "kvasir.dev/service=chat-0")) == 2, "the second group")
    assert before.items() <= {s["metadata"]["name"]: s["metadata"]["uid"] for s in api.list("StatefulSet", namespace)}.items()
    assert operator.process.poll() is None


def test_conflict_storms_make_no_group_twice_and_end(api, namespace, operators):
    operators().wait_for("working")
    api.create("InferenceService", namespace, service("chat-0"))
    complete(api, namespace, 1)
    stop = threading.Event()

    def storm(kind, name):
        i = 0
        while not stop.is_set():
            i += 1
            with contextlib.suppress(Refused):
                api.patch(kind, namespace, name, {"metadata": {"annotations": {"storm": str(i)}}})

    storms = [threading.Thread(target=storm, args=about) for about in (("InferenceService", "chat-0"), ("StatefulSet", "chat-0-g0"), ("Service", "chat-0-gateway"))]
    for thread in storms:
        thread.start()
    seen = set()
    for replicas in (2, 3):
        api.patch("InferenceService", namespace, "chat-0", {"spec": {"replicas": replicas}})
        end = time.monotonic() + 3
        while time.monotonic() < end:
            seen |= {(s["metadata"]["name"], s["metadata"]["uid"]) for s in api.list("StatefulSet", namespace)}
    stop.set()
    for thread in storms:
        thread.join()
    wait_until(lambda: len(api.list("StatefulSet", namespace)) == 3, "three groups")
    seen |= {(s["metadata"]["name"], s["metadata"]["uid"]) for s in api.list("StatefulSet", namespace)}
    assert len(seen) == 3, seen

    def settled():
        found = api.get("InferenceService", namespace, "chat-0")
        return found["status"]["observedGeneration"] == found["metadata"]["generation"] and found["status"]["replicas"] == 3

    wait_until(settled, "the status follows")


def test_nothing_is_written_at_rest(cluster, api, namespace, operators):
    """Fifty services, a minute, and two looks at each: no request that changes anything but the lease."""
    user = f"rest-{namespace}"
    operators("--resync", "20", user=user).wait_for("working")
    count = 50
    for i in range(count):
        api.create("InferenceService", namespace, service(f"chat-{i}"))
    complete(api, namespace, count)

    def quiet():
        since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=10)
        return not list(writes(cluster, user, since))

    wait_until(quiet, "ten seconds without a write", 120)
    begin = datetime.datetime.now(datetime.UTC)
    uids = {(item["kind"], item["metadata"]["name"]): item["metadata"]["uid"] for i in range(count) for item in api.children(namespace, f"chat-{i}").values()}
    time.sleep(60)
    assert list(writes(cluster, user, begin)) == []
    assert list(writes(cluster, user, begin, leases=True))
    assert uids == {(item["kind"], item["metadata"]["name"]): item["metadata"]["uid"] for i in range(count) for item in api.children(namespace, f"chat-{i}").values()}


@pytest.fixture
def bystander(api):
    """A namespace that the operator must not look at."""
    name = f"bystander-{time.time_ns() % 100000}"
    api.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    api.request("DELETE", f"/api/v1/namespaces/{name}")


def test_a_namespaced_operator_looks_at_nothing_else(cluster, api, namespace, bystander, operators):
    user = f"scoped-{namespace}"
    operators(user=user).wait_for("working")
    api.create("InferenceService", bystander, service("chat-0"))
    api.create("InferenceService", namespace, service("chat-0"))
    complete(api, namespace, 1)
    assert not api.get("InferenceService", bystander, "chat-0").get("status")
    reads = {(event.get("objectRef", {}).get("namespace"), event.get("objectRef", {}).get("resource")) for event in audit(cluster.environment["KVASIR_CLUSTER"]) if event.get("impersonatedUser", {}).get("username") == user and "objectRef" in event}
    assert {space for space, _ in reads} <= {namespace, "default"}, reads
    assert {resource for space, resource in reads if space == "default"} <= {"leases"}, reads


def test_secrets_are_read_by_name_and_never_listed(cluster, api, namespace, operators):
    user = f"secrets-{namespace}"
    operators(user=user).wait_for("working")
    api.create("InferenceService", namespace, service("chat-0"))
    complete(api, namespace, 1)
    verbs = {event["verb"] for event in audit(cluster.environment["KVASIR_CLUSTER"]) if event.get("impersonatedUser", {}).get("username") == user and event.get("objectRef", {}).get("resource") == "secrets"}
    assert "get" in verbs and not verbs & {"list", "watch"}, verbs


def test_an_operator_of_the_whole_cluster_looks_after_every_namespace(cluster, api, namespace, bystander, definition, tmp_path):
    operator = Operator(cluster, tmp_path, lease=f"all-{namespace}").wait_for("working")
    try:
        for space in (namespace, bystander):
            api.create("InferenceService", space, service("chat-0"))
        for space in (namespace, bystander):
            complete(api, space, 1)
    finally:
        assert operator.stop() == 0
