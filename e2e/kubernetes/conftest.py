"""A control plane for the tests of this folder: etcd, API server, controller manager, scheduler, and nodes that are played."""

import json
import os
import pathlib
import subprocess
import time
import uuid

import pytest

ROOT = pathlib.Path(__file__).parents[2]


class Cluster:
    """Runs kubectl against the control plane."""

    def __init__(self, environment):
        self.environment = environment
        self.kubeconfig = str(pathlib.Path(environment["KVASIR_CLUSTER"]) / "admin.kubeconfig")

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

    def apply(self, *objects):
        """Applies objects, given as dictionaries."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))

    def get(self, *arguments):
        """What kubectl get answers, or nothing where there is no such object."""
        done = self.kubectl("get", *arguments, "-o", "json", check=False)
        if done.returncode != 0:
            assert "NotFound" in done.stderr, done.stderr
            return None
        return json.loads(done.stdout)

    def restart(self, part):
        subprocess.run([ROOT / "e2e/cluster", "restart", part], env=self.environment, check=True, timeout=180)

    def script(self, namespace, *rules):
        """Tells the fake kubelet how pods of a namespace behave: see e2e/fake-kubelet/src/rules.rs."""
        data = {"rules": json.dumps(list(rules))}
        self.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fake-kubelet", "namespace": namespace}, "data": data})


def eventually(what, seconds=60):
    """Asks again until the answer is true, and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        answer = what()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)


@pytest.fixture
def namespace(cluster):
    """A namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    eventually(lambda: cluster.get("-n", name, "serviceaccount", "default"))
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if "KVASIR_CLUSTER" in os.environ:
        # One that is up, for whoever writes tests.
        yield Cluster(dict(os.environ))
        return
    environment = {
        **os.environ,
        "KVASIR_CLUSTER": str(tmp_path_factory.mktemp("cluster") / "state"),
        "KVASIR_CLUSTER_PORT": os.environ.get("KVASIR_CLUSTER_PORT", "17443"),
    }
    subprocess.run([ROOT / "e2e/cluster", "up", "--nodes", "0", "--fake-nodes", "3"], env=environment, check=True, timeout=3000)
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
