"""Eight clients stream without pause while something changes: no request fails and no stream is cut short."""

import contextlib
import time

from cluster import Cluster, eventually


@contextlib.contextmanager
def streaming(service, client, what):
    """Asserts that nothing was lost, and that requests were answered at all."""
    load = service.load(client)
    begin = time.monotonic()
    try:
        yield
        # The last change must have met running streams too.
        time.sleep(2)
    finally:
        counted = load.stop()
    Cluster.measured.append(f"{what}: {counted['finished']} streams, {len(counted['failures'])} lost, {time.monotonic() - begin:.0f} s")
    assert counted["failures"] == []
    assert counted["finished"] > 0


def names(pods):
    return {pod["metadata"]["uid"] for pod in pods}


def test_a_rollout_by_surge_of_the_only_group_loses_nothing(laptop, client):
    before = names(laptop.engines())
    with streaming(laptop, client, "rollout"):
        laptop.patch({"engine": {"maxModelLen": 1024}})
        eventually(lambda: (now := names(laptop.engines())) and not now & before and len(now) == 1, 180)
    laptop.wait_until_ready()


def test_scaling_from_two_groups_to_one_loses_nothing(laptop, client):
    laptop.patch({"replicas": 2})
    eventually(lambda: len(laptop.engines()) == 2, 120)
    laptop.wait_until_ready()
    with streaming(laptop, client, "scale 2 -> 1"):
        laptop.patch({"replicas": 1})
        eventually(lambda: len(laptop.cluster.get("-n", laptop.namespace, "pods", "-l", "kvasir.dev/component=engine")["items"]) == 1, 120)


def test_deleting_the_operators_pods_loses_nothing(laptop, client, cluster):
    with streaming(laptop, client, "operator deleted"):
        cluster.kubectl("-n", "kvasir-system", "delete", "pods", "--all")
        cluster.kubectl("-n", "kvasir-system", "rollout", "status", "deployment/kvasir-operator", "--timeout=90s")
