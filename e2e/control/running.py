"""The operator as a process, a client without kubectl's start-up time, and a connection that can be cut."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).parents[2]
BINARY = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/kvasir-operator"

# Where each kind is found: the beginning of its path, and its plural.
KINDS = {
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "Pod": ("/api/v1", "pods"),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Ingress": ("/apis/networking.k8s.io/v1", "ingresses"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "ControllerRevision": ("/apis/apps/v1", "controllerrevisions"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "InferenceService": ("/apis/kvasir.dev/v1alpha1", "inferenceservices"),
    "Event": ("/apis/events.k8s.io/v1", "events"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
}
CHILDREN = [kind for kind in KINDS if kind not in ("Pod", "InferenceService", "Event", "Lease")]
MERGE = "application/merge-patch+json"


def wait_until(check, what, timeout=60):
    """Polls until `check` returns something true, and returns that."""
    deadline = time.monotonic() + timeout
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout} s: {what() if callable(what) else what}"
        time.sleep(0.1)


class Cluster:
    """Runs kubectl against the control plane."""

    def __init__(self, environment):
        self.environment = environment

    def kubectl(self, *arguments, stdin=None, check=True):
        done = subprocess.run(
            [ROOT / "e2e/cluster", "kubectl", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=120,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done


class Refused(Exception):
    def __init__(self, code, body):
        super().__init__(f"{code}: {body}")
        self.code = code


class Api:
    """Requests to the API server as the administrator, or as somebody else."""

    def __init__(self, state, port, user=None):
        pki = pathlib.Path(state) / "pki"
        self.context = ssl.create_default_context(cafile=pki / "ca.crt")
        self.context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self.port = port
        self.headers = {"Accept": "application/json"}
        if user:
            self.headers["Impersonate-User"] = user
        self.local = threading.local()

    def request(self, method, path, body=None, content="application/json"):
        for again in (False, True):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=30)
                self.local.connection = connection
            try:
                connection.request(method, path, json.dumps(body) if body is not None else None, {**self.headers, "Content-Type": content})
                answer = connection.getresponse()
                text = answer.read()
                break
            except (OSError, http.client.HTTPException):
                connection.close()
                self.local.connection = None
                if again:
                    raise
        if answer.status >= 400:
            raise Refused(answer.status, text.decode())
        return json.loads(text) if text else None

    @staticmethod
    def path(kind, namespace, name=""):
        base, plural = KINDS[kind]
        return f"{base}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")

    def get(self, kind, namespace, name):
        try:
            return self.request("GET", self.path(kind, namespace, name))
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def list(self, kind, namespace=None, labels=None):
        base, plural = KINDS[kind]
        path = self.path(kind, namespace) if namespace else f"{base}/{plural}"
        if labels:
            path += "?labelSelector=" + urllib.parse.quote(labels)
        return self.request("GET", path)["items"]

    def create(self, kind, namespace, body):
        base, _ = KINDS[kind]
        body = {"apiVersion": base.removeprefix("/apis/").removeprefix("/api/"), "kind": kind, **body}
        return self.request("POST", self.path(kind, namespace), body)

    def patch(self, kind, namespace, name, body, subresource=""):
        path = self.path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return self.request("PATCH", path, body, MERGE)

    def delete(self, kind, namespace, name):
        try:
            return self.request("DELETE", self.path(kind, namespace, name), {"propagationPolicy": "Background"})
        except Refused as refused:
            if refused.code != 404:
                raise
            return None

    def children(self, namespace, service):
        """Everything that carries the service's label, by kind and name."""
        found = {}
        for kind in CHILDREN:
            for item in self.list(kind, namespace, f"kvasir.dev/service={service}"):
                # The Deployment's and the StatefulSet's own revisions carry their pods' labels.
                owners = item["metadata"].get("ownerReferences", [])
                if any(owner["kind"] == "InferenceService" for owner in owners):
                    found[kind, item["metadata"]["name"]] = {**item, "kind": kind}
        return found

    def condition(self, namespace, name, kind):
        """Status and reason of a condition."""
        found = self.get("InferenceService", namespace, name) or {}
        for condition in found.get("status", {}).get("conditions", []):
            if condition["type"] == kind:
                return condition["status"], condition["reason"]
        return None

    def play(self, namespace, pod, ready=True, **state):
        """Does what a kubelet would: says how a pod is."""
        container = {"name": "engine", "image": "x", "imageID": "", "ready": ready, "restartCount": 0, "state": {"running": {}}, **state}
        status = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": "2026-11-30T00:00:00Z"}],
            "containerStatuses": [container],
        }
        self.patch("Pod", namespace, pod, {"status": status}, "status")

    def play_all(self, namespace, service):
        """All pods of a service are ready, those that appear while this waits too."""
        done = set()

        def ready():
            for pod in self.list("Pod", namespace, f"kvasir.dev/service={service}"):
                uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
                if uid not in done:
                    with contextlib.suppress(Refused):
                        self.play(namespace, name)
                        done.add(uid)
            return self.condition(namespace, service, "Ready") == ("True", "AllComponentsReady")

        wait_until(ready, lambda: (self.get("InferenceService", namespace, service) or {}).get("status"))


def service(name, **spec):
    """A manifest with the one required field."""
    spec = {"model": {"source": {"pvc": {"claimName": "models"}}}, **spec}
    return {"metadata": {"name": name}, "spec": spec}


class Operator:
    """One replica of the operator, in a process of its own."""

    def __init__(self, cluster, folder, *arguments, user=None, namespace=None, lease="kvasir-operator", port=None):
        self.user = user
        self.port = free_port()
        self.log = folder / f"operator-{self.port}.log"
        config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json").stdout)
        if user:
            config["users"][0]["user"]["as"] = user
            config["users"][0]["user"]["as-groups"] = ["system:masters"]
        if port:
            config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        kubeconfig = folder / f"operator-{self.port}.kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        scope = ["--watch-namespace", namespace] if namespace else []
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [BINARY, "run", "--listen", f"127.0.0.1:{self.port}", "--operator-namespace", "default", "--operator-name", lease, "--log-level", "debug", *scope, *arguments],
                env={**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": user or "operator"},
                stdout=log,
                stderr=log,
            )

    def ask(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def phase(self):
        return self.ask("/readyz")[1].strip()

    def wait_for(self, phase, timeout=60):
        def there():
            assert self.process.poll() is None, self.tail()
            return self.phase() == phase

        wait_until(there, lambda: f"{phase}: {self.phase()}\n{self.tail()}", timeout)
        return self

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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Wire:
    """A way to the API server that can be cut."""

    def __init__(self, target):
        self.target = target
        self.pairs = []
        self.lock = threading.Lock()
        self.delay = 0.0
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


def audit(state):
    """Requests of the audit log, oldest first."""
    with (pathlib.Path(state) / "log/audit.jsonl").open() as log:
        for line in log:
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)
