"""An operator that is killed again and again in the middle of what it does."""

import http.client
import json
import signal
import threading

import pytest
from handover import OPERATOR, Watched, give
from running import NAME, NAMESPACE, wait_until


class Killer:
    """Ends an operator after each so many writes of Secrets, at once and without a word, and starts the next one."""

    def __init__(self, api, space, start, every):
        self.api, self.space, self.start, self.every = api, space, start, every
        self.kills = 0
        self.operator = start()
        self.failure = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        # Something happens, so that the stream says something.
        give_note(self.space)
        self.thread.join(60)

    def run(self):
        try:
            for number, _ in enumerate(self.events(), 1):
                if self.ended.is_set():
                    return
                if number % self.every == 0:
                    self.kill()
        except Exception as failure:  # noqa: BLE001
            self.failure = failure

    def kill(self):
        self.operator.send(signal.SIGKILL)
        self.operator.process.wait()
        # It gives nothing back, and its successor needn't wait for it.
        self.api.delete("Lease", NAMESPACE, NAME)
        self.kills += 1
        self.operator = self.start()

    def events(self):
        """Changes of the service's Secrets from now on."""
        path = self.api.path("Secret", self.space.name)
        version = self.api.request("GET", path)["metadata"]["resourceVersion"]
        connection = http.client.HTTPSConnection("127.0.0.1", self.api.port, context=self.api.context, timeout=600)
        connection.request("GET", f"{path}?watch=1&resourceVersion={version}")
        for line in connection.getresponse():
            event = json.loads(line)
            if event["object"]["metadata"]["name"].startswith("chat-"):
                yield event


def give_note(space):
    space.api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-note", "namespace": space.name}})


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_handover_survives_the_end_of_its_operator_after_any_write(api, authority, operators, space, tmp_path, wire, every):
    """At every moment every pod trusts whatever another one shows, and none is replaced."""
    # So slow that an end falls between two writes.
    wire.delay = 0.02

    def start():
        return operators("--trust-time=6", "--resync=5", port=wire.port)

    first = start().wait_for("working")
    space.create()
    space.ready()
    assert first.stop() == 0
    uids, watched = space.uids(), Watched(space, tmp_path)
    give(space, authority, "given", *(f"spiffe://kvasir.dev/ns/{space.name}/service/chat/{part}" for part in ("engine", "gateway")))
    give(space, authority, "ours", OPERATOR)
    with Killer(api, space, start, every) as killer:
        space.change({"tls": {"mode": "Provided", "secretName": "given", "operatorSecretName": "ours"}})
        watched.until_signed_by(authority, seconds=240)
        wait_until(lambda: watched.look() and not space.get("Secret", "chat-authority"), "the operator's own authority goes", 120)
        space.change({"tls": {"mode": "Internal", "secretName": None, "operatorSecretName": None}})
        watched.until_signed_by(None, but=authority, seconds=240)
        assert killer.kills > 8 / every
    assert killer.failure is None
    space.wait("CertificatesReady", "True", "Issued")
    space.ready()
    assert space.uids() == uids
    wait_until(lambda: space.condition("Progressing") == ("False", "Complete"), lambda: space.status())
