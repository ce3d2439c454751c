"""What runs in these tests: a control plane, a client without kubectl's start-up time, the chart, the operator as a process with the
chart's rights, and a connection that can be cut."""

import base64
import contextlib
import datetime
import http.client
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid

import yaml

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "e2e"))
from waiting import wait_until  # noqa: E402

BUILT = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
# Where the chart is installed, and what its objects are called.
NAMESPACE = "kvasir-system"
NAME = "kvasir-operator"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}"

# Where each kind is found: the beginning of its path, and its plural.
KINDS = {
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "Pod": ("/api/v1", "pods"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Node": ("/api/v1", "nodes"),
    "Namespace": ("/api/v1", "namespaces"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Ingress": ("/apis/networking.k8s.io/v1", "ingresses"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "ControllerRevision": ("/apis/apps/v1", "controllerrevisions"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "InferenceService": ("/apis/kvasir.dev/v1alpha1", "inferenceservices"),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "Event": ("/apis/events.k8s.io/v1", "events"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
}
EVERYWHERE = ("Node", "Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")
# Kinds of which every service with an Ingress has at least one.
CHILDREN = [
    "ServiceAccount", "ConfigMap", "Secret", "Service", "Role", "RoleBinding", "NetworkPolicy", "Ingress", "PodDisruptionBudget", "ControllerRevision",
    "StatefulSet", "Deployment",
]
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
WRITES = ("create", "update", "patch", "delete", "deletecollection")


class Cluster:
    """The control plane of e2e/cluster."""

    def __init__(self, environment):
        self.environment = environment
        self.state = pathlib.Path(environment["KVASIR_CLUSTER"])
        self.port = int(environment["KVASIR_CLUSTER_PORT"])
        # While its caches fill, an API server that was just started refuses what it will allow.
        self.restarts = []
        self.kubeconfig = self.state / "admin.kubeconfig"
        self.kubectl_path = pathlib.Path(run([ROOT / "e2e/control-plane/build", "--print"]).strip()) / "kubectl"
        self.helm_path = pathlib.Path(os.environ.get("KVASIR_CHART_TOOLS") or run([ROOT / "e2e/chart-tools/build", "--print"]).strip()) / "helm"

    def script(self, *arguments):
        """Runs e2e/cluster."""
        subprocess.run([ROOT / "e2e/cluster", *arguments], env=self.environment, check=True, timeout=600)

    def kubectl(self, *arguments, stdin=None, check=True):
        done = subprocess.run(
            [self.kubectl_path, "--kubeconfig", self.kubeconfig, *arguments],
            input=stdin, capture_output=True, text=True, timeout=120)
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done

    def helm(self, *arguments):
        done = subprocess.run(
            [self.helm_path, *arguments, "--kubeconfig", self.kubeconfig], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, *values, release="kvasir", namespace=NAMESPACE):
        """Installs the chart, and waits until it says that it is ready."""
        self.helm("upgrade", "--install", release, str(ROOT / "charts/kvasir"), "--namespace", namespace, "--create-namespace", "--wait", "--timeout", "4m",
                  "--set", "operator.joinSeconds=1", *values)

    def restart(self, part):
        begin = now()
        self.script("restart", part)
        if part == "kube-apiserver":
            self.restarts.append((begin, now() + datetime.timedelta(seconds=20)))

    @contextlib.contextmanager
    def stopped(self, part):
        """One part holds its breath."""
        number = int((self.state / f"{part}.pid").read_text())
        os.kill(number, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(number, signal.SIGCONT)

    def audit(self, text=""):
        """Requests of the audit log with this text in them, oldest first."""
        with (self.state / "log/audit.jsonl").open() as log:
            for line in log:
                # The last line may be half written.
                with contextlib.suppress(json.JSONDecodeError):
                    if text in line:
                        yield json.loads(line)


def run(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Refused(Exception):
    def __init__(self, code, body):
        super().__init__(f"{code}: {body}")
        self.code = code


class Api:
    """Requests to the API server as the administrator."""

    def __init__(self, cluster):
        pki = cluster.state / "pki"
        self.context = ssl.create_default_context(cafile=pki / "ca.crt")
        self.context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self.port = cluster.port
        self.local = threading.local()

    def request(self, method, path, body=None, content="application/json"):
        for again in (False, True):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=30)
                self.local.connection = connection
            try:
                text = json.dumps(body) if body is not None else None
                connection.request(method, path, text, {"Accept": "application/json", "Content-Type": content})
                answer = connection.getresponse()
                text = answer.read()
                break
            except (OSError, http.client.HTTPException):
                connection.close()
                self.local.connection = None
                if again:
                    raise
        if answer.status == 429:
            # Its store isn't ready yet; the control plane was just started.
            time.sleep(1)
            return self.request(method, path, body, content)
        if answer.status >= 400:
            raise Refused(answer.status, text.decode())
        return json.loads(text) if text else None

    @staticmethod
    def path(kind, namespace=None, name=""):
        base, plural = KINDS[kind]
        space = f"/namespaces/{namespace}" if namespace and kind not in EVERYWHERE else ""
        return f"{base}{space}/{plural}" + (f"/{name}" if name else "")

    def get(self, kind, namespace, name):
        """An object, or nothing where there is none."""
        try:
            return self.request("GET", self.path(kind, namespace, name))
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def list(self, kind, namespace=None, labels=None):
        path = self.path(kind, namespace)
        if labels:
            path += "?labelSelector=" + urllib.parse.quote(labels)
        return self.request("GET", path)["items"]

    def create(self, kind, namespace, body):
        return self.request("POST", self.path(kind, namespace), {**typed(kind), **body})

    def apply(self, *objects, manager="test"):
        """Applies objects on the server's side."""
        for item in objects:
            metadata = item["metadata"]
            path = self.path(item["kind"], metadata.get("namespace"), metadata["name"])
            self.request("PATCH", f"{path}?fieldManager={manager}&force=true", item, APPLY)

    def patch(self, kind, namespace, name, body, subresource=""):
        path = self.path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return self.request("PATCH", path, body, MERGE)

    def delete(self, kind, namespace, name, policy="Background"):
        try:
            return self.request("DELETE", self.path(kind, namespace, name), {"propagationPolicy": policy})
        except Refused as refused:
            if refused.code != 404:
                raise
            return None


def typed(kind):
    base, _ = KINDS[kind]
    return {"apiVersion": base.removeprefix("/apis/").removeprefix("/api/"), "kind": kind}


def is_ready(item):
    """Whether a pod's or node's condition says so."""
    conditions = item.get("status", {}).get("conditions", []) if item else []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def service(name="chat", **spec):
    """A manifest with the one required field."""
    return {"metadata": {"name": name}, "spec": {"model": {"source": {"pvc": {"claimName": "models"}}}, **spec}}


class Space:
    """A namespace with a claim and keys, and services in it; `chat` where none is named."""

    def __init__(self, api, name):
        self.api = api
        self.name = name

    @classmethod
    def make(cls, api, name=None):
        name = name or f"test-{uuid.uuid4().hex[:8]}"
        api.create("Namespace", None, {"metadata": {"name": name}})
        # Pods are refused until the namespace has its default account.
        wait_until(lambda: api.get("ServiceAccount", name, "default"), "the default account")
        api.apply(
            {**typed("PersistentVolumeClaim"), "metadata": {"name": "models", "namespace": name},
             "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}},
            {**typed("Secret"), "metadata": {"name": "keys", "namespace": name}, "stringData": {"a.yaml": "[]"}},
        )
        return cls(api, name)

    def create(self, name="chat", **spec):
        """A service; one gateway is enough where the spec says nothing about it."""
        spec.setdefault("gateway", {"replicas": 1, "auth": {"apiKeySecrets": [{"name": "keys"}]}})
        return self.api.create("InferenceService", self.name, service(name, **spec))

    def change(self, patch, name="chat"):
        return self.api.patch("InferenceService", self.name, name, {"spec": patch})

    def get(self, kind, name):
        return self.api.get(kind, self.name, name)

    def list(self, kind, labels=None):
        return self.api.list(kind, self.name, labels)

    def service(self, name="chat"):
        return self.get("InferenceService", name)

    def status(self, name="chat"):
        return (self.service(name) or {}).get("status", {})

    def condition(self, kind, name="chat"):
        """Status and reason of a condition."""
        found = [c for c in self.status(name).get("conditions", []) if c["type"] == kind]
        return (found[0]["status"], found[0]["reason"]) if found else (None, None)

    def message(self, kind, name="chat"):
        return next(c["message"] for c in self.status(name)["conditions"] if c["type"] == kind)

    def wait(self, kind, status, reason=None, name="chat", seconds=120):
        """Until a condition that is about the present spec has this status, and this reason if one is given."""
        def holds():
            found = self.service(name) or {"metadata": {}}
            known = found.get("status", {})
            seen = known.get("observedGeneration") == found["metadata"].get("generation")
            condition = [c for c in known.get("conditions", []) if c["type"] == kind]
            return seen and condition and condition[0]["status"] == status and (reason is None or condition[0]["reason"] == reason)

        wait_until(holds, lambda: f"{kind} {status}: {json.dumps(self.status(name), indent=1)}", seconds)

    def ready(self, name="chat", seconds=120):
        self.wait("Ready", "True", name=name, seconds=seconds)

    def pods(self, component="engine", name="chat"):
        return self.list("Pod", f"kvasir.dev/service={name},kvasir.dev/component={component}")

    def uids(self, **of):
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods(**of)}

    def groups(self, name="chat"):
        return self.list("StatefulSet", f"kvasir.dev/service={name}")

    def children(self, name="chat"):
        """What the service owns, by kind and name. Revisions of its Deployment and StatefulSets carry their pods' labels and aren't."""
        found = {}
        for kind in CHILDREN:
            for item in self.list(kind, f"kvasir.dev/service={name}"):
                if any(owner["kind"] == "InferenceService" for owner in item["metadata"].get("ownerReferences", [])):
                    found[kind, item["metadata"]["name"]] = {**item, "kind": kind}
        return found

    def token(self, account, audience=None):
        """A token of an account here, for the API server if for nobody else."""
        body = {"spec": {"expirationSeconds": 3600, **({"audiences": [audience]} if audience else {})}}
        return self.api.request("POST", self.api.path("ServiceAccount", self.name, account) + "/token", body)["status"]["token"]

    def events(self):
        """What the operator told about services here."""
        return [e for e in self.list("Event") if e.get("reportingController") == "kvasir.dev/operator"]

    def script(self, *rules):
        """Tells the fake kubelet how pods behave: see e2e/fake-kubelet/src/rules.rs."""
        data = {"rules": json.dumps(list(rules))}
        self.api.apply({**typed("ConfigMap"), "metadata": {"name": "fake-kubelet", "namespace": self.name}, "data": data})

    def at_rest(self, name="chat"):
        """The children once nothing changes any more: neither they nor the service, whose status says last what was written."""
        seen = []

        def still():
            items = {**self.children(name), ("InferenceService", name): self.service(name)}
            seen.append({key: (item["metadata"]["uid"], item["metadata"]["resourceVersion"]) for key, item in items.items()})
            return len(seen) > 20 and len(seen[-1]) > 11 and all(seen[-1] == other for other in seen[-16:])

        wait_until(still, "the children come to rest")
        return self.children(name)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, path):
    """Status and text of a page of this machine; 0 while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


@contextlib.contextmanager
def lost(cluster, node):
    """Meanwhile a node's kubelet is silent."""
    cluster.kubectl("annotate", "node", node, "fake-kubelet.kvasir.dev/lost=true")
    try:
        yield
    finally:
        cluster.kubectl("annotate", "node", node, "fake-kubelet.kvasir.dev/lost-")


class Operator:
    """One replica of the operator, with the chart's rights and arguments. `arguments` are further ones, `--name=value`; one that the
    chart gives too wins. A `port` leads to the API server by another way, `namespace` limits it to one namespace."""

    def __init__(self, cluster, folder, *arguments, namespace=None, port=None, chart=NAMESPACE):
        self.cluster = cluster
        self.port = free_port()
        self.log = folder / f"operator-{self.port}.log"
        deployment = Api(cluster).get("Deployment", chart, NAME)
        given = [*arguments, f"--listen=127.0.0.1:{self.port}"]
        if namespace:
            given.append(f"--watch-namespace={namespace}")
        named = {argument.split("=")[0] for argument in given}
        usual = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        self.arguments = [argument for argument in usual if argument.split("=")[0] not in named] + given
        token = cluster.kubectl("-n", chart, "create", "token", deployment["spec"]["template"]["spec"]["serviceAccountName"], "--duration=24h").stdout.strip()
        self.id = claims(token)["jti"]
        kubeconfig = folder / f"operator-{self.port}.kubeconfig"
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
        if port:
            config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        kubeconfig.touch(0o600)
        kubeconfig.write_text(json.dumps(config))
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": f"test-{self.port}", "POD_NAMESPACE": chart}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([BUILT / "kvasir-operator", *self.arguments], env=environment, stdout=log, stderr=log)

    def ask(self, path):
        """Status and text; 0 while nobody listens."""
        return ask(self.port, path)

    def phase(self):
        return self.ask("/readyz")[1].strip()

    def wait_for(self, phase="working", seconds=60):
        def there():
            assert self.process.poll() is None, self.tail()
            return self.phase() == phase

        wait_until(there, lambda: f"{phase}: {self.phase()}\n{self.tail()}", seconds)
        return self

    def figure(self, name, **labels):
        """Sum of the figures of that name with these labels."""
        total = 0.0
        for line in self.ask("/metrics")[1].splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def tail(self):
        return "\n".join(self.log.read_text().splitlines()[-20:])

    def send(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Its exit status after SIGTERM."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
        try:
            return self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def requests(self, since=None):
        """What the API server wrote down about this process."""
        for event in self.cluster.audit(self.id):
            if f"JTI={self.id}" in event["user"].get("extra", {}).get("authentication.kubernetes.io/credential-id", []) and (since is None or when(event) >= since):
                yield event

    def writes(self, since=None, leases=False):
        """Its requests that change something: time, verb, resource, name, answer. The lease's are apart."""
        for event in self.requests(since):
            about = event.get("objectRef", {})
            if event["verb"] in WRITES and (about.get("resource") == "leases") == leases:
                yield when(event), event["verb"], about.get("resource"), about.get("name"), event.get("responseStatus", {}).get("code")


def claims(token):
    """What a token says."""
    middle = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))


def when(event):
    return datetime.datetime.fromisoformat(event["requestReceivedTimestamp"])


def now():
    return datetime.datetime.now(datetime.UTC)


class Wire:
    """A way to the API server that can be cut."""

    def __init__(self, target):
        self.target = target
        self.pairs = []
        self.lock = threading.Lock()
        self.delay = 0.0
        # Takes connections.
        self.open = True
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            if not self.open:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.target))
            with self.lock:
                self.pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=(source, sink), daemon=True).start()

    def copy(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Ends every connection; new ones may be made."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        return len(pairs)

    def close(self):
        self.server.close()
        self.cut()
