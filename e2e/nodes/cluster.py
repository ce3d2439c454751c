"""A cluster with real nodes for tests: what a person does with helm and kubectl."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import uuid

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "e2e"))
from waiting import wait_until  # noqa: E402

FOLDER = pathlib.Path(__file__).parent
SAMPLE = ROOT / "charts/kvasir/samples/laptop-cpu.yaml"
NODES = ("n1", "n2")
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def condition(item, kind):
    """A condition of an object, or an empty one."""
    conditions = (item or {}).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {"status": None, "reason": None, "message": None})


class Cluster:
    """Runs e2e/cluster, kubectl and helm."""

    measured = []

    def __init__(self, environment, folder):
        self.environment = environment
        self.folder = folder
        self.kubeconfig = self.run("kubeconfig").stdout.strip()

    @classmethod
    @contextlib.contextmanager
    def up(cls, factory):
        """The cluster that KVASIR_CLUSTER names, which somebody keeps up, or one of the tests' own."""
        folder = factory.mktemp("nodes")
        kept = "KVASIR_CLUSTER" in os.environ
        environment = {**os.environ} if kept else {**os.environ, "KVASIR_CLUSTER": str(folder / "state")}
        run = [ROOT / "e2e/cluster"]
        begin = time.monotonic()
        subprocess.run([*run, "up", "--nodes", "2"], env=environment, check=True, timeout=3600)
        cls.measured.append(f"cluster up: {time.monotonic() - begin:.0f} s")
        try:
            cluster = cls(environment, folder)
            cluster.images()
            yield cluster
        finally:
            if not kept:
                subprocess.run([*run, "down"], env=environment, check=True, timeout=180)

    def run(self, *arguments, check=True, stdin=None, timeout=180):
        if arguments[0] in ("in", "policies", "start", "stop") and "KUBECONFIG" in self.environment:
            pytest.skip("the cluster of KUBECONFIG belongs to somebody else: its parts aren't ours to stop")
        done = subprocess.run([ROOT / "e2e/cluster", *arguments], input=stdin, capture_output=True, text=True, env=self.environment, timeout=timeout)
        assert not check or done.returncode == 0, f"e2e/cluster {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done

    def kubectl(self, *arguments, **more):
        return self.run("kubectl", *arguments, **more)

    def get(self, *arguments):
        """What kubectl get answers, or nothing where there is no such object."""
        done = self.kubectl("get", *arguments, "-o", "json", check=False)
        if done.returncode != 0:
            assert "NotFound" in done.stderr, done.stderr
            return None
        return json.loads(done.stdout)

    def apply(self, *objects):
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def namespace(self, name, restricted=False):
        labels = {"kubernetes.io/metadata.name": name, **(RESTRICTED if restricted else {})}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        wait_until(lambda: self.get("-n", name, "serviceaccount", "default"), "the default account")

    def images(self):
        """Loads the image of all roles: the one that KVASIR_IMAGE_ARCHIVE names, or one made of the built binaries."""
        archive = os.environ.get("KVASIR_IMAGE_ARCHIVE")
        if not archive:
            archive = self.folder / "kvasir.tar"
            subprocess.run([ROOT / "e2e/image", archive], env={**self.environment, "KVASIR_IMAGE_SBOM": "0"}, check=True, timeout=900)
        self.run("load-image", str(archive))

    def ctr(self, node, *arguments):
        return self.run("in", node, "ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", *arguments).stdout

    def tag(self, image, name):
        """Gives an image of every node another name."""
        for node in NODES:
            self.ctr(node, "images", "tag", "--force", image, name)

    def inside(self, pod, *command):
        """Arguments that run a command of this machine in the network of a pod."""
        node = pod["spec"]["nodeName"]
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        tasks = (line.split() for line in self.ctr(node, "tasks", "ls").splitlines())
        pid = next(task[1] for task in tasks if task[0] == container)
        return ("in", node, "nsenter", "--target", pid, "--net", "--", *command)

    def helm(self, *arguments):
        tools = subprocess.run([ROOT / "e2e/chart-tools/build", "--print"], capture_output=True, text=True, check=True).stdout.strip()
        done = subprocess.run([pathlib.Path(tools) / "helm", *arguments, "--kubeconfig", self.kubeconfig], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, *values):
        self.helm("upgrade", "--install", "kvasir", str(ROOT / "charts/kvasir"), "--namespace", "kvasir-system", "--wait", "--timeout", "3m",
                  # The cluster's DNS lets nobody keep answers for longer than 5 s.
                  "--set", "operator.joinSeconds=10", *values)

    def pod(self, namespace, name, node=None, labels=None, mounts=None):
        """A pod that waits, under the restricted standard unless it sees folders of this machine."""
        mounts = mounts or {}
        secure = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
        container = {
            "name": "tools", "image": "kvasir.test/tools:1", "command": ["/bin/busybox", "sleep", "1000000"],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *({"name": f"folder{i}", "mountPath": path, "readOnly": True} for i, path in enumerate(mounts))],
        }
        spec = {
            "containers": [container], "terminationGracePeriodSeconds": 0, "securityContext": secure, "automountServiceAccountToken": False,
            "volumes": [{"name": "tmp", "emptyDir": {}}, *({"name": f"folder{i}", "hostPath": {"path": str(source)}} for i, source in enumerate(mounts.values()))],
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        }
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels or {"app": name}}, "spec": spec})
        self.kubectl("-n", namespace, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
        return Pod(self, namespace, name)

    def client(self, namespace):
        self.namespace(namespace)
        import openai
        packages = pathlib.Path(openai.__file__).parents[1]
        return self.pod(namespace, "client", mounts={"/usr": "/usr", "/packages": packages, "/tests": FOLDER})


class Pod:
    """A pod in which commands run."""

    def __init__(self, cluster, namespace, name):
        self.cluster, self.namespace, self.name = cluster, namespace, name

    def command(self, *arguments):
        return ["kubectl", "-n", self.namespace, "exec", "-i", self.name, "--", *arguments]

    def python(self, script, *arguments, check=True, timeout=300):
        return self.cluster.run(*self.command("/usr/bin/python3", f"/tests/{script}", *arguments), check=check, timeout=timeout)

    def shell(self, script, *arguments, check=True):
        return self.cluster.run(*self.command("/bin/sh", "-c", script, "sh", *arguments), check=check)

    def start(self, script, *arguments):
        return subprocess.Popen([ROOT / "e2e/cluster", *self.command("/usr/bin/python3", f"/tests/{script}", *arguments)],
                                env=self.cluster.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def connects(self, address, port):
        done = self.cluster.run(*self.command("/bin/busybox", "nc", "-w", "2", address, str(port), "-e", "/bin/busybox", "true"), check=False)
        return done.returncode == 0


class Service:
    """An InferenceService in a restricted namespace of its own."""

    def __init__(self, cluster, namespace, name):
        self.cluster, self.namespace, self.name = cluster, namespace, name

    @classmethod
    @contextlib.contextmanager
    def applied(cls, cluster, name, spec=None, wait=120):
        """The sample for a laptop with other parts of its spec, its claim bound to a folder of this machine."""
        service = cls(cluster, f"{name}-{uuid.uuid4().hex[:6]}", name)
        cluster.namespace(service.namespace, restricted=True)
        documents = list(yaml.safe_load_all(SAMPLE.read_text()))
        documents[0]["metadata"]["name"] = name
        documents[0]["spec"].update(spec or {})
        service.volume("models")
        begin = time.monotonic()
        for document in documents:
            document["metadata"]["namespace"] = service.namespace
        cluster.apply(*documents)
        try:
            if wait:
                service.wait_until_ready(wait)
                Cluster.measured.append(f"{name}: Ready {time.monotonic() - begin:.1f} s after kubectl apply")
            service.applied_at = begin
            yield service
        finally:
            cluster.kubectl("-n", service.namespace, "delete", "kis", name, "--timeout=90s", check=False)
            cluster.kubectl("delete", "namespace", service.namespace, "--wait=false")
            cluster.kubectl("delete", "pv", service.namespace, "--wait=false")

    def volume(self, claim):
        """A folder with the model, as a volume for a claim."""
        folder = pathlib.Path(self.cluster.kubeconfig).parent / "models" / self.namespace
        folder.mkdir(parents=True)
        model = os.environ["KVASIR_TEST_MODEL"]
        target = folder / MODEL_FILE
        try:
            os.link(model, target)
        except OSError:
            target.write_bytes(pathlib.Path(model).read_bytes())
        target.chmod(0o644)
        self.model = target
        self.cluster.apply({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self.namespace},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(folder)},
                     "claimRef": {"namespace": self.namespace, "name": claim}},
        })

    @property
    def host(self):
        return f"{self.name}-gateway.{self.namespace}.svc"

    def get(self):
        return self.cluster.get("-n", self.namespace, "kis", self.name)

    def condition(self, kind):
        return condition(self.get(), kind)

    def patch(self, spec):
        self.cluster.kubectl("-n", self.namespace, "patch", "kis", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def wait_until_ready(self, seconds=120):
        def ready():
            item = self.get()
            return condition(item, "Ready")["status"] == "True" and item["status"].get("observedGeneration") == item["metadata"]["generation"]
        wait_until(ready, lambda: json.dumps(self.get().get("status"), indent=1), seconds, pause=0.3)

    def neighbour(self, name, spec):
        """Another service of the same namespace that serves from the same claim; it goes with the namespace."""
        document = next(yaml.safe_load_all(SAMPLE.read_text()))
        document["metadata"].update(name=name, namespace=self.namespace)
        document["spec"].update(spec)
        self.cluster.apply(document)
        return Service(self.cluster, self.namespace, name)

    def pods(self, component):
        """All of them, ready or not."""
        return self.cluster.get("-n", self.namespace, "pods", "-l", f"kvasir.dev/service={self.name},kvasir.dev/component={component}")["items"]

    def engines(self):
        return self.ready("engine")

    def gateways(self):
        return self.ready("gateway")

    def ready(self, component):
        pods = self.pods(component)
        return [pod for pod in pods if condition(pod, "Ready")["status"] == "True" and "deletionTimestamp" not in pod["metadata"]]

    def authority(self):
        """The certificate that clients trust, in one line."""
        return self.cluster.get("-n", self.namespace, "secret", f"{self.name}-gateway-tls")["data"]["ca.crt"]

    def key(self, secret, tenant="default"):
        """Makes a key for a tenant, as a person does, and returns it."""
        make = [os.environ["KVASIR"], "gateway", "keys", "new", "--tenant", tenant, "--format", "secret", "--secret-name", secret]
        made = subprocess.run(make, capture_output=True, text=True, check=True)
        self.cluster.kubectl("-n", self.namespace, "apply", "-f", "-", stdin=made.stdout)
        return made.stderr.split()[-1]

    def ask(self, client, *arguments, **more):
        """Runs ask.py in the client's pod."""
        return client.python("ask.py", f"https://{self.host}/v1", self.authority(), *arguments, **more)

    def load(self, client, clients=8, *of, authority=None):
        """Clients that stream without pause until they are told to stop; `of` is their key and what else load.py takes."""
        return Load(client.start("load.py", f"https://{self.host}/v1", authority or self.authority(), str(clients), *of))

    def start_stream(self, client, tokens, clients=1, words=4, model=None):
        """Streams that have begun."""
        arguments = (f"https://{self.host}/v1", self.authority(), model or self.name, str(tokens), str(clients), str(words))
        return Load(client.start("stream.py", *arguments))

    def stream(self, *arguments, **more):
        return self.start_stream(*arguments, **more).wait()

    def detached_load(self, client, clients=8):
        """Such clients that don't need the API server: they run until a file comes."""
        return DetachedLoad(self, client, clients)


class DetachedLoad:
    """Streams of a process that nobody is connected to, in the client's pod."""

    def __init__(self, service, client, clients):
        self.client = client
        self.folder = f"/tmp/{uuid.uuid4().hex}"
        arguments = (f"https://{service.host}/v1", service.authority(), str(clients))
        command = f"mkdir {self.folder} && mkfifo {self.folder}/in && {{ sleep 100000 >{self.folder}/in & " \
            f"/usr/bin/python3 /tests/load.py \"$@\" <{self.folder}/in >{self.folder}/out 2>{self.folder}/error & }} </dev/null >/dev/null 2>&1"
        client.shell(command, *arguments)
        wait_until(lambda: '"streaming": true' in self.output(), self.output, 60, pause=0.5)

    def output(self):
        return self.client.shell(f"cat {self.folder}/out {self.folder}/error").stdout

    def stop(self):
        """Ends it after the running requests and returns what it counted."""
        self.client.shell(f"echo stop >{self.folder}/in")
        wait_until(lambda: '"finished"' in self.output(), self.output, 120, pause=0.5)
        return json.loads(next(line for line in self.output().splitlines() if '"finished"' in line))


class Load:
    """Streams that run; every failure is kept."""

    def __init__(self, process):
        self.process = process
        line = self.process.stdout.readline()
        if line.strip() != '{"streaming": true}':
            self.process.kill()
            raise AssertionError(f"no stream began: {line} {self.process.communicate()[1]}")

    def stop(self):
        """Ends it after the running requests and returns what it counted."""
        return self.wait("stop\n")

    def wait(self, last_words=""):
        """What it has counted when it ends."""
        # Not communicate: what was read ahead with the first line would be lost.
        timer = threading.Timer(240, self.process.kill)
        timer.start()
        try:
            with self.process.stdin as words:
                words.write(last_words)
            out, error = self.process.stdout.read(), self.process.stderr.read()
            code = self.process.wait()
        finally:
            timer.cancel()
        assert code == 0, error
        return json.loads(out.strip().splitlines()[-1])
