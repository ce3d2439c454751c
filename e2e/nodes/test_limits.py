"""What a pod may use decides what its engine uses: threads by the CPU limit, memory for keys and values by the memory limit."""

import json

from cluster import Cluster, Service, wait_until

APPS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}]


def limits(memory):
    return {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": memory}}


def settings(service, memory):
    """What the engine with that limit says that it settled on, as it says it when it is ready."""
    def its_pod():
        pods = service.engines()
        return len(pods) == 1 and pods[0]["spec"]["containers"][0]["resources"]["limits"]["memory"] == memory and pods[0]
    pod = wait_until(its_pod, "the only engine", 180)
    service.wait_until_ready()
    log = service.cluster.kubectl("-n", service.namespace, "logs", pod["metadata"]["name"]).stdout
    lines = (json.loads(line) for line in log.splitlines() if line.startswith("{"))
    return json.loads(next(line["configuration"] for line in lines if "configuration" in line))


def test_threads_and_blocks_follow_the_limits_and_a_full_pool_stays_within_them(operator, client):
    spec = {"engine": {"maxModelLen": 1024, "resources": limits("1Gi")}, "network": {"allowedClients": APPS}}
    with Service.applied(operator, "limited", spec, wait=0) as service:
        large = settings(service, "1Gi")
        assert (large["threads"]["value"], large["threads"]["detail"]) == (1, "the CPU quota and affinity")
        assert large["kv-cache-memory-bytes"]["detail"] == "half of the cgroup's memory limit beside the weights"
        service.patch({"engine": {"resources": limits("384Mi")}})
        small = settings(service, "384Mi")
        blocks = [found["num-gpu-blocks-override"]["value"] for found in (large, small)]
        assert small["kv-cache-memory-bytes"]["value"] < 192 << 20
        assert 0 < blocks[1] < blocks[0] / 2
        # More tokens than the pool has places for: every block is written once at least.
        clients = blocks[1] * small["block-size"]["value"] // 800 + 2
        counted = service.stream(client, tokens=4, clients=clients, words=180)
        assert counted["failures"] == [] and counted["finished"] == clients
        pod = service.engines()[0]
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0, pod["status"]
        Cluster.measured.append(f"limits: CPU 1: {small['threads']['value']} thread; memory 1Gi, 384Mi: {blocks[0]}, {blocks[1]} blocks; {clients} prompts, no kill")
