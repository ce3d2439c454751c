"""Inside of a pod: files over HTTP, at their own addresses and as a hub that wants a token.

    hub.py FOLDER PORT TOKEN
"""

import hashlib
import http.server
import json
import pathlib
import sys

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "kvasir/small"


class Hub(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.split("?")[0]
        if path.startswith("/plain/"):
            return self.file(path.removeprefix("/plain/"), body)
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self.text(401, {"error": "Invalid credentials"})
        if path == f"/api/models/{REPO}/revision/main":
            return self.text(200, {"sha": COMMIT, "siblings": [{"rfilename": name} for name in self.server.files]})
        if path.startswith(f"/{REPO}/resolve/"):
            return self.file(path.rsplit("/", 1)[1], body)
        return self.text(404, {"error": "Repository not found"})

    def text(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        if status == 401:
            self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def file(self, name, body):
        known = self.server.files.get(name)
        if known is None:
            return self.text(404, {"error": "Entry not found"})
        path, digest = known
        self.send_response(200)
        for header, value in {"ETag": f'"{digest}"', "X-Linked-ETag": f'"{digest}"', "X-Linked-Size": path.stat().st_size, "X-Repo-Commit": COMMIT,
                              "Content-Length": path.stat().st_size}.items():
            self.send_header(header, str(value))
        self.end_headers()
        if body:
            with path.open("rb") as file:
                self.copyfile(file, self.wfile)


def main(folder, port, token):
    server = http.server.ThreadingHTTPServer(("", int(port)), Hub)
    server.token = token
    server.files = {path.name: (path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in pathlib.Path(folder).glob("*.gguf")}
    print("serving", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
