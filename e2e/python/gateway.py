"""Starts the real gateway before one real engine, and knows how to talk to it with TLS."""

import contextlib
import http.client
import json
import pathlib
import re
import socket
import ssl
import subprocess
import tempfile
import time

import server as kvasir


class Gateway:
    """A gateway with TLS before one engine."""

    def __init__(self, port: int, operations: int, authority: str, key: str, process, log: pathlib.Path):
        self.port, self.operations, self.authority, self.key, self.process, self.log = port, operations, authority, key, process, log

    def connect(self, alpn=("http/1.1",), timeout=30.0) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.authority)
        context.set_alpn_protocols(list(alpn))
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        return context.wrap_socket(plain, server_hostname="localhost")

    def ask(self, key=None, timeout=60.0) -> int:
        """A good request; the status of its answer."""
        context = ssl.create_default_context(cafile=self.authority)
        connection = http.client.HTTPSConnection("localhost", self.port, context=context, timeout=timeout)
        body = json.dumps({"prompt": "a", "max_tokens": 1})
        headers = {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", "/v1/completions", body, headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def resident_bytes(self) -> int:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024

    def raw(self, request: bytes, timeout=30.0) -> bytes:
        """Everything that is said until the connection ends, or for a second without news."""
        with self.connect(timeout=timeout) as stream:
            said = b""
            with contextlib.suppress(TimeoutError, ConnectionError, ssl.SSLError):
                stream.sendall(request)
                while True:
                    stream.settimeout(timeout if not said else 1.0)
                    part = stream.recv(65536)
                    if not part:
                        break
                    said += part
            return said


def make_certificate(folder: pathlib.Path):
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key",
            "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority", "-addext", "keyUsage=keyCertSign")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "tls.key",
            "-out", "tls.csr", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", "tls.pem", "-days", "2", "-copy_extensions", "copy")


@contextlib.contextmanager
def start(*engine_flags: str, **changes):
    """`changes` are members of the gateway's file that take the place of those here."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_certificate(folder)
        (folder / "salt").write_bytes(bytes(range(32)))
        new_key = subprocess.run(
            [kvasir.KVASIR, "gateway", "keys", "new", "--tenant", "acme"], check=True, capture_output=True, text=True
        )
        (folder / "keys.yaml").write_text(new_key.stdout)
        key = re.search(r"kv_\S+", new_key.stderr).group(0)
        (folder / "jwks.json").write_text(json.dumps({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}))
        engine_port, port, operations = kvasir.free_port(), kvasir.free_port(), kvasir.free_port()
        config = {
            "listen": f"127.0.0.1:{port}",
            "operationsListen": f"127.0.0.1:{operations}",
            "tls": {"certificate": str(folder / "tls.pem"), "key": str(folder / "tls.key")},
            "auth": {
                "apiKeys": {"files": [str(folder / "keys.yaml")]},
                "jwt": [{"issuer": "https://issuer.test", "audiences": ["kvasir"], "tenant": "acme",
                         "jwks": {"file": str(folder / "jwks.json")}}],
            },
            "tenants": [{"name": "acme", "models": "*"}],
            "cacheSalt": {"secretFile": str(folder / "salt")},
            "engines": {"static": [{"address": f"127.0.0.1:{engine_port}"}]},
        }
        (folder / "gateway.yaml").write_text(json.dumps(config | changes))
        log = folder / "log"
        commands = [
            [kvasir.KVASIR, "engine", kvasir.MODEL, f"--listen=127.0.0.1:{engine_port}",
             "--kv-cache-memory-bytes=256MiB", "--gateway-mode", *engine_flags],
            [kvasir.KVASIR, "gateway", "run", "--config", str(folder / "gateway.yaml")],
        ]
        with open(log, "wb") as output:
            processes = [subprocess.Popen(command, stdout=output, stderr=output) for command in commands]
            running = Gateway(port, operations, str(folder / "ca.pem"), key, processes[1], log)
            try:
                wait_until_served(running, processes)
                yield running
                assert processes[1].poll() is None, log.read_text(errors="replace")[-3000:]
            finally:
                kvasir.end(processes, 40)


def wait_until_served(running: Gateway, processes):
    end = time.monotonic() + 120
    while True:
        said = running.log.read_text(errors="replace")[-3000:]
        assert all(process.poll() is None for process in processes), said
        with contextlib.suppress(OSError, http.client.HTTPException):
            if running.ask() == 200:
                return
        assert time.monotonic() < end, said
        time.sleep(0.2)
