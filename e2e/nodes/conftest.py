"""A cluster with real nodes, the operator from its chart, and a client inside: shared by all tests of this folder."""

import os
import subprocess

import pytest

from cluster import ROOT, Cluster, Service


# Of the tests that take turns, every run takes one part of so many; KVASIR_NODES_FULL=1 takes all of them.
PARTS = 5


def pytest_configure(config):
    config.addinivalue_line("markers", "first: needs a cluster in which no operator is installed yet")
    config.addinivalue_line("markers", "long: only with KVASIR_NODES_FULL=1, or by name")
    config.addinivalue_line("markers", "rotating: takes turns with others in short runs, by the number of commits")


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    if "KUBECONFIG" in os.environ:
        for item in items:
            if item.get_closest_marker("first"):
                item.add_marker(pytest.mark.skip(reason="the cluster of KUBECONFIG belongs to somebody else"))
    if os.environ.get("KVASIR_NODES_FULL") or config.option.keyword or any("::" in argument for argument in config.args):
        return
    count = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    turn = int(count.stdout or 0) % PARTS
    rotating = [item for item in items if item.get_closest_marker("rotating")]
    later = [item for number, item in enumerate(rotating) if number % PARTS != turn]
    later += [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=later)
    items[:] = [item for item in items if item not in later]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    with Cluster.up(tmp_path_factory) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def operator(cluster):
    """The operator, in a namespace that allows only restricted pods."""
    cluster.namespace("kvasir-system", restricted=True)
    cluster.install()
    return cluster


@pytest.fixture(scope="session")
def client(operator):
    """A pod in the namespace `apps` that has Python and the clients' packages of this machine."""
    return operator.client("apps")


@pytest.fixture(scope="module")
def laptop(operator, client):
    """The sample for a laptop, serving, and open to the namespace `apps`."""
    with Service.applied(operator, "laptop", {"network": {"allowedClients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}]}}) as service:
        yield service


def pytest_terminal_summary(terminalreporter):
    """What was measured; the state that each test left stands in its name."""
    for line in Cluster.measured:
        terminalreporter.write_line(line)
