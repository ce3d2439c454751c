"""A person installs the chart, uses it as README shows, and removes it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import readme
from cluster import ROOT, Service, wait_until

SECTION = "### On real nodes, on one machine"
# What the control plane writes by itself, at any time.
RESTLESS = {"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses", "ipaddresses.networking.k8s.io"}


def tools():
    """PATH with kubectl, helm, kvasir and the interpreter that has the client's package."""
    folders = [subprocess.run([ROOT / "e2e" / build, "--print"], capture_output=True, text=True, check=True).stdout.strip()
               for build in ("control-plane/build", "chart-tools/build")]
    return os.pathsep.join([*folders, str(pathlib.Path(os.environ["KVASIR"]).parent), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])


def everything(cluster):
    """Name and namespace of every object in the cluster."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    kinds = ",".join(kind for kind in kinds if kind not in RESTLESS)
    lines = cluster.kubectl("get", kinds, "--all-namespaces", "-o", "custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name", "--no-headers").stdout
    return {tuple(line.split()) for line in lines.splitlines() if line.strip()}


def wait_until_only(cluster, before):
    """Nothing was left behind, nor taken along."""
    wait_until(lambda: everything(cluster) == before, lambda: str(everything(cluster) ^ before), 120, pause=2)


@pytest.mark.first
def test_what_readme_shows_happens_and_leaves_the_cluster_as_it_was(cluster, tmp_path):
    before = everything(cluster)
    environment = {**cluster.environment, "PATH": tools(), "KVASIR_IMAGE_SBOM": "0"}
    environment.pop("KUBECONFIG", None)
    for command, printed in readme.run(SECTION, tmp_path, environment, [("/srv/models", str(tmp_path / "srv"))], leave=("e2e/cluster down",)):
        expected = [readme.comparable(line) for line in command.output]
        got = [readme.comparable(line) for line in printed]
        if command.text.endswith("cat load.json"):
            counted = json.loads(printed[-1])
            assert counted["failures"] == [] and counted["finished"] > 0
            # What stands between depends on when somebody looked.
            assert (expected[0], expected[-3]) == (got[0], got[-3])
        elif "e2e/cluster" not in command.text:
            assert got == expected, command.text
    wait_until_only(cluster, before)


@pytest.mark.first
@pytest.mark.long
def test_ten_installations_leave_the_cluster_as_it_was(cluster):
    before = everything(cluster)
    for _ in range(10):
        cluster.namespace("kvasir-system", restricted=True)
        cluster.install()
        with Service.applied(cluster, "again"):
            pass
        cluster.helm("uninstall", "kvasir", "--namespace", "kvasir-system", "--wait")
        cluster.kubectl("delete", "crd/inferenceservices.kvasir.dev", "namespace/kvasir-system")
        wait_until_only(cluster, before)
