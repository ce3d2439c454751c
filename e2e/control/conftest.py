"""The operator on a real control plane whose pods nobody plays but the tests: etcd, API server, controllers, scheduler."""

import os
import pathlib
import subprocess
import sys
import time

import pytest
from running import ROOT, Api, Cluster, Operator, wait_until

# The manifests that are refused are listed there.
sys.path.append(str(pathlib.Path(__file__).parents[1] / "kubernetes"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    environment = {
        **os.environ,
        "KVASIR_CLUSTER": str(tmp_path_factory.mktemp("cluster") / "state"),
        "KVASIR_CLUSTER_PORT": os.environ.get("KVASIR_CLUSTER_PORT", "17543"),
    }
    subprocess.run([ROOT / "e2e/cluster", "up", "--nodes", "0"], env=environment, check=True, timeout=3000)
    try:
        yield Cluster(environment)
    finally:
        subprocess.run([ROOT / "e2e/cluster", "down"], env=environment, check=True, timeout=120)


@pytest.fixture(scope="session")
def definition(cluster):
    """The custom resource definition, accepted and established."""
    path = ROOT / "crds/kvasir.dev_inferenceservices.yaml"
    cluster.kubectl("apply", "--server-side", "-f", str(path))
    established = ("wait", "--for=condition=Established", "crd/inferenceservices.kvasir.dev", "--timeout=60s")
    wait_until(lambda: cluster.kubectl(*established, check=False).returncode == 0, "the definition is established")


@pytest.fixture(scope="session")
def api(cluster):
    """Quick requests as the administrator."""
    return Api(cluster.environment["KVASIR_CLUSTER"], int(cluster.environment["KVASIR_CLUSTER_PORT"]))


@pytest.fixture
def namespace(api, request):
    """A namespace of the test's own."""
    name = "t-" + request.node.name.split("[")[0].replace("_", "-").lower()[-40:].strip("-") + f"-{time.time_ns() % 100000}"
    api.request("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # Pods are refused until the namespace has its default account.
    wait_until(lambda: api.get("ServiceAccount", name, "default"), "the default account")
    yield name
    api.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def operators(cluster, definition, namespace, tmp_path):
    """Starts operators that look after the test's namespace; they end with it."""
    started = []

    def start(*arguments, **options):
        options = {"namespace": namespace, "lease": namespace, **options}
        started.append(Operator(cluster, tmp_path, *arguments, **options))
        return started[-1]

    yield start
    for operator in started:
        operator.stop()
