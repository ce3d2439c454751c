"""One gateway for several services, on a real API server: what each side is told, and what happens when the other comes, changes or goes."""

import base64
import subprocess

import yaml
from authority import Authority
from handover import OPERATOR, Watched, give
from issuing import MANAGED, Issuer
from running import wait_until

KEYS = {"apiKeySecrets": [{"name": "keys"}]}
OWN = {"enabled": True, "replicas": 1, "auth": KEYS}


def behind(host, **more):
    return {"enabled": False, "gatewayRef": {"name": host}, **more}


def gateway_file(space, name="chat"):
    """What the gateway of a service reads; empty while there is none."""
    found = space.get("ConfigMap", f"{name}-gateway-config")
    return yaml.safe_load(found["data"]["gateway.yaml"]) if found else {}


def models(space, name="chat"):
    """Names of the models beside a gateway's own."""
    return [model["servedModelNames"] for model in gateway_file(space, name).get("models", [])]


def template(space):
    deployment = space.get("Deployment", "chat-gateway")
    return deployment["spec"]["template"], deployment["metadata"]["generation"]


def trusted(space, secret):
    """Certificates of the authorities that a Secret's owner trusts."""
    found = space.get("Secret", secret)
    text = base64.b64decode(found["data"]["ca.crt"]).decode() if found else ""
    return set(text.split("-----END CERTIFICATE-----\n")) - {""}


def said_by(space, secret):
    """The names in the certificate of a Secret."""
    certificate = base64.b64decode(space.get("Secret", secret)["data"]["tls.crt"])
    done = subprocess.run(["openssl", "x509", "-noout", "-ext", "subjectAltName"], input=certificate, capture_output=True, check=True)
    return done.stdout.decode()


def reaches(space, policy, direction):
    """Services whose pods a policy lets in or out to."""
    peers = {"ingress": "from", "egress": "to"}[direction]
    found = [peer for rule in space.get("NetworkPolicy", policy)["spec"][direction] for peer in rule[peers]]
    return sorted(peer["podSelector"]["matchLabels"]["kvasir.dev/service"] for peer in found if "podSelector" in peer)


def test_two_services_are_served_by_one_gateway_and_both_say_so(api, cluster, space, operators):
    operators().wait_for("working")
    space.create()
    space.ready()
    pods, before = space.uids(component="gateway"), template(space)
    space.create("coder", model={"source": {"pvc": {"claimName": "models"}}, "name": "small", "aliases": ["tiny"]},
                 gateway=behind("chat", routing={"policy": "LeastKV", "prefixChars": 500}, limits={"maxQueue": 7}))
    space.ready("coder")
    # The file lists it, with its engines and how they are chosen.
    file = gateway_file(space)
    assert file["servedModelNames"] == ["chat"]
    [model] = file["models"]
    assert model["servedModelNames"] == ["small", "tiny"]
    assert model["engines"]["dns"]["name"] == f"coder-engines.{space.name}.svc.cluster.local."
    assert model["engines"]["tls"]["names"] == [f"uri:spiffe://kvasir.dev/ns/{space.name}/service/coder/engine"]
    assert (model["routing"]["policy"], model["routing"]["prefixChars"], model["waiting"]["capacity"]) == ("LeastKV", 500, 7)
    # Statuses say where both are found.
    own, other = (space.status(name)["gateway"] for name in ("chat", "coder"))
    assert other == own and own["url"] == f"https://chat-gateway.{space.name}.svc"
    assert "of InferenceService chat" in space.message("GatewayReady", "coder")
    # It has no gateway of its own.
    made = {(kind, name) for kind, name in space.children("coder") if "gateway" in name}
    assert made == {("NetworkPolicy", "coder-from-gateway")}
    # Each trusts the other, and the way is open there and there alone.
    wait_until(lambda: trusted(space, "chat-gateway-tls") == trusted(space, "chat-trust") | trusted(space, "coder-trust"), "the gateway's trust")
    wait_until(lambda: trusted(space, "coder-g0-certificate") == trusted(space, "chat-trust") | trusted(space, "coder-trust"), "the engines' trust")
    assert trusted(space, "chat-g0-certificate") == trusted(space, "chat-trust")
    assert f"URI:spiffe://kvasir.dev/ns/{space.name}/service/coder/gateway" in said_by(space, "chat-gateway-tls")
    assert reaches(space, "coder-from-gateway", "ingress") == ["chat", "coder"]
    assert reaches(space, "chat-gateway-out", "egress") == ["chat", "coder"]
    # Nobody was restarted for it.
    assert (space.uids(component="gateway"), template(space)) == (pods, before)
    explained = cluster.kubectl("-n", space.name, "get", "kis", "coder", "-o", "wide").stdout
    assert "True" in explained and f"https://chat-gateway.{space.name}.svc" in explained
    # The kubelets of its pods hear of the file at once.
    told = space.get("ConfigMap", "chat-gateway-config")["metadata"]["annotations"]["kvasir.dev/file-hash"]
    assert [pod["metadata"]["annotations"]["kvasir.dev/file-hash"] for pod in space.pods("gateway")] == [told]
    # Once both are at rest, nothing is written any more.
    for name in ("chat", "coder"):
        space.at_rest(name)


def test_a_service_waits_for_the_gateway_that_it_names_and_is_served_when_it_comes(space, operators):
    operators().wait_for("working")
    space.create("coder", gateway=behind("chat"))
    space.wait("EnginesReady", "True", name="coder")
    space.wait("GatewayReady", "False", "NoSharedGateway", name="coder")
    assert "there is no InferenceService chat" in space.message("GatewayReady", "coder")
    assert space.condition("Ready", "coder") == ("False", "GatewayNotReady")
    wait_until(lambda: "NoSharedGateway" in [event["reason"] for event in space.events()], lambda: space.events())
    before = space.uids(name="coder")
    # Neither one without a gateway nor one that uses another's will do, and each heals without a hand on the other.
    space.create(gateway={"enabled": False})
    space.wait("GatewayReady", "False", "NoSharedGateway", name="coder")
    wait_until(lambda: "has no gateway" in space.message("GatewayReady", "coder"), lambda: space.status("coder"))
    space.change({"gateway": behind("third")})
    wait_until(lambda: "asks for that of third" in space.message("GatewayReady", "coder"), lambda: space.status("coder"))
    space.change({"gateway": {**OWN, "gatewayRef": None}})
    space.ready("coder")
    space.ready()
    assert models(space) == [["coder"]]
    assert space.uids(name="coder") == before


def test_a_service_goes_from_its_own_gateway_to_a_shared_one_and_back_and_keeps_its_engines(space, operators):
    operators().wait_for("working")
    space.create()
    space.create("coder")
    space.ready()
    space.ready("coder")
    before = space.uids(name="coder")
    space.change({"gateway": {"enabled": False, "gatewayRef": {"name": "chat"}, "replicas": 2, "auth": None}}, "coder")
    space.wait("Accepted", "True", name="coder")
    space.ready("coder")
    wait_until(lambda: models(space) == [["coder"]] and not space.pods("gateway", "coder"), lambda: (models(space), space.pods("gateway", "coder")))
    left = lambda: {(kind, name) for kind, name in space.children("coder") if "gateway" in name} - {("Secret", "coder-gateway-salt")}  # noqa: E731
    wait_until(lambda: left() == {("NetworkPolicy", "coder-from-gateway")}, left)
    space.change({"gateway": {**OWN, "gatewayRef": None}}, "coder")
    space.ready("coder")
    wait_until(lambda: models(space) == [], lambda: models(space))
    assert space.status("coder")["gateway"]["url"] == f"https://coder-gateway.{space.name}.svc"
    assert space.uids(name="coder") == before
    assert reaches(space, "chat-gateway-out", "egress") == ["chat"]


def test_a_name_that_is_taken_is_refused_at_its_field_and_free_again_when_its_owner_goes(api, space, operators):
    operators().wait_for("working")
    space.create()
    first = {"source": {"pvc": {"claimName": "models"}}, "name": "small"}
    space.create("elder", model=first, gateway=behind("chat"))
    space.ready("elder")
    # A name belongs to whoever serves it: not even its host may take it up.
    space.change({"model": {"aliases": ["small"]}})
    space.wait("Accepted", "False", "NameCollision")
    assert "for InferenceService elder already: leave this alias out" in space.message("Accepted")
    space.change({"model": {"aliases": []}})
    space.ready()
    space.create("younger", model={**first, "name": "large", "aliases": ["small"]}, gateway=behind("chat"))
    space.wait("Accepted", "False", "NameCollision", name="younger")
    message = space.message("Accepted", "younger")
    assert message.startswith("spec.model.aliases[0]: ") and "InferenceService elder" in message
    space.create("greedy", model={**first, "name": "chat"}, gateway=behind("chat"))
    space.wait("Accepted", "False", "NameCollision", name="greedy")
    assert space.message("Accepted", "greedy").startswith("spec.model.name: ")
    assert models(space) == [["small"]]
    api.delete("InferenceService", space.name, "elder")
    space.ready("younger")
    wait_until(lambda: models(space) == [["large", "small"]], lambda: models(space))


def test_whichever_side_is_deleted_the_other_goes_on_and_nothing_is_left(api, space, operators):
    operators().wait_for("working")
    space.create()
    space.create("coder", gateway=behind("chat"))
    space.create("poet", gateway=behind("chat"))
    for name in ("chat", "coder", "poet"):
        space.ready(name)
    pods = space.uids(component="gateway")
    wait_until(lambda: models(space) == [["coder"], ["poet"]], lambda: models(space))
    api.delete("InferenceService", space.name, "poet")
    wait_until(lambda: models(space) == [["coder"]], lambda: models(space))
    wait_until(lambda: not space.children("poet"), "the children go")
    wait_until(lambda: reaches(space, "chat-gateway-out", "egress") == ["chat", "coder"], "the way is closed")
    assert space.uids(component="gateway") == pods
    space.ready()
    engines = space.uids(name="coder")
    api.delete("InferenceService", space.name, "chat")
    space.wait("GatewayReady", "False", "NoSharedGateway", name="coder")
    wait_until(lambda: not space.children(), "the children go")
    assert "gateway" not in space.status("coder")
    # A new one of that name has another authority, and serves it.
    space.create()
    space.ready("coder")
    wait_until(lambda: trusted(space, "chat-trust") and trusted(space, "chat-trust") < trusted(space, "coder-g0-certificate"), "the new authority is trusted")
    assert space.uids(name="coder") == engines


class Shared(Watched):
    """Of two services: the gateway meets everybody, and engines meet the gateway."""

    def meet(self, one, other):
        return "chat-gateway-tls" in (one, other)


def test_each_side_of_a_shared_gateway_may_change_its_authority_and_the_other_one_trusts_it_in_time(space, operators, tmp_path, tmp_path_factory):
    operators("--trust-time=20", "--resync=5").wait_for("working")
    space.create()
    space.create("coder", gateway=behind("chat"))
    space.ready("coder")
    uids, watched = space.uids() | space.uids(name="coder"), Shared(space, tmp_path)
    authority = Authority(tmp_path_factory.mktemp("given"))
    names = {name: f"spiffe://kvasir.dev/ns/{space.name}/service/{name}" for name in ("chat", "coder")}
    give(space, authority, "ours", OPERATOR)
    host = [f"{names['chat']}/engine", f"{names['chat']}/gateway"]
    give(space, authority, "hosts", *host)
    watched.look()
    # A certificate that doesn't speak for the guest takes no place of one that does.
    space.change({"tls": {"mode": "Provided", "secretName": "hosts", "operatorSecretName": "ours"}})
    missing = f"doesn't carry the URI {names['coder']}/gateway"
    wait_until(lambda: missing in space.message("CertificatesReady"), lambda: space.status())
    before = watched.look()["chat-gateway-tls"]["tls.crt"]
    give(space, authority, "hosts", *host, f"{names['coder']}/gateway")

    def switched(secret):
        return watched.vouches((authority.folder / "ca.crt").read_bytes(), watched.look()[secret]["tls.crt"])

    wait_until(lambda: switched("chat-gateway-tls"), lambda: space.status(), 180)
    assert watched.look()["chat-gateway-tls"]["tls.crt"] != before
    space.ready("coder")
    assert not switched("coder-g0-certificate")
    # The guest too, and by another one.
    other = Authority(tmp_path_factory.mktemp("other"))
    give(space, other, "guests", f"{names['coder']}/engine")
    space.change({"tls": {"mode": "Provided", "secretName": "guests"}}, "coder")
    theirs = (other.folder / "ca.crt").read_bytes()
    wait_until(lambda: watched.vouches(theirs, watched.look()["coder-g0-certificate"]["tls.crt"]), lambda: space.status("coder"), 180)
    for name in ("chat", "coder"):
        space.ready(name)
    assert space.uids() | space.uids(name="coder") == uids


def test_a_bad_edit_changes_nothing_on_either_side_and_stops_no_repair(api, space, operators):
    operators().wait_for("working")
    space.create()
    space.create("coder", gateway=behind("chat"))
    space.ready("coder")
    file = gateway_file(space)
    # Of the guest: of its place, too.
    space.change({"scheduling": {"gang": "Volcano"}, "replicas": 3, "model": {"aliases": ["tiny"]}, "gateway": {"gatewayRef": {"name": "nobody"}}}, "coder")
    space.wait("Accepted", "False", "Unsupported", name="coder")
    assert space.condition("Ready", "coder") == ("False", "NotAccepted")
    # Of the host.
    space.change({"scheduling": {"gang": "Volcano"}, "gateway": {"enabled": False}})
    space.wait("Accepted", "False", "Unsupported")
    for name in ("chat", "coder"):
        before = space.uids(name=name)[f"{name}-g0-0"]
        api.delete("Service", space.name, f"{name}-engines")
        api.delete("Pod", space.name, f"{name}-g0-0")
        wait_until(lambda name=name: space.get("Service", f"{name}-engines"), f"the Service of {name}")
        wait_until(lambda name=name, before=before: space.uids(name=name).get(f"{name}-g0-0", before) != before, f"another pod of {name}")
        space.wait("EnginesReady", "True", name=name)
    assert gateway_file(space) == file
    assert space.condition("GatewayReady", "coder") == ("True", "Available")
    assert len(space.groups("coder")) == 1
    for name in ("chat", "coder"):
        space.at_rest(name)
    # What was wrong is put right, and all of it counts.
    space.change({"scheduling": {"gang": "None"}, "gateway": {"enabled": True}})
    space.change({"scheduling": {"gang": "None"}, "gateway": {"gatewayRef": {"name": "chat"}}}, "coder")
    space.ready()
    wait_until(lambda: models(space) == [["coder", "tiny"]] and len(space.groups("coder")) == 3, lambda: models(space))


def test_a_gateway_whose_pods_are_not_ready_is_named(space, operators):
    operators().wait_for("working")
    space.create()
    space.create("coder", gateway=behind("chat"))
    space.ready("coder")
    space.script({"pods": "chat-gateway-*", "neverReady": True})
    space.wait("GatewayReady", "False", "DeploymentUnavailable", name="coder")
    assert space.message("GatewayReady", "coder") == "0 of 1 gateway pods of InferenceService chat are ready"
    space.script()
    space.ready("coder")


def test_a_guest_is_not_ready_behind_what_an_earlier_host_left(api, space, operators):
    operators().wait_for("working")
    space.create()
    space.create("coder", gateway=behind("chat"))
    space.ready("coder")
    api.delete("InferenceService", space.name, "chat", policy="Orphan")
    wait_until(lambda: space.service() is None, lambda: space.service()["metadata"])
    space.wait("GatewayReady", "False", "NoSharedGateway", name="coder")
    space.create()
    space.wait("Accepted", "False", "NameCollision")
    space.wait("GatewayReady", "False", "DeploymentUnavailable", name="coder")
    assert space.message("GatewayReady", "coder") == "0 of 1 gateway pods of InferenceService chat are ready"


def test_the_share_of_a_canary_reaches_the_gateway_that_serves_it(space, operators):
    operators().wait_for("working")
    space.create()
    space.create("coder", replicas=2, rollout={"canary": {"weightPercent": 10, "pauseSeconds": 0}}, gateway=behind("chat"))
    space.ready("coder")
    pods = space.uids(component="gateway")
    shares = lambda: [revision["weight"] for revision in gateway_file(space)["models"][0]["revisions"]]  # noqa: E731
    wait_until(lambda: shares() == [100], shares)
    space.change({"restartedAt": "again"}, "coder")
    wait_until(lambda: shares() == [10, 90], shares)
    space.wait("Progressing", "True", "CanaryPaused", name="coder")
    update = space.status("coder")["updateRevision"]
    space.api.patch("InferenceService", space.name, "coder", {"metadata": {"annotations": {"kvasir.dev/promote": update}}})
    space.wait("Progressing", "False", "Complete", name="coder", seconds=240)
    wait_until(lambda: [r["name"] for r in gateway_file(space)["models"][0]["revisions"]] == [update], shares)
    assert space.uids(component="gateway") == pods


def test_a_guest_of_a_gateway_whose_certificates_cert_manager_makes_waits_for_its_name_in_them(api, authority, cert_manager, operators, space):
    operators().wait_for("working")
    issuer = Issuer(api, space, authority)
    with issuer.working():
        space.create(tls=MANAGED)
        space.ready()
        engines, gateway = space.uids(), space.uids(component="gateway")
        issuer.late.add("chat-gateway-issued")
        space.create("coder", tls=MANAGED, gateway=behind("chat"))
        guests = f"spiffe://kvasir.dev/ns/{space.name}/service/coder/gateway"
        wait_until(lambda: guests in issuer.certificates()["chat-gateway-issued"]["spec"]["uris"], "the host's Certificate names its guest")
        # The guest's own are there, and the gateway that serves it can't speak for it yet.
        said = f"spec.gateway.gatewayRef: Secret chat-gateway-tls: its certificate doesn't carry the URI {guests}"
        wait_until(lambda: said == space.message("CertificatesReady", "coder"), lambda: space.status("coder"))
        assert space.condition("CertificatesReady", "coder") == ("False", "IssueFailed")
        assert space.condition("Ready", "coder") == ("False", "CertificatesNotReady")
        assert space.condition("Ready") == ("True", "AllComponentsReady")
        assert sorted(name for name in issuer.certificates() if name.startswith("coder-")) == ["coder-g0-issued", "coder-operator-tls"]
        issuer.late.clear()
        space.ready("coder")
        space.wait("CertificatesReady", "True", "Issued", name="coder")
        assert f"URI:{guests}" in said_by(space, "chat-gateway-tls")
        # One that leaves is no longer named, and nobody was restarted for either.
        api.delete("InferenceService", space.name, "coder")
        wait_until(lambda: guests not in issuer.certificates()["chat-gateway-issued"]["spec"]["uris"], "the host's Certificate names nobody else")
        wait_until(lambda: guests not in said_by(space, "chat-gateway-tls"), "the gateway's certificate")
        space.ready()
        assert (space.uids(), space.uids(component="gateway")) == (engines, gateway)
