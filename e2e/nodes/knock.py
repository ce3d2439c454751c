"""Inside of a node, where no policy holds: whether an engine's port speaks with somebody who has this certificate, or none.

    knock.py ADDRESS PORT [CERTIFICATE KEY]
"""

import socket
import ssl
import sys

# The beginning of HTTP/2: its preface and an empty SETTINGS frame, which is answered with another one.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS = 4


def knock(address, port, *pair):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if pair:
        context.load_cert_chain(*pair)
    with socket.create_connection((address, int(port)), timeout=10) as plain:
        try:
            with context.wrap_socket(plain) as secure:
                secure.sendall(HELLO)
                answer = secure.recv(9)
                return "answered" if len(answer) > 3 and answer[3] == SETTINGS else f"refused: {answer!r}"
        except (ssl.SSLError, ConnectionError) as error:
            return f"refused: {error}"


if __name__ == "__main__":
    print(knock(*sys.argv[1:]))
