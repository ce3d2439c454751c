"""A control plane for the tests of this folder: etcd, API server, controller manager and scheduler, no nodes."""

import os
import pathlib
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]


class Cluster:
    """Runs kubectl against the control plane."""

    def __init__(self, environment):
        self.environment = environment

    def kubectl(self, *arguments, stdin=None, check=True):
        done = subprocess.run(
            [ROOT / "e2e/cluster", "kubectl", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=120,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    environment = {
        **os.environ,
        "KVASIR_CLUSTER": str(tmp_path_factory.mktemp("cluster") / "state"),
        "KVASIR_CLUSTER_PORT": os.environ.get("KVASIR_CLUSTER_PORT", "17443"),
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
    # kubectl wait fails at once while the object has no conditions at all, so it is asked again.
    deadline = time.monotonic() + 60
    wait = ("wait", "--for=condition=Established", "crd/inferenceservices.kvasir.dev", "--timeout=60s")
    while (done := cluster.kubectl(*wait, check=False)).returncode != 0:
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.2)
    return path
