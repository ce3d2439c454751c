"""Certificates that somebody else makes, and the one right beyond a namespace that gateways may have."""

import base64
import subprocess
import types

from authority import KEY, Authority
from handover import OPERATOR, Watched, give
from issuing import MANAGED, Issuer
from running import ACCOUNT, MERGE, NAME, wait_until


def test_cert_manager_makes_all_certificates_and_they_go_with_their_groups(api, authority, cert_manager, operators, space):
    operators().wait_for("working")
    space.create(replicas=2, tls=MANAGED)
    issuer = Issuer(api, space, authority)
    names = ["chat-g0-issued", "chat-g1-issued", "chat-gateway-issued", "chat-operator-tls"]
    wait_until(lambda: sorted(issuer.certificates()) == names, lambda: list(issuer.certificates()))
    # What cert-manager says is passed on.
    issuer.say("chat-g0-issued", "False", "DoesNotExist", "issuer ours isn't there")
    wait_until(lambda: "issuer ours isn't there" in space.message("CertificatesReady"), lambda: space.status())
    assert space.condition("CertificatesReady") == ("False", "IssueFailed")
    api.request("PATCH", f"{issuer.path}/chat-g0-issued/status", {"status": None}, MERGE)
    uid = space.get("StatefulSet", "chat-g0")["metadata"]["uid"]
    assert any(uri.endswith(f"/group/0/{uid}") for uri in issuer.certificates()["chat-g0-issued"]["spec"]["uris"])
    with issuer.working():
        space.wait("CertificatesReady", "True", "Issued")
        space.ready()
        service = space.service()["metadata"]["uid"]
        for name in names:
            secret = space.get("Secret", name)
            assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [service], name
            assert set(secret["data"]) == {"tls.crt", "tls.key", "ca.crt"}
        # Pods mount what the operator brings them.
        for name, mounted in [("chat-g0-issued", "chat-g0-certificate"), ("chat-gateway-issued", "chat-gateway-tls")]:
            assert space.get("Secret", mounted)["data"]["tls.crt"] == space.get("Secret", name)["data"]["tls.crt"]
        space.change({"replicas": 1})
        gone = next(name for name in names[:2] if name.split("-")[1] not in {group["metadata"]["name"].split("-")[1] for group in wait_groups(space, 1)})
        wait_until(lambda: not space.get("Secret", gone) and gone not in issuer.certificates(), gone)
        space.ready()


def wait_groups(space, number):
    return wait_until(lambda: len(groups := space.groups()) == number and groups, f"{number} groups")


def test_without_cert_manager_its_mode_is_refused(api, operators, space):
    operators().wait_for("working")
    space.create(tls=MANAGED)
    space.wait("Accepted", "False", "Unsupported")
    assert "spec.tls.mode" in space.message("Accepted")
    assert not space.groups()


def test_an_issuer_that_is_no_authority_is_named(authority, cert_manager, operators, space):
    operators().wait_for("working")
    space.create(tls=MANAGED)
    issuer = Issuer(space.api, space, authority)

    def self_signed(uris, dns=(), days=1):
        names = ",".join([f"URI:{uri}" for uri in uris] + [f"DNS:{name}" for name in dns])
        authority.openssl("req", "-x509", *KEY, "-keyout", "tls.key", "-out", "tls.crt", "-days", str(days), "-subj", "/CN=leaf", "-addext", f"subjectAltName={names}")
        content = {name: (authority.folder / name).read_bytes() for name in ("tls.crt", "tls.key")}
        return {name: base64.b64encode(value).decode() for name, value in {**content, "ca.crt": content["tls.crt"]}.items()}

    issuer.authority = types.SimpleNamespace(data=self_signed)
    space.wait("CertificatesReady", "False", "IssueFailed")
    with issuer.working():
        wait_until(lambda: "SelfSigned" in space.message("CertificatesReady"), lambda: space.status())


def test_a_given_secret_is_judged_used_and_never_written(api, authority, operators, space):
    operators().wait_for("working")
    own = [f"spiffe://kvasir.dev/ns/{space.name}/service/chat/{part}" for part in ("engine", "gateway")]
    space.create(tls={"mode": "Provided", "secretName": "given", "operatorSecretName": "ours"})
    space.wait("CertificatesReady", "False", "IssueFailed")
    assert "spec.tls.secretName: Secret given: it doesn't exist" in space.message("CertificatesReady")
    assert space.condition("Ready") == ("False", "CertificatesNotReady")
    give(space, authority, "given", own[0])
    give(space, authority, "ours", OPERATOR)
    wait_until(lambda: own[1] in space.message("CertificatesReady"), lambda: space.status())
    give(space, authority, "given", *own)
    space.wait("CertificatesReady", "True", "Issued")
    space.ready()
    before = space.get("Secret", "given")["metadata"]["resourceVersion"]
    # Another Secret reaches running pods, in the one that they mount.
    uids = space.uids()
    give(space, authority, "second", *own)
    space.change({"tls": {"secretName": "second"}})
    second = space.get("Secret", "second")["data"]["tls.crt"]
    wait_until(lambda: space.get("Secret", "chat-g0-certificate")["data"]["tls.crt"] == second, "the second one in the group's Secret")
    assert space.uids() == uids
    volumes = space.pods()[0]["spec"]["volumes"]
    assert next(volume for volume in volumes if volume["name"] == "tls")["secret"]["secretName"] == "chat-g0-certificate"
    secret = space.get("Secret", "given")
    assert secret["metadata"]["resourceVersion"] == before
    # It belongs to whoever gave it, and stays.
    api.delete("InferenceService", space.name, "chat")
    wait_until(lambda: not space.children(), lambda: list(space.children()))
    assert space.get("Secret", "given") and space.get("Secret", "ours")


def test_48_the_authority_of_a_living_service_can_be_changed_in_every_way(api, authority, cert_manager, operators, space, tmp_path, tmp_path_factory):
    """kserve PR#5716: the old mode lived on in some pods. Here no pod is replaced: all of them trust the next authority before anybody shows a
    certificate by it, and the old one until nobody does any more."""
    operators("--trust-time=6", "--resync=5").wait_for("working")
    space.create()
    space.ready()
    uids, watched = space.uids(), Watched(space, tmp_path)
    other = Authority(tmp_path_factory.mktemp("other"))
    own = [f"spiffe://kvasir.dev/ns/{space.name}/service/chat/{part}" for part in ("engine", "gateway")]
    give(space, authority, "given", *own)
    give(space, authority, "ours", OPERATOR)
    give(space, other, "second", *own)
    watched.look()
    space.change({"tls": {"mode": "Provided", "secretName": "given", "operatorSecretName": "ours"}})
    for part in ("CertificatesReady", "Progressing"):
        wait_until(lambda part=part: "when every pod trusts it" in space.message(part), lambda: space.status())
        assert space.condition(part)[0] == "True"
    assert space.condition("Ready")[0] == "True"
    watched.until_signed_by(authority)
    wait_until(lambda: not space.get("Secret", "chat-authority"), "the operator's own authority goes")
    wait_until(lambda: space.condition("Progressing")[0] == "False", lambda: space.status())
    space.change({"tls": {"secretName": "second", "operatorSecretName": None}})
    watched.until_signed_by(other)
    # Another content of the same Secret.
    give(space, authority, "second", *own)
    watched.until_signed_by(authority)
    space.change({"tls": {"mode": "CertManager", "secretName": None, "issuerRef": {"name": "ours"}}})
    issuer = Issuer(api, space, other)
    with issuer.working():
        watched.until_signed_by(other)
    space.change({"tls": {"mode": "Internal", "issuerRef": None}})
    wait_until(lambda: "when every pod trusts it" in space.message("CertificatesReady"), lambda: space.status())
    assert space.condition("CertificatesReady")[0] == "True"
    watched.until_signed_by(None, but=other)
    wait_until(lambda: not issuer.certificates(), "the Certificates go")
    space.ready()
    assert space.uids() == uids
    space.at_rest()


def test_an_authority_that_is_deleted_is_followed_by_another_and_trusted_as_long_as_it_is_needed(api, operators, space, tmp_path):
    """Nothing is renewed at once, so no two pods ever disagree about whom to trust."""
    operators("--resync=3600").wait_for("working")
    space.create()
    space.ready()
    space.at_rest()
    leaves = ["chat-g0-certificate", "chat-gateway-tls"]

    def data(name):
        return {key: base64.b64decode(value) for key, value in space.get("Secret", name)["data"].items()}

    before = {name: data(name)["tls.crt"] for name in leaves}
    api.delete("Secret", space.name, "chat-authority")
    wait_until(lambda: data("chat-trust")["ca.crt"].count(b"BEGIN CERTIFICATE") == 2, "both are trusted", 40)
    assert set(data("chat-authority")) == {"2.crt", "2.key"}
    space.at_rest()
    assert {name: data(name)["tls.crt"] for name in leaves} == before
    # What comes is signed by the successor.
    space.change({"replicas": 2})
    wait_until(lambda: space.status().get("readyReplicas") == 2, lambda: space.status())
    leaves.append(next(f"{group['metadata']['name']}-certificate" for group in space.groups() if group["metadata"]["name"] != "chat-g0"))
    for shown in leaves:
        for trusting in [*leaves, "chat-trust"]:
            (tmp_path / "leaf").write_bytes(data(shown)["tls.crt"])
            (tmp_path / "trust").write_bytes(data(trusting)["ca.crt"])
            subprocess.run(["openssl", "verify", "-CAfile", tmp_path / "trust", tmp_path / "leaf"], check=True, capture_output=True)
    space.wait("CertificatesReady", "True", "Issued")


def test_a_gateway_may_review_tokens_while_its_service_has_that_mode(api, cluster, operators, space):
    operators().wait_for("working")
    binding = f"{NAME}-token-reviewers"

    def subjects():
        found = api.get("ClusterRoleBinding", None, binding).get("subjects", [])
        return [(subject["namespace"], subject["name"]) for subject in found]

    def may(account):
        return cluster.kubectl("auth", "can-i", "create", "tokenreviews", "--as", account, check=False).stdout.strip()

    gateway = f"system:serviceaccount:{space.name}:chat-gateway"
    space.create(gateway={"replicas": 1, "auth": {"mode": "TokenReview"}})
    space.create("other")
    wait_until(lambda: subjects() == [(space.name, "chat-gateway")], subjects, 30)
    wait_until(lambda: may(gateway) == "yes", "the right")
    assert may(gateway.replace("chat", "other")) == "no"
    policy = space.get("NetworkPolicy", "chat-gateway-out")
    assert {"ports": [{"port": port, "protocol": "TCP"} for port in (443, 6443)]} in policy["spec"]["egress"]
    api.delete("InferenceService", space.name, "chat")
    wait_until(lambda: subjects() == [], subjects, 30)
    wait_until(lambda: may(gateway) == "no", "the right is taken")
    assert may(ACCOUNT) == "yes"
