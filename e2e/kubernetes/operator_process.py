"""Installs the chart with helm and runs the operator, outside of the cluster, with exactly its account's rights and arguments."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import time
import urllib.request

import yaml

from conftest import ROOT, eventually

NAMESPACE = "kvasir-system"
NAME = "kvasir-operator"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}"


def helm(cluster, *arguments):
    tools = os.environ.get("KVASIR_CHART_TOOLS") or subprocess.run(
        [ROOT / "e2e/chart-tools/build", "--print"], capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run(
        [pathlib.Path(tools) / "helm", *arguments, "--kubeconfig", cluster.kubeconfig],
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(cluster, *values):
    helm(cluster, "upgrade", "--install", "kvasir", str(ROOT / "charts/kvasir"), "--namespace", NAMESPACE, "--create-namespace",
         "--wait", "--timeout", "4m", *values)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Operator:
    """A process of the operator."""

    def __init__(self, cluster, folder, *extra):
        self.port = free_port()
        deployment = cluster.get("-n", NAMESPACE, "deployment", NAME)
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        arguments = [a for a in arguments if not a.startswith("--listen=")] + [f"--listen=127.0.0.1:{self.port}", *extra]
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        self.log_path = folder / f"operator-{self.port}.log"
        self.log = open(self.log_path, "ab")
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig(cluster, folder)), "POD_NAME": f"test-{self.port}", "POD_NAMESPACE": NAMESPACE}
        self.process = subprocess.Popen([target / "release/kvasir-operator", *arguments], env=environment, stdout=self.log, stderr=self.log)

    def get(self, path):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return answer.read().decode()
        return None

    def leads(self):
        return "kvasir_operator_leader 1" in (self.get("/metrics") or "").splitlines()

    def wait_until_leading(self):
        eventually(lambda: self.leads() and self.get("/readyz") is not None, 60)
        return self

    def stop(self):
        self.process.terminate()
        try:
            code = self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.log.close()
        return code


def kubeconfig(cluster, folder):
    """The operator's account, by its own token."""
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", NAME, "--duration=24h").stdout.strip()
    config = yaml.safe_load(pathlib.Path(cluster.kubeconfig).read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path


def audited(cluster):
    """What the API server wrote down about the operator's requests."""
    path = pathlib.Path(cluster.environment["KVASIR_CLUSTER"]) / "log/audit.jsonl"
    with open(path) as lines:
        for line in lines:
            event = json.loads(line)
            if event["user"]["username"] == ACCOUNT:
                yield event


def mutations(cluster, since):
    """Requests after a moment that change something, but for the lease."""
    return [
        (event["verb"], event["requestURI"]) for event in audited(cluster)
        if event["stageTimestamp"] >= since and event["verb"] in ("create", "update", "patch", "delete", "deletecollection")
        and "/leases" not in event["requestURI"]
    ]


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
