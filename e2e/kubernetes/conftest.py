"""One control plane with played nodes for all tests of this folder, and the chart in it."""

import os
import pathlib

import issuing
import pytest
from authority import Authority
from running import ROOT, Api, Cluster, Operator, Space, Wire, wait_until


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """KVASIR_CLUSTER names one that is up, for whoever writes tests."""
    given = "KVASIR_CLUSTER" in os.environ
    environment = {"KVASIR_CLUSTER_PORT": "17443", **os.environ}
    if not given:
        environment["KVASIR_CLUSTER"] = str(tmp_path_factory.mktemp("cluster") / "state")
    cluster = Cluster(environment)
    cluster.script("up", "--nodes", "0", "--fake-nodes", "3")
    try:
        yield cluster
    finally:
        if not given:
            cluster.script("down")


@pytest.fixture(scope="session")
def api(cluster):
    return Api(cluster)


@pytest.fixture(scope="session")
def chart(cluster):
    """The chart as it comes; its pods are played, so operators are processes that tests start."""
    cluster.install()


@pytest.fixture(scope="session")
def definition(chart):
    """The custom resource definition, accepted and established."""
    return ROOT / "crds/kvasir.dev_inferenceservices.yaml"


@pytest.fixture
def space(api):
    """A namespace of the test's own."""
    space = Space.make(api)
    yield space
    api.delete("Namespace", None, space.name)


@pytest.fixture
def wire(cluster):
    """A way to the API server that can be cut. It outlives operators, so that they can give back their lease."""
    wire = Wire(cluster.port)
    yield wire
    wire.close()


@pytest.fixture
def operators(cluster, chart, space, tmp_path, wire):
    """Starts operators that look after the test's namespace; they end with it."""
    started = []

    def start(*arguments, **options):
        started.append(Operator(cluster, tmp_path, *arguments, **{"namespace": space.name, **options}))
        return started[-1]

    yield start
    for operator in started:
        operator.stop()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def cert_manager(api, chart):
    """The cluster knows Certificates."""
    api.apply(issuing.DEFINITION)
    name = issuing.DEFINITION["metadata"]["name"]

    def established():
        conditions = api.get("CustomResourceDefinition", None, name).get("status", {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    wait_until(established, "the definition of Certificates")
    yield
    api.delete("CustomResourceDefinition", None, name)
    wait_until(lambda: not api.get("CustomResourceDefinition", None, name), "the definition goes")


@pytest.fixture
def whole_run(request):
    """What only a run of all tests shows."""
    chosen = request.config.option
    files = {item.path.name for item in request.session.items}
    everything = {path.name for path in pathlib.Path(__file__).parent.glob("test_*.py")}
    if chosen.keyword or chosen.markexpr or files != everything or any("::" in argument for argument in request.config.args):
        pytest.skip("it judges a run of all tests")


def pytest_collection_modifyitems(items):
    """What judges the whole run comes last."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


def pytest_configure(config):
    config.addinivalue_line("markers", "last: judges what all tests before it did")
