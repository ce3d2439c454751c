"""An authority of the tests' own, beside the operator's and those that cert-manager has."""

import base64
import subprocess

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")


class Authority:
    """Signs with openssl."""

    def __init__(self, folder):
        self.folder = folder
        self.openssl("req", "-x509", *KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=authority of the test")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def data(self, uris, dns=(), days=1):
        """What a Secret holds."""
        names = ",".join([f"URI:{uri}" for uri in uris] + [f"DNS:{name}" for name in dns])
        self.openssl("req", *KEY, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=leaf", "-addext", f"subjectAltName={names}")
        self.openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-copy_extensions", "copyall", "-out", "tls.crt", "-days", str(days))
        return {name: base64.b64encode((self.folder / name).read_bytes()).decode() for name in ("tls.crt", "tls.key", "ca.crt")}
