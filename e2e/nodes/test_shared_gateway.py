"""One gateway for the models of two services, on real nodes; a third service beside them has its own."""

import json
import time

import pytest

from cluster import Cluster, Service, wait_until
from test_isolation import SMALL, keyed, reached_by


@pytest.fixture(scope="module")
def services(operator, client):
    """`front` with the gateway, `back` behind it, and `other` with its own."""
    with Service.applied(operator, "front", keyed("front"), wait=0) as front:
        back = front.neighbour("back", {"engine": SMALL, "gateway": {"enabled": False, "gatewayRef": {"name": "front"}}})
        other = front.neighbour("other", keyed("other"))
        front.secret, other.secret = front.key("keys-front"), other.key("keys-other")
        for service in (front, back, other):
            service.wait_until_ready(240)
        yield front, back, other


def asked(service, client):
    """What each model behind a gateway answers; the kubelet brings the gateway's file late."""
    return json.loads(client.python("models.py", f"https://{service.host}/v1", service.authority(), service.secret).stdout)


def test_one_address_and_one_key_lead_to_both_models_and_a_change_restarts_no_gateway(services, client):
    front, back, _ = services
    assert back.get()["status"]["gateway"] == front.get()["status"]["gateway"]
    assert not back.pods("gateway")
    gateways = {pod["metadata"]["uid"] for pod in front.gateways()}
    wait_until(lambda: set(asked(front, client)) == {"front", "back"}, lambda: asked(front, client), 120, pause=2)
    answers = asked(front, client)
    assert {name: answer.get("model") for name, answer in answers.items()} == {"front": "front", "back": "back"}
    assert all("Paris" in answer["answer"] for answer in answers.values()), answers
    # Each has its own engines: without those of one, the other one answers.
    front.patch({"replicas": 0})
    wait_until(lambda: not front.pods("engine"), seconds=60)
    answers = asked(front, client)
    assert "Paris" in answers["back"]["answer"] and answers["front"]["status"] == 503, answers
    front.patch({"replicas": 1})
    front.wait_until_ready()
    # An alias reaches the running gateway.
    back.patch({"model": {"aliases": ["rear"]}})
    wait_until(lambda: "rear" in asked(front, client), lambda: asked(front, client), 120, pause=2)
    assert {pod["metadata"]["uid"] for pod in front.gateways()} == gateways


def test_a_third_services_gateway_reaches_neither_and_the_shared_one_no_third(services, cluster):
    front, back, other = services
    [shared], [own] = front.gateways(), other.gateways()
    assert reached_by(cluster, shared, back) == ["engine grpc"]
    assert reached_by(cluster, shared, other) == []
    assert reached_by(cluster, own, back) == []
    for pod in front.engines() + other.engines():
        assert reached_by(cluster, pod, back) == [], pod["metadata"]["name"]


def test_a_rollout_behind_a_shared_gateway_loses_nothing(services, client):
    front, back, other = services
    # Three engines are what the nodes have room for.
    other.patch({"replicas": 0})
    wait_until(lambda: not other.pods("engine"), seconds=60)
    before = {pod["metadata"]["uid"] for pod in back.engines()}
    load = front.load(client, 4, front.secret, "back")
    try:
        back.patch({"engine": {"maxModelLen": 896}, "model": {"aliases": ["rear", "stern"]}})
        wait_until(lambda: back.engines() and not before & {pod["metadata"]["uid"] for pod in back.engines()}, seconds=180)
        # The last change must have met running streams too.
        time.sleep(2)
    finally:
        counted = load.stop()
    Cluster.measured.append(f"rollout behind a shared gateway: {counted['finished']} streams, {len(counted['failures'])} lost")
    assert counted["failures"] == [] and counted["finished"] > 0
