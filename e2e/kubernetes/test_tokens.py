"""Tokens of service accounts, reviewed by a real API server: the gateway and an engine are processes with what the operator wrote for them."""

import base64
import http.client
import json
import os
import pathlib
import socket
import ssl
import subprocess
import time

import pytest
from pods import BINARY, Container
from running import NAME, Operator, Space, Wire, ask, claims, wait_until

MODEL = pathlib.Path(os.environ.get("KVASIR_TEST_MODEL", ""))
# How long an answer of the API server counts, and a moment.
FORGOTTEN = 12

pytestmark = pytest.mark.skipif(not BINARY.is_file() or not MODEL.is_file(), reason="KVASIR and KVASIR_TEST_MODEL name a binary and a model")


class Door:
    """The gateway, as a client within the cluster sees it."""

    def __init__(self, space, authorities):
        self.space = space
        self.name = f"chat-gateway.{space.name}.svc"
        self.context = ssl.create_default_context(cadata=authorities)

    def ask(self, token, path="/v1/completions"):
        """Status and body of a short request with that token."""
        raw = socket.create_connection(("127.0.0.1", 8443), timeout=60)
        connection = http.client.HTTPSConnection(self.name, timeout=60)
        connection.sock = self.context.wrap_socket(raw, server_hostname=self.name)
        body = json.dumps({"model": "chat", "prompt": "Once upon a time", "max_tokens": 2, "temperature": 0})
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def status(self, token):
        return self.ask(token)[0]


@pytest.fixture(scope="module")
def wire(cluster):
    """The gateway's way to the API server."""
    wire = Wire(cluster.port)
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def space(api):
    space = Space.make(api)
    yield space
    api.delete("Namespace", None, space.name)


@pytest.fixture(scope="module")
def door(api, cluster, chart, space, wire, tmp_path_factory):
    """A gateway in front of an engine, both with the files, arguments and rights of their pods."""
    folder = tmp_path_factory.mktemp("tokens")
    operator = Operator(cluster, folder, namespace=None).wait_for("working")
    space.create(
        model={"source": {"pvc": {"claimName": "models", "path": MODEL.name}}},
        engine={"maxModelLen": 256, "kv": {"memory": "64Mi"}, "ports": {"metrics": 29090}},
        gateway={"replicas": 1, "auth": {"mode": "TokenReview"}, "tenants": [{"name": "alice"}, {"name": "other", "models": ["another"]}]})
    space.ready()
    binding = f"{NAME}-token-reviewers"
    wait_until(lambda: any(s["namespace"] == space.name for s in api.get("ClusterRoleBinding", None, binding).get("subjects", [])), "the right to review")
    # Whatever happens from here on, the pods' files are what they are now.
    assert operator.stop() == 0
    for name in ("alice", "bob", "other"):
        api.create("ServiceAccount", space.name, {"metadata": {"name": name}})
    engines = f"chat-engines.{space.name}.svc.cluster.local."
    server = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(wire.port)}
    pods = [
        Container(space, space.pods("engine")[0], folder, claims={"models": MODEL.parent}),
        Container(space, space.pods("gateway")[0], folder, variables=server, hosts=[engines]),
    ]
    try:
        for pod in pods:
            pod.start()
        pods[1].wait_for(lambda: figure("/ready")[0] == 200, "the gateway is ready")
        trust = base64.b64decode(space.get("Secret", "chat-trust")["data"]["ca.crt"]).decode()
        yield Door(space, trust)
    finally:
        for pod in pods:
            pod.stop()


def figure(path):
    """Status and text of the gateway's own port."""
    return ask(9090, path)


def answered(tenant):
    """Requests of a tenant that were answered."""
    lines = [line for line in figure("/metrics")[1].splitlines() if line.startswith("kvasir_gateway_requests_total") and f'tenant="{tenant}"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def signed(cluster, content):
    """A token with that content, signed by the cluster's own key."""
    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    head, _, _ = content["token"].split(".")
    text = head.encode() + b"." + part(json.dumps(content["claims"]).encode())
    key = cluster.state / "pki/accounts.key"
    made = subprocess.run(["openssl", "dgst", "-sha256", "-sign", key], input=text, capture_output=True, check=True)
    return (text + b"." + part(made.stdout)).decode()


def test_an_account_of_the_namespace_is_the_tenant_of_its_name(door, space):
    before = answered("alice")
    code, body = door.ask(space.token("alice", door.name))
    assert code == 200 and body["usage"]["completion_tokens"] == 2, body
    assert answered("alice") == before + 1
    # A tenant, but not for this model.
    assert door.status(space.token("other", door.name)) == 404


def test_a_token_for_somebody_else_or_of_nobody_is_refused(door, space):
    good = space.token("alice", door.name)
    header, middle, signature = good.split(".")
    refused = {
        "none": None, "empty": "", "garbage": "garbage", "long": "x" * 20_000,
        "for the API server": space.token("alice"), "for another gateway": space.token("alice", f"chat-gateway.{space.name}x.svc"),
        "no tenant": space.token("bob", door.name), "unsigned": f"{header}.{middle}.", "cut": good[:-2],
        "another's content": ".".join([header, space.token("bob", door.name).split(".")[1], signature]),
    }
    assert {what: door.status(token) for what, token in refused.items()} == dict.fromkeys(refused, 401)
    assert door.status(good) == 200


def test_an_account_of_the_same_name_elsewhere_is_nobody(api, door):
    elsewhere = Space.make(api)
    try:
        api.create("ServiceAccount", elsewhere.name, {"metadata": {"name": "alice"}})
        assert door.status(elsewhere.token("alice", door.name)) == 401
    finally:
        api.delete("Namespace", None, elsewhere.name)


def test_a_token_whose_time_is_over_is_refused(cluster, door, space):
    token = space.token("alice", door.name)
    content = claims(token)
    assert door.status(signed(cluster, {"token": token, "claims": content})) == 200
    over = {**content, "iat": content["iat"] - 7200, "nbf": content["nbf"] - 7200, "exp": content["iat"] - 3600}
    assert door.status(signed(cluster, {"token": token, "claims": over})) == 401


def test_a_token_ends_with_its_account(api, door, space):
    token = space.token("alice", door.name)
    assert door.status(token) == 200
    api.delete("ServiceAccount", space.name, "alice")
    wait_until(lambda: door.status(token) == 401, "the token of a deleted account is refused", FORGOTTEN)
    api.create("ServiceAccount", space.name, {"metadata": {"name": "alice"}})
    # Another account of that name: the old token stays refused, a new one works.
    time.sleep(FORGOTTEN)
    assert door.status(token) == 401
    assert door.status(space.token("alice", door.name)) == 200


def test_without_the_api_server_nobody_new_gets_in_and_with_it_everybody_again(door, space, wire):
    known, new = space.token("alice", door.name), space.token("alice", door.name)
    assert door.status(known) == 200
    wire.open = False
    wire.cut()
    try:
        # What it said lately counts for a few seconds more, and then that token isn't known any more than a new one.
        assert door.status(new) == 401
        wait_until(lambda: door.status(known) == 401, "what was known is forgotten", FORGOTTEN)
    finally:
        wire.open = True
    # A refusal for want of an answer isn't kept.
    for token in (known, new):
        wait_until(lambda token=token: door.status(token) == 200, "it is reviewed again", 5)
    assert door.status("garbage") == 401
