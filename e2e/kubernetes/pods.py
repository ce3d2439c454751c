"""A container of a pod as a process of this machine: its volumes are files at its own paths, its arguments and variables are those that the
operator wrote. It shares the machine's network, so the names of Services are this machine, as far as `/etc/hosts` says so."""

import base64
import contextlib
import os
import pathlib
import shlex
import signal
import subprocess

from waiting import wait_until

BINARY = pathlib.Path(os.environ.get("KVASIR", ""))
# Of this machine, as an image would bring it.
SHARED = ("/usr", "/proc", "/sys", "/dev")


class Container:
    """The first container of `pod`. `claims` says where claims lie, `variables` what else its environment has."""

    def __init__(self, space, pod, folder, *, claims=None, variables=None, hosts=()):
        self.space, self.pod = space, pod
        self.root = folder / pod["metadata"]["name"]
        self.log = folder / f"{pod['metadata']['name']}.log"
        self.binds = []
        spec = pod["spec"]
        container = spec["containers"][0]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in container["volumeMounts"]:
            self.mount(self.root / mount["mountPath"].lstrip("/"), volumes[mount["name"]], claims or {})
        self.write(self.root / "etc/hosts", "".join(f"127.0.0.1 {name}\n" for name in ("localhost", *hosts)).encode())
        self.write(self.root / "etc/nsswitch.conf", b"hosts: files\n")
        self.environment = {"PATH": "/usr/sbin:/usr/bin", **dict(self.variable(v) for v in container.get("env", [])), **(variables or {})}
        self.arguments = container["args"]
        self.process = None

    @staticmethod
    def write(path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def mount(self, place, volume, claims):
        place.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            self.config_map(place, volume["configMap"])
        elif "secret" in volume:
            self.secret(place, volume["secret"]["secretName"])
        elif "projected" in volume:
            for source in volume["projected"]["sources"]:
                self.project(place, source)
        elif "persistentVolumeClaim" in volume:
            self.binds.append((claims[volume["persistentVolumeClaim"]["claimName"]], place))
        else:
            assert "emptyDir" in volume, volume

    def project(self, place, source):
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            self.write(place / wanted["path"], self.space.token(self.pod["spec"]["serviceAccountName"]).encode())
        elif "configMap" in source:
            self.config_map(place, source["configMap"])
        else:
            self.secret(place, source["secret"]["name"])

    def config_map(self, place, source):
        data = self.space.get("ConfigMap", source["name"])["data"]
        for item in source.get("items") or [{"key": key, "path": key} for key in data]:
            self.write(place / item["path"], data[item["key"]].encode())

    def secret(self, place, name):
        for key, value in self.space.get("Secret", name)["data"].items():
            self.write(place / key, base64.b64decode(value))

    def variable(self, variable):
        if "valueFrom" not in variable:
            return variable["name"], variable.get("value", "")
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        if path == "status.podIP":
            return variable["name"], "127.0.0.1"
        if path.startswith("metadata.labels["):
            return variable["name"], self.pod["metadata"]["labels"][path.split("'")[1]]
        return variable["name"], self.pod["metadata"][path.removeprefix("metadata.")]

    def start(self):
        """In a mount namespace of its own, so that its paths are the container's and nothing stays mounted."""
        binds = [*((place, self.root / place.lstrip("/")) for place in SHARED), *self.binds]
        steps = [f"mkdir -p {shlex.quote(str(to))} && mount --rbind {shlex.quote(str(source))} {shlex.quote(str(to))}" for source, to in binds]
        binary = self.root / "kvasir"
        binary.touch()
        steps.append(f"mount --bind {shlex.quote(str(BINARY))} {shlex.quote(str(binary))}")
        steps.extend(f"ln -sfn usr/{name} {shlex.quote(str(self.root / name))}" for name in ("lib", "lib64", "bin"))
        steps.append("exec " + shlex.join(["chroot", str(self.root), "/kvasir", *self.arguments]))
        alone = ["unshare", "--mount", *(["--user", "--map-root-user"] if os.geteuid() else [])]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*alone, "sh", "-ec", "\n".join(steps)], env=self.environment, stdout=log, stderr=log)
        return self

    def wait_for(self, check, what):
        def there():
            assert self.process.poll() is None, self.tail()
            return check()

        return wait_until(there, lambda: f"{what}\n{self.tail()}", 60)

    def tail(self):
        return "\n".join(self.log.read_text().splitlines()[-20:])

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
