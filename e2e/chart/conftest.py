"""helm and promtool for the tests of the chart."""

import os
import pathlib
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
CHART = ROOT / "charts/kvasir"
TOOLS = pathlib.Path(os.environ.get("KVASIR_CHART_TOOLS") or subprocess.run(
    [ROOT / "e2e/chart-tools/build", "--print"], capture_output=True, text=True, check=True).stdout.strip())


def run(tool, *arguments, stdin=None, check=True):
    done = subprocess.run([TOOLS / tool, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=120)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def render(*arguments):
    """The chart as text, as `helm install kvasir -n kvasir-system` with these arguments would apply it."""
    return run("helm", "template", "kvasir", CHART, "--namespace", "kvasir-system", "--kube-version", "1.34.0", *arguments).stdout


def objects(*arguments):
    return [item for item in yaml.safe_load_all(render(*arguments)) if item]


def find(items, kind, name):
    return next((item for item in items if item["kind"] == kind and item["metadata"]["name"] == name), None)


@pytest.fixture(scope="session")
def everything():
    """The chart with all of its parts."""
    return objects("-f", CHART / "ci/everything-values.yaml")
