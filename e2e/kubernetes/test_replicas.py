"""Two replicas, lost leases, lost connections, a slow store: it converges, and nothing is made twice."""

import contextlib
import datetime
import signal
import threading
import time

import pytest
from running import Refused, Space, now, wait_until

SHORT = "--lease-duration=4"


def create(space, count):
    for i in range(count):
        space.create(f"chat-{i}")


def complete(space, count):
    """All services have their certificates and exactly one group."""
    def check():
        services = space.list("InferenceService")
        issued = [s for s in services if any(c["type"] == "CertificatesReady" and c["status"] == "True" for c in s.get("status", {}).get("conditions", []))]
        return len(issued) == count and len(space.list("StatefulSet")) == count

    wait_until(check, lambda: f"{len(space.list('StatefulSet'))} groups for {count} services", 120)
    # A round that was cut off between its status and its objects leaves an id unused, and the next one takes another.
    owners = sorted(item["metadata"]["labels"]["kvasir.dev/service"] for item in space.list("StatefulSet"))
    assert owners == sorted(f"chat-{i}" for i in range(count))


def groups(space):
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in space.list("StatefulSet")}


def test_the_lease_goes_over_at_once_when_it_is_given_back(api, operators):
    first = operators("--lease-duration=60").wait_for("working")
    second = operators("--lease-duration=60").wait_for("waiting")
    assert first.stop() == 0
    second.wait_for("working", 15)
    holder = api.get("Lease", "kvasir-system", "kvasir-operator")["spec"]["holderIdentity"]
    assert holder.startswith(f"test-{second.port}")


def test_a_replica_that_was_stopped_in_the_middle_of_an_apply_writes_nothing_more(space, operators):
    one = operators(SHORT).wait_for("working")
    two = operators(SHORT).wait_for("waiting")
    count = 12
    create(space, count)
    wait_until(lambda: len(space.list("StatefulSet")) >= 2, "the first groups", pause=0.01)
    one.send(signal.SIGSTOP)
    assert len(space.list("StatefulSet")) < count
    two.wait_for("working", 30)
    taken = min(at for at, _, _, _, code in two.writes(leases=True) if code in (200, 201))
    one.send(signal.SIGCONT)
    assert one.process.wait(30) == 75
    complete(space, count)
    # One that was being sent when the process stood still ends without its body, as a failure of the API server.
    late = [write for write in one.writes() if write[0] >= taken and write[4] < 500]
    assert not late, late


def test_a_replica_that_cannot_renew_stops_before_another_can_take_over(space, wire, operators):
    one = operators(SHORT, port=wire.port).wait_for("working")
    two = operators(SHORT).wait_for("waiting")
    wire.open = False
    wire.cut()
    assert one.process.wait(30) == 75
    two.wait_for("working", 30)
    create(space, 1)
    complete(space, 1)


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_secrets_that_are_deleted_around_a_take_over_come_back(api, space, operators, moment):
    """No watch shows them, and nothing else happens here that a round could come from."""
    one = operators(SHORT, "--resync=3600").wait_for("working")
    two = operators(SHORT, "--resync=3600").wait_for("waiting")
    create(space, 1)
    space.ready("chat-0")
    before = {name: item["metadata"]["uid"] for (kind, name), item in space.at_rest("chat-0").items() if kind == "Secret"}
    pods = space.uids(name="chat-0")
    assert len(before) == 5

    def delete():
        for name in before:
            api.delete("Secret", space.name, name)

    if moment == "before":
        delete()
    one.send(signal.SIGKILL)
    one.process.wait()
    if moment == "between":
        delete()
    two.wait_for("working", 30)
    if moment == "after":
        delete()

    def back():
        found = {name: space.get("Secret", name) for name in before}
        return all(item and item["metadata"]["uid"] != before[name] for name, item in found.items())

    wait_until(back, lambda: [item["metadata"]["name"] for item in space.list("Secret")], 30)
    space.wait("CertificatesReady", "True", name="chat-0")
    assert space.uids(name="chat-0") == pods


def test_cut_connections_and_a_slow_api_server_lose_nothing(api, space, wire, operators):
    operators(port=wire.port).wait_for("working")
    count = 6
    for i in range(count):
        space.create(f"chat-{i}")
        time.sleep(0.3)
        assert wire.cut() > 0
    complete(space, count)
    # Watches work again: something that only a watch can show is noticed.
    wire.delay = 0.02
    api.delete("Service", space.name, "chat-3-engines")
    wait_until(lambda: space.get("Service", "chat-3-engines"), "the Service comes back")


def test_a_change_while_no_watch_runs_is_seen_when_it_runs_again(api, space, wire, operators):
    """What happened in between is in no event: the list that begins the next watch shows it."""
    operators("--lease-duration=60", port=wire.port).wait_for("working")
    create(space, 1)
    complete(space, 1)
    space.ready("chat-0")
    wire.open = False
    wire.cut()
    api.delete("NetworkPolicy", space.name, "chat-0-deny")
    api.patch("StatefulSet", space.name, "chat-0-g0", {"spec": {"replicas": 2}})
    wire.open = True
    wait_until(lambda: space.get("NetworkPolicy", "chat-0-deny"), "the policy comes back")
    wait_until(lambda: space.get("StatefulSet", "chat-0-g0")["spec"]["replicas"] == 1, "the number is set back")


def test_a_restarted_api_server_loses_nothing(cluster, space, operators):
    operator = operators("--lease-duration=60").wait_for("working")
    count = 6
    create(space, count)
    cluster.restart("kube-apiserver")
    complete(space, count)
    before = groups(space)
    space.change({"replicas": 2}, "chat-0")
    wait_until(lambda: len(space.groups("chat-0")) == 2, "the second group")
    assert before.items() <= groups(space).items()
    assert operator.process.poll() is None


def test_a_store_that_holds_its_breath_loses_nothing(cluster, space, operators):
    operator = operators("--lease-duration=30").wait_for("working")
    count = 6
    create(space, count)
    for _ in range(3):
        with cluster.stopped("etcd"):
            time.sleep(2)
        time.sleep(0.5)
    complete(space, count)
    assert operator.process.poll() is None
    before = groups(space)
    space.change({"replicas": 2}, "chat-0")
    wait_until(lambda: len(space.groups("chat-0")) == 2, "the second group")
    assert before.items() <= groups(space).items()


def test_conflict_storms_make_no_group_twice_and_end(api, space, operators):
    operators().wait_for("working")
    create(space, 1)
    complete(space, 1)
    stop = threading.Event()

    def storm(kind, name):
        i = 0
        while not stop.is_set():
            i += 1
            with contextlib.suppress(Refused):
                api.patch(kind, space.name, name, {"metadata": {"annotations": {"storm": str(i)}}})

    storms = [threading.Thread(target=storm, args=about) for about in (("InferenceService", "chat-0"), ("StatefulSet", "chat-0-g0"), ("Service", "chat-0-gateway"))]
    for thread in storms:
        thread.start()
    seen = set()
    for replicas in (2, 3):
        space.change({"replicas": replicas}, "chat-0")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            seen |= set(groups(space).items())
    stop.set()
    for thread in storms:
        thread.join()
    wait_until(lambda: len(groups(space)) == 3, "three groups")
    seen |= set(groups(space).items())
    assert len(seen) == 3, seen

    def settled():
        found = space.service("chat-0")
        return found["status"]["observedGeneration"] == found["metadata"]["generation"] and found["status"]["readyReplicas"] == 3

    wait_until(settled, lambda: space.status("chat-0"))


def test_nothing_is_written_at_rest_and_every_uid_stays(space, operators):
    """Fifty services, two minutes, six looks at each: no request that changes anything but the lease."""
    operator = operators("--resync=20").wait_for("working")
    count = 50
    create(space, count)
    for i in range(count):
        space.ready(f"chat-{i}", 240)
    wait_until(lambda: not list(operator.writes(now() - datetime.timedelta(seconds=10))), "ten seconds without a write", 120, pause=2)
    begin = now()
    before = everything(space)
    rounds = operator.figure("kvasir_operator_reconciles_total", result="done")
    time.sleep(120)
    assert list(operator.writes(begin)) == []
    assert list(operator.writes(begin, leases=True))
    assert operator.figure("kvasir_operator_reconciles_total", result="done") - rounds >= 5 * count
    assert everything(space) == before
    assert len(before) > 20 * count


def everything(space):
    """Uids of all that the operator made and of the pods."""
    kinds = ("ServiceAccount", "ConfigMap", "Secret", "Service", "Role", "RoleBinding", "NetworkPolicy", "PodDisruptionBudget", "StatefulSet", "Deployment", "Pod")
    return {(kind, item["metadata"]["name"]): item["metadata"]["uid"] for kind in kinds for item in space.list(kind, "app.kubernetes.io/managed-by=kvasir")}


@pytest.fixture
def bystander(api):
    """A namespace that the operator must not look at."""
    other = Space.make(api)
    yield other
    api.delete("Namespace", None, other.name)


def test_a_namespaced_operator_looks_at_nothing_else(space, bystander, operators):
    operator = operators().wait_for("working")
    bystander.create("chat-0")
    create(space, 1)
    complete(space, 1)
    assert not bystander.status("chat-0")
    reads = {(event["objectRef"].get("namespace"), event["objectRef"].get("resource")) for event in operator.requests() if "objectRef" in event}
    assert {name for name, _ in reads} <= {space.name, "kvasir-system"}, reads
    assert {resource for name, resource in reads if name == "kvasir-system"} <= {"leases"}, reads


def test_secrets_are_read_by_name_and_never_listed(space, operators):
    operator = operators().wait_for("working")
    create(space, 1)
    complete(space, 1)
    verbs = {event["verb"] for event in operator.requests() if event.get("objectRef", {}).get("resource") == "secrets"}
    assert "get" in verbs and not verbs & {"list", "watch"}, verbs


def test_an_operator_of_the_whole_cluster_looks_after_every_namespace(space, bystander, operators):
    operators(namespace=None).wait_for("working")
    for each in (space, bystander):
        create(each, 1)
    for each in (space, bystander):
        complete(each, 1)
