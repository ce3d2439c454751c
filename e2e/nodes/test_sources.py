"""Where models come from in a cluster without a network: a server in a pod stands in for the hub. What goes wrong stands in ModelReady."""

import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import tarfile

import pytest

from cluster import MODEL_FILE, ROOT, Cluster, Service, condition, wait_until

APPS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}}]
PORT = 8000
TOKEN = "hf_kvasir_test"


@pytest.fixture(scope="module")
def digest():
    return hashlib.sha256(pathlib.Path(os.environ["KVASIR_TEST_MODEL"]).read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def server(operator, tmp_path_factory):
    """The address of a pod that serves the model."""
    folder = tmp_path_factory.mktemp("hub")
    for parent in [folder, *folder.parents[:3]]:
        parent.chmod(0o755)
    (folder / MODEL_FILE).write_bytes(pathlib.Path(os.environ["KVASIR_TEST_MODEL"]).read_bytes())
    operator.namespace("hub")
    pod = operator.pod("hub", "hub", mounts={"/usr": "/usr", "/tests": pathlib.Path(__file__).parent, "/files": folder})
    process = pod.start("hub.py", "/files", str(PORT), TOKEN)
    try:
        assert process.stdout.readline().strip() == "serving"
        yield operator.get("-n", "hub", "pod", "hub")["status"]["podIP"]
    finally:
        process.kill()
        operator.kubectl("delete", "namespace", "hub", "--wait=false")


@pytest.fixture(scope="module")
def model_image(operator, tmp_path_factory):
    """An image with a model in /models and nothing else, by its digest."""
    archive = tmp_path_factory.mktemp("image") / "model.tar"
    name = "kvasir.test/model:1"
    subprocess.run([ROOT / "e2e/node/pack-image", archive, name, "/none", f"{os.environ['KVASIR_TEST_MODEL']}=/models/{MODEL_FILE}"], check=True)
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("index.json"))["manifests"][0]["digest"]
    operator.run("load-image", str(archive))
    reference = f"{name.rsplit(':', 1)[0]}@{manifest}"
    operator.tag(name, reference)
    return reference


def image(reference, **more):
    return {"model": {"source": {"image": {"reference": reference, **more}}}, "network": {"allowedClients": APPS}, "storage": {}}


def spec(server, source, **model):
    egress = [{"cidr": f"{server}/32", "ports": [PORT]}]
    return {"model": {"source": source, **model}, "network": {"modelEgress": egress}, "storage": {}}


def hub(server, repo="kvasir/small", file=MODEL_FILE):
    return {"huggingFace": {"repo": repo, "file": file, "endpoint": f"http://{server}:{PORT}", "tokenSecretRef": {"name": "token", "key": "token"}}}


@contextlib.contextmanager
def asked(cluster, name, wanted, token=None, before=lambda service: None):
    """The service, and how its model stands as soon as that is known."""
    with Service.applied(cluster, name, wanted, wait=0) as service:
        if token:
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token", "namespace": service.namespace}, "stringData": {"token": token}}
            cluster.apply(secret)
        before(service)
        known = lambda: (found := service.condition("ModelReady"))["status"] in ("True", "False") and found  # noqa: E731
        found = wait_until(known, lambda: json.dumps(service.get().get("status"), indent=1), 120, pause=0.5)
        Cluster.measured.append(f"model {name}: {found['status']} {found['reason']}: {found['message'][:160]}")
        yield service, found


def test_a_file_over_http_is_fetched_and_the_way_there_closed_behind_it(operator, server, digest):
    source = {"http": {"url": f"http://{server}:{PORT}/plain/{MODEL_FILE}"}}
    with asked(operator, "http", spec(server, source, sha256=digest)) as (service, found):
        assert found["reason"] == "Resolved"
        service.wait_until_ready()
        pod = service.engines()[0]
        wait_until(lambda: "kvasir.dev/loading" not in operator.get("-n", service.namespace, "pod", pod["metadata"]["name"])["metadata"]["labels"], seconds=30)


@pytest.mark.rotating
def test_a_repository_of_the_hub_is_fetched_with_its_token(operator, server):
    with asked(operator, "hub", spec(server, hub(server)), TOKEN) as (service, found):
        assert found["reason"] == "Resolved"
        service.wait_until_ready()


@pytest.mark.rotating
def test_a_wrong_token_is_named(operator, server):
    with asked(operator, "token", spec(server, hub(server)), "hf_wrong") as (_, found):
        assert (found["status"], found["reason"]) == ("False", "Unauthorized"), found


@pytest.mark.rotating
def test_a_wrong_digest_is_named(operator, server):
    source = {"http": {"url": f"http://{server}:{PORT}/plain/{MODEL_FILE}"}}
    with asked(operator, "digest", spec(server, source, sha256="0" * 64)) as (_, found):
        assert (found["status"], found["reason"]) == ("False", "DigestMismatch"), found


@pytest.mark.rotating
@pytest.mark.parametrize("source", ["http", "hub", "claim"])
def test_a_missing_file_is_named(operator, server, source):
    wanted = {
        "http": spec(server, {"http": {"url": f"http://{server}:{PORT}/plain/none.gguf"}}, sha256="0" * 64),
        "hub": spec(server, hub(server, file="none.gguf")),
        "claim": {"model": {"source": {"pvc": {"claimName": "models", "path": "none.gguf"}}}},
    }
    with asked(operator, f"missing-{source}", wanted[source], TOKEN) as (_, found):
        assert (found["status"], found["reason"]) == ("False", "SourceNotFound"), found


@pytest.mark.rotating
def test_a_full_volume_is_named(operator, server, digest):
    """The cache's claim is bound to a file system of 16 MiB in each node."""
    source = {"http": {"url": f"http://{server}:{PORT}/plain/{MODEL_FILE}"}}
    wanted = spec(server, source, sha256=digest)
    wanted["storage"] = {"cache": {"size": "16Mi", "storageClassName": "small"}}
    place = pathlib.Path(operator.kubeconfig).parent / "small"

    def small(service):
        place.mkdir(exist_ok=True)
        for node in ("n1", "n2"):
            operator.run("in", node, "mount", "-t", "tmpfs", "-o", "size=16m,mode=0777", "tmpfs", str(place))
        volume = {"kind": "PersistentVolume", "apiVersion": "v1", "metadata": {"name": f"{service.namespace}-cache", "labels": {"kvasir.test/small": ""}},
                  "spec": {"capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(place)}, "storageClassName": "small"}}
        operator.apply(volume)

    try:
        with asked(operator, "full", wanted, before=small) as (_, found):
            assert (found["status"], found["reason"]) == ("False", "NoSpace"), found
    finally:
        operator.kubectl("delete", "pv", "-l", "kvasir.test/small", "--wait=false", check=False)
        for node in ("n1", "n2"):
            operator.run("in", node, "umount", "-l", str(place), check=False)


def test_nothing_else_than_the_model_is_reached_while_loading(operator, server):
    """The engine of a service without the server's address can't fetch from it."""
    source = {"http": {"url": f"http://{server}:{PORT}/plain/{MODEL_FILE}"}}
    wanted = spec("10.99.0.1", source, sha256="0" * 64)
    with Service.applied(operator, "shut", wanted, wait=0) as service:
        found = wait_until(lambda: (c := service.condition("ModelReady"))["status"] == "False" and c, lambda: json.dumps(service.get().get("status")), 180, pause=0.5)
        assert found["reason"] == "PullFailed", found
        assert condition(service.get(), "Ready")["status"] == "False"


def test_a_model_in_an_image_without_a_shell_is_copied_and_served(operator, client, model_image):
    """Containerd is older than volumes of images."""
    with asked(operator, "image", image(model_image)) as (service, found):
        assert found["reason"] == "Resolved"
        service.wait_until_ready()
        assert "Paris" in json.loads(service.ask(client).stdout)["answer"]
        assert service.get()["status"]["model"]["resolvedDigest"] == model_image.rsplit(":", 1)[1]
        service.patch({"model": {"source": {"image": {"path": "weights"}}}})
        wrong = wait_until(lambda: [pod for pod in service.pods("engine") if "-g1-" in pod["metadata"]["name"]], "a group of the new revision", 60)
        assert len(wrong) == 1
        assert "Paris" in json.loads(service.ask(client).stdout)["answer"]


def test_a_missing_path_in_an_image_is_named_with_what_is_there(operator, model_image):
    with asked(operator, "path", image(model_image, path="weights/small")) as (service, found):
        assert (found["status"], found["reason"]) == ("False", "SourceNotFound"), found
        assert "models" in found["message"]
        assert service.condition("EnginesReady")["status"] == "False"


@pytest.mark.rotating
def test_an_image_that_cannot_be_had_is_named(operator, model_image):
    wrong = model_image[:-64] + "0" * 64
    with asked(operator, "absent", image(wrong)) as (service, found):
        assert (found["status"], found["reason"]) in (("False", "PullFailed"), ("False", "SourceNotFound")), found
        engines = wait_until(lambda: (c := service.condition("EnginesReady"))["reason"] == "ImagePullFailed" and c, seconds=30)
        assert "spec.model.source.image" in engines["message"]


@pytest.mark.rotating
def test_a_model_that_does_not_fit_its_volume_is_not_copied(operator, model_image):
    volumes = [{"name": "model", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}]
    with asked(operator, "narrow", {**image(model_image), "podOverrides": {"spec": {"volumes": volumes}}}) as (_, found):
        assert (found["status"], found["reason"]) == ("False", "NoSpace"), found
