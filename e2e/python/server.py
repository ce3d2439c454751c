"""Starts the real binary in both process shapes and knows how to look at it from outside."""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

KVASIR = os.environ.get("KVASIR", "kvasir")
MODEL = os.environ.get("KVASIR_TEST_MODEL", "")
KEY = "test-Key-0123456789"
START_DEADLINE_SECONDS = 120


class Server:
    """A running edge, with its engine in the same process or in another one."""

    def __init__(self, shape: str, processes: list, port: int, log: pathlib.Path):
        self.shape = shape
        self.processes = processes
        self.port = port
        self.log = log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> str:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read().decode()

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        pattern = re.compile(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", re.MULTILINE)
        values = [float(value) for value in pattern.findall(self.get("/metrics"))]
        assert values, f"{name} isn't in /metrics"
        return sum(values)

    def resident_bytes(self) -> int:
        total = 0
        for process in self.processes:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            total += int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024
        return total

    def eventually(self, condition, what: str, deadline_seconds: float = 60.0):
        end = time.monotonic() + deadline_seconds
        while not condition():
            assert time.monotonic() < end, f"{what}: not within {deadline_seconds} s\n{self.log_tail()}"
            time.sleep(0.05)

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def alive(self) -> bool:
        return all(process.poll() is None for process in self.processes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end(processes: list, patience_seconds: float):
    """Ends processes, the last one first, so that nobody loses whom it asks."""
    for process in reversed(processes):
        process.send_signal(signal.SIGTERM)
    for process in reversed(processes):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_seconds)
        process.kill()


@contextlib.contextmanager
def start(shape: str, *flags: str):
    """Runs `kvasir serve` ("serve"), or `kvasir engine` with `kvasir serve --engine` before it ("split")."""
    assert MODEL, "KVASIR_TEST_MODEL names no model; run e2e/test, or set it to a GGUF file"
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        port = free_port()
        edge = ["--host", "127.0.0.1", "--port", str(port), "--api-key", KEY, "--served-model-name", "smollm2"]
        engine_flags = [flag for flag in flags if flag.startswith(ENGINE_FLAGS + SHARED_FLAGS)]
        edge_flags = [flag for flag in flags if not flag.startswith(ENGINE_FLAGS)]
        if shape == "serve":
            commands = [[KVASIR, "serve", MODEL, *edge, *flags]]
        else:
            listener = f"unix:{folder}/engine.sock"
            commands = [
                [KVASIR, "engine", MODEL, "--listen", listener, *engine_flags],
                [KVASIR, "serve", "--engine", listener, *edge, *edge_flags],
            ]
        processes = []
        with open(log, "wb") as output:
            server = Server(shape, processes, port, log)
            try:
                for command in commands:
                    if len(processes) == 1:
                        server.eventually(
                            lambda: pathlib.Path(f"{folder}/engine.sock").exists(), "the engine's socket", 60
                        )
                    processes.append(subprocess.Popen(command, stdout=output, stderr=output))
                server.eventually(lambda: _ready(server), f"{shape} becomes ready", START_DEADLINE_SECONDS)
                yield server
                assert server.alive(), f"a process of {shape} died during the test\n{server.log_tail()}"
            finally:
                end(processes, 30)


# Flags that belong to the engine when the edge is another process; given as --flag=value.
ENGINE_FLAGS = (
    "--kv-cache-memory-bytes", "--max-num-seqs", "--max-num-batched-tokens", "--max-num-queued", "--max-model-len",
    "--threads", "--block-size", "--kv-events-config",
)

# Flags that both processes take.
SHARED_FLAGS = ("--log-level",)


def _ready(server: Server) -> bool:
    assert server.alive(), f"a process of {server.shape} died at start\n{server.log_tail()}"
    try:
        with urllib.request.urlopen(server.url + "/ready", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
