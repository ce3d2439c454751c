"""A cluster with real nodes, the operator from its chart, and a client inside: shared by all tests of this folder."""

import pytest

from cluster import Cluster, Service


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
