"""The chart on a real API server: what it installs, its samples, one namespace only, and what is left without it."""

import pytest
import yaml
from running import CHILDREN, KINDS, NAME, NAMESPACE, ROOT, Operator, Space, typed, wait_until

SAMPLES = sorted((ROOT / "charts/kvasir/samples").glob("*.yaml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_becomes_ready(api, cluster, space, operators, path):
    operators().wait_for("working")
    made = list(yaml.safe_load_all(path.read_text()))
    secrets = [{**typed("Secret"), "metadata": {"name": name}} for name in ("chat-keys", "private-keys")]
    if any(item["metadata"]["name"] == "models" for item in made):
        # The sample brings its own.
        api.delete("PersistentVolumeClaim", space.name, "models")
        wait_until(lambda: not space.get("PersistentVolumeClaim", "models"), "the claim goes")
    for item in [*secrets, *made]:
        item["metadata"]["namespace"] = space.name
        api.apply(item)
    for service in (item for item in made if item["kind"] == "InferenceService"):
        name, wanted = service["metadata"]["name"], service["spec"].get("replicas", 1)
        cluster.kubectl("-n", space.name, "wait", "--for=condition=Ready", f"kis/{name}", "--timeout=120s")
        space.ready(name)
        # Ready is said when the minimum of groups serves; the others follow.
        wait_until(lambda name=name, wanted=wanted: space.status(name)["readyReplicas"] == wanted, lambda name=name: space.status(name))


def test_a_chart_for_one_namespace_gives_rights_there_alone(api, cluster, chart, space, tmp_path):
    home = Space.make(api)
    values = ["--set", f"operator.watchNamespace={space.name}", "--set", "crds.install=false", "--set", "rbac.aggregate=false"]
    try:
        cluster.install(*values, namespace=home.name)
        operator = Operator(cluster, tmp_path, chart=home.name).wait_for("working")
        try:
            space.create()
            space.ready()
            space.change({"replicas": 2})
            wait_until(lambda: space.status().get("readyReplicas") == 2, lambda: space.status())
        finally:
            assert operator.stop() == 0
        assert [event["requestURI"] for event in operator.requests() if event.get("responseStatus", {}).get("code") == 403] == []
        account = f"system:serviceaccount:{home.name}:{NAME}"
        for verb, resource in (("list", "pods"), ("get", "secrets"), ("create", "statefulsets"), ("list", "nodes")):
            answer = cluster.kubectl("auth", "can-i", verb, resource, "--as", account, "-n", "default", check=False).stdout.strip()
            assert answer == "no", (verb, resource)
    finally:
        cluster.helm("uninstall", "kvasir", "--namespace", home.name, "--wait")
        api.delete("Namespace", None, home.name)


def test_uninstalling_leaves_services_and_no_orphan_and_no_finalizer(api, cluster, chart, space, operators):
    operator = operators().wait_for("working")
    space.create()
    space.ready()
    assert operator.stop() == 0
    before = space.uids()
    try:
        cluster.helm("uninstall", "kvasir", "--namespace", NAMESPACE, "--wait")

        def left():
            return {(kind, item["metadata"]["name"]) for kind in KINDS for item in api.list(kind, None, "app.kubernetes.io/instance=kvasir")}

        wait_until(lambda: not left(), left)
        # The definition stays, and with it every service and its pods.
        assert api.get("CustomResourceDefinition", None, "inferenceservices.kvasir.dev")
        assert space.uids() == before
        assert not space.service()["metadata"].get("finalizers")
        # Whoever deletes a service then is rid of it.
        api.delete("InferenceService", space.name, "chat")
        wait_until(lambda: not any(space.list(kind, "kvasir.dev/service=chat") for kind in [*CHILDREN, "Pod"]), "nothing is left", 90)
        cluster.kubectl("delete", "namespace", space.name, "--timeout=60s")
    finally:
        cluster.install()
