"""What tests of changing authorities share: Secrets that somebody provides, and a watcher of who trusts whom."""

import base64
import subprocess
import time

from running import typed, wait_until

OPERATOR = "spiffe://kvasir.dev/operator"


def give(space, authority, name, *uris):
    space.api.apply({**typed("Secret"), "type": "kubernetes.io/tls", "metadata": {"name": name, "namespace": space.name}, "data": authority.data(uris)})


class Watched:
    """Looks at the Secrets that pods mount: at every moment each one's authorities, as they were a while ago, vouch for every certificate."""

    BEHIND = 4

    def __init__(self, space, folder):
        self.space, self.folder, self.history = space, folder, []

    def data(self):
        mounted = [name for name in (item["metadata"]["name"] for item in self.space.list("Secret")) if name.endswith(("-certificate", "-gateway-tls"))]
        secrets = {name: self.space.get("Secret", name) for name in mounted}
        return {name: {key: base64.b64decode(value) for key, value in secret["data"].items()} for name, secret in secrets.items() if secret}

    def vouches(self, bundle, leaf):
        (self.folder / "bundle").write_bytes(bundle)
        (self.folder / "leaf").write_bytes(leaf)
        return subprocess.run(["openssl", "verify", "-CAfile", self.folder / "bundle", self.folder / "leaf"], check=False, capture_output=True).returncode == 0

    def meet(self, one, other):
        """Whether the pods that mount these two talk to each other."""
        return True

    def look(self):
        now, data = time.monotonic(), self.data()
        self.history = [(at, old) for at, old in self.history if now - at <= self.BEHIND] + [(now, data)]
        bundles = [(name, secret["ca.crt"]) for _, old in (self.history[0], self.history[-1]) for name, secret in old.items() if name in data]
        pairs = {(bundle, secret["tls.crt"]) for one, bundle in bundles for other, secret in data.items() if self.meet(one, other)}
        for bundle, leaf in pairs:
            assert self.vouches(bundle, leaf)
        return data

    def until_signed_by(self, authority, but=None, seconds=90):
        """All of them, and nobody else is trusted any more. Without an authority: by another one than `but`."""
        one, not_one = ((of.folder / "ca.crt").read_bytes() if of else None for of in (authority, but))

        def switched():
            data = self.look()
            bundles = {secret["ca.crt"] for secret in data.values()}
            return len(data) == 2 and len(bundles) == 1 and next(iter(bundles)).count(b"BEGIN") == 1 and bundles != {not_one} and (one is None or bundles == {one})

        wait_until(switched, lambda: self.space.status(), seconds)
