"""Kinds that other projects define: the Gateway API's and the Prometheus operator's, as objects on a real API server."""

import time

import pytest
from running import MERGE, Refused, typed, wait_until

HOST = "chat.example.com"


def definition(group, kind, plural, version="v1"):
    """As much of a definition as an object needs to be stored."""
    return {
        **typed("CustomResourceDefinition"),
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [{
                "name": version, "served": True, "storage": True, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                }}},
            }],
        },
    }


GATEWAY_API = "gateway.networking.k8s.io"
PROMETHEUS = "monitoring.coreos.com"
DEFINITIONS = [
    definition(GATEWAY_API, "HTTPRoute", "httproutes"),
    definition(GATEWAY_API, "BackendTLSPolicy", "backendtlspolicies"),
    definition(PROMETHEUS, "PodMonitor", "podmonitors"),
    definition(PROMETHEUS, "ServiceMonitor", "servicemonitors"),
    definition(PROMETHEUS, "PrometheusRule", "prometheusrules"),
]


@pytest.fixture(scope="module")
def kinds(api, chart):
    """The cluster knows them."""
    names = [item["metadata"]["name"] for item in DEFINITIONS]
    api.apply(*DEFINITIONS)

    def established():
        for name in names:
            conditions = api.get("CustomResourceDefinition", None, name).get("status", {}).get("conditions") or []
            if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return False
        return True

    wait_until(established, "the definitions")
    yield
    for name in names:
        api.delete("CustomResourceDefinition", None, name)
    wait_until(lambda: not any(api.get("CustomResourceDefinition", None, name) for name in names), "the definitions go")


def listed(api, space, group, plural):
    return api.request("GET", f"/apis/{group}/v1/namespaces/{space.name}/{plural}")["items"]


def test_a_route_is_made_with_its_policy_and_what_gateways_say_of_it_is_said(api, kinds, operators, space):
    operators().wait_for("working")
    route = {"parentRefs": [{"name": "edge", "namespace": "infra"}], "hostnames": [HOST]}
    space.create(gateway={"replicas": 1, "auth": {"apiKeySecrets": [{"name": "keys"}]}, "route": route})
    space.ready()
    assert space.status()["gateway"]["url"] == f"https://{HOST}"
    assert "no Gateway has said yet" in space.message("GatewayReady")
    [made] = listed(api, space, GATEWAY_API, "httproutes")
    assert made["spec"]["hostnames"] == [HOST] and made["spec"]["parentRefs"] == route["parentRefs"]
    backend = made["spec"]["rules"][0]["backendRefs"][0]
    service = space.get("Service", backend["name"])
    assert [port["port"] for port in service["spec"]["ports"]] == [backend["port"]]
    [policy] = listed(api, space, GATEWAY_API, "backendtlspolicies")
    trusted = policy["spec"]["validation"]["caCertificateRefs"][0]["name"]
    assert space.get("ConfigMap", trusted)["data"]["ca.crt"].startswith("-----BEGIN CERTIFICATE-----")

    path = f"/apis/{GATEWAY_API}/v1/namespaces/{space.name}/httproutes/{made['metadata']['name']}/status"

    def say(status, reason):
        condition = {"type": "Accepted", "status": status, "reason": reason, "message": "it says so", "lastTransitionTime": "2026-11-30T00:00:00Z"}
        parent = {"parentRef": route["parentRefs"][0], "controllerName": "example.com/edge", "conditions": [condition]}
        api.request("PATCH", path, {"status": {"parents": [parent]}}, MERGE)

    say("False", "NotAllowedByListeners")
    space.wait("GatewayReady", "False", "RouteNotAccepted")
    assert "NotAllowedByListeners: it says so" in space.message("GatewayReady")
    say("True", "Accepted")
    space.wait("GatewayReady", "True", "Available")
    # Whoever doesn't want it any more has nothing left of it.
    space.change({"gateway": {"route": None}})
    wait_until(lambda: not listed(api, space, GATEWAY_API, "httproutes") + listed(api, space, GATEWAY_API, "backendtlspolicies"), "the route goes")
    assert not space.get("ConfigMap", trusted)


def test_a_service_monitor_replaces_the_pod_monitor_and_selects_every_pods_metrics(api, kinds, operators, space):
    operators().wait_for("working")
    space.create(observability={"labels": {"release": "prometheus"}})
    space.ready()
    assert len(listed(api, space, PROMETHEUS, "podmonitors")) == 1
    space.change({"observability": {"serviceMonitor": True}})
    wait_until(lambda: listed(api, space, PROMETHEUS, "servicemonitors") and not listed(api, space, PROMETHEUS, "podmonitors"), "one monitor for the other")
    [monitor] = listed(api, space, PROMETHEUS, "servicemonitors")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    wanted = monitor["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in wanted.items())
    [service] = space.list("Service", selector)

    def found():
        """Pods behind the Service, with the port that each is scraped at."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{space.name}/endpointslices?labelSelector=kubernetes.io/service-name%3D{service['metadata']['name']}"
        slices = api.request("GET", path)["items"]
        return {end["targetRef"]["name"] for item in slices for end in item.get("endpoints") or [] if item.get("ports")}

    pods = {pod["metadata"]["name"] for component in ("engine", "gateway") for pod in space.pods(component)}
    wait_until(lambda: found() == pods, lambda: f"{found()} instead of {pods}")


def test_what_somebody_changes_is_set_back_and_what_nobody_wants_goes(api, kinds, operators, space):
    operators().wait_for("working")
    gateway = {"replicas": 1, "auth": {"apiKeySecrets": [{"name": "keys"}]}}
    gateway |= {"route": {"parentRefs": [{"name": "edge"}]}, "ingress": {"host": HOST}}
    space.create(gateway=gateway, observability={"podMonitor": True, "rules": True})
    space.ready()
    assert space.list("Ingress")

    def set_back(group, plural):
        [made] = wait_until(lambda: listed(api, space, group, plural), plural)
        path = f"/apis/{group}/v1/namespaces/{space.name}/{plural}/{made['metadata']['name']}"
        api.request("PATCH", path, {"spec": {"edited": "by somebody"}}, MERGE)
        wait_until(lambda: api.request("GET", path)["spec"] == made["spec"], lambda: api.request("GET", path))

    for group, plural in [(GATEWAY_API, "httproutes"), (GATEWAY_API, "backendtlspolicies"), (PROMETHEUS, "podmonitors"), (PROMETHEUS, "prometheusrules")]:
        set_back(group, plural)
    space.change({"observability": {"serviceMonitor": True}})
    set_back(PROMETHEUS, "servicemonitors")
    space.change({"gateway": {"route": None, "ingress": None}, "observability": {"podMonitor": False, "serviceMonitor": False, "rules": False}})
    left = lambda: [made["kind"] for item in DEFINITIONS for made in listed(api, space, item["spec"]["group"], item["spec"]["names"]["plural"])]  # noqa: E731
    wait_until(lambda: not left() and not space.list("Ingress"), left)


def test_a_kind_that_the_cluster_loses_is_forgotten_and_holds_nothing_up(api, kinds, operators, space):
    """Whoever uninstalls Prometheus' operator takes its definitions with it."""
    operator = operators("--resync=3").wait_for("working")
    space.create(replicas=2)
    wait_until(lambda: space.status().get("readyReplicas") == 2, lambda: space.status())

    def monitors():
        try:
            return listed(api, space, PROMETHEUS, "podmonitors")
        except Refused:
            return None

    wait_until(monitors, "the monitor")
    [monitored] = [item for item in DEFINITIONS if item["metadata"]["name"].startswith("podmonitors")]
    api.delete("CustomResourceDefinition", None, monitored["metadata"]["name"])
    wait_until(lambda: monitors() is None, "the definition goes")
    space.change({"replicas": 1})
    wait_until(lambda: len(space.groups()) == 1, "the group goes", 60)

    def quiet():
        before = operator.figure("kvasir_operator_writes_total", kind="PodMonitor", result="failed")
        time.sleep(4)
        return operator.figure("kvasir_operator_writes_total", kind="PodMonitor", result="failed") == before

    wait_until(quiet, "nobody tries any more")
    assert space.condition("Accepted") == ("True", "Valid")
    api.apply(monitored)
    wait_until(monitors, "the monitor is made anew", 60)
