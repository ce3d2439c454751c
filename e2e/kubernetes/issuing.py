"""cert-manager, as a thread plays it."""

import contextlib
import threading

from running import MERGE, typed

PATH = "/apis/cert-manager.io/v1/namespaces/{}/certificates"
# As much of cert-manager's definition as a scripted issuer needs.
DEFINITION = {
    **typed("CustomResourceDefinition"),
    "metadata": {"name": "certificates.cert-manager.io"},
    "spec": {
        "group": "cert-manager.io", "scope": "Namespaced", "names": {"kind": "Certificate", "listKind": "CertificateList", "plural": "certificates", "singular": "certificate"},
        "versions": [{
            "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object", "required": ["secretName", "issuerRef"],
                        "properties": {
                            "secretName": {"type": "string"},
                            "secretTemplate": {"type": "object", "properties": {"labels": {"type": "object", "additionalProperties": {"type": "string"}}}},
                            "duration": {"type": "string"}, "renewBefore": {"type": "string"},
                            "dnsNames": {"type": "array", "items": {"type": "string"}}, "uris": {"type": "array", "items": {"type": "string"}},
                            "usages": {"type": "array", "items": {"type": "string"}},
                            "privateKey": {"type": "object", "properties": {
                                "algorithm": {"type": "string", "enum": ["RSA", "ECDSA", "Ed25519"]}, "size": {"type": "integer"},
                                "encoding": {"type": "string", "enum": ["PKCS1", "PKCS8"]}, "rotationPolicy": {"type": "string", "enum": ["Never", "Always"]}}},
                            "issuerRef": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "kind": {"type": "string"}, "group": {"type": "string"}}},
                        },
                    },
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }},
        }],
    },
}


class Issuer:
    """Does what cert-manager does: writes each Certificate's Secret, once and whenever the Certificate changes, and then says so in its status."""

    def __init__(self, api, space, authority):
        self.api, self.space, self.authority = api, space, authority
        # Certificates that it doesn't get to yet.
        self.late = set()
        self.path = PATH.format(space.name)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def certificates(self):
        return {item["metadata"]["name"]: item for item in self.api.request("GET", self.path)["items"]}

    def run(self):
        while not self.stop.wait(0.2):
            for name, item in self.certificates().items():
                said = (item.get("status") or {}).get("conditions", [{}])[0]
                if name not in self.late and said.get("observedGeneration") != item["metadata"]["generation"]:
                    self.issue(name, item["spec"], item["metadata"]["generation"])

    def issue(self, name, spec, generation):
        self.space.api.apply({
            **typed("Secret"), "type": "kubernetes.io/tls",
            "metadata": {
                "name": spec["secretName"], "namespace": self.space.name, "labels": spec["secretTemplate"]["labels"],
                "annotations": {"cert-manager.io/certificate-name": name}},
            "data": self.authority.data(spec["uris"], spec.get("dnsNames", [])),
        }, manager="cert-manager-certificates-issuing")
        self.say(name, "True", "Ready", "Certificate is up to date and has not expired", generation)

    def say(self, name, status, reason, message, generation=None):
        condition = {"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-30T00:00:00Z"}
        condition |= {"observedGeneration": generation} if generation else {}
        self.api.request("PATCH", f"{self.path}/{name}/status", {"status": {"conditions": [condition]}}, MERGE)

    @contextlib.contextmanager
    def working(self):
        self.thread.start()
        try:
            yield
        finally:
            self.stop.set()
            self.thread.join()


MANAGED = {"mode": "CertManager", "issuerRef": {"name": "ours"}}
