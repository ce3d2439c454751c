"""Hostile clients at the gateway's door: each is refused or cut off, memory stays bounded, and another client doesn't notice."""

import base64
import contextlib
import http.client
import json
import re
import resource
import select
import socket
import ssl
import struct
import time

import pytest

import gateway as before_engines

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# What the gateway may grow by while it is attacked.
GROWTH_BYTES = 256 * 1024 * 1024


@pytest.fixture(scope="module")
def gateway():
    with before_engines.start() as running:
        yield running


@pytest.fixture(autouse=True)
def others_do_not_notice(gateway):
    """Before and after each attack a good client is served, and the gateway hasn't grown beyond its bound."""
    assert gateway.ask() == 200
    before = gateway.resident_bytes()
    yield
    assert gateway.ask() == 200
    assert gateway.resident_bytes() < before + GROWTH_BYTES


BODY = b'{"prompt": "a", "max_tokens": 1}'
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"

SMUGGLING = {
    "a length and chunks": [b"Content-Length: 4", b"Transfer-Encoding: chunked"],
    "chunks and a length": [b"Transfer-Encoding: chunked", b"Content-Length: 4"],
    "two lengths": [b"Content-Length: 0", b"Content-Length: 44"],
    "a list of lengths": [b"Content-Length: 0, 44"],
    "a signed length": [b"Content-Length: +5"],
    "a negative length": [b"Content-Length: -5"],
    "a hexadecimal length": [b"Content-Length: 0x5"],
    "a length beyond numbers": [b"Content-Length: 99999999999999999999999"],
    "an unknown coding": [b"Transfer-Encoding: xchunked"],
    "chunks that aren't last": [b"Transfer-Encoding: chunked, identity"],
    "two codings": [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
    "a coding behind a tab": [b"Transfer-Encoding:\tchunked", b"Content-Length: 4"],
    "a space before the colon": [b"Transfer-Encoding : chunked"],
    "a folded line": [b"X-A: b\r\n Content-Length: 5"],
    "a null in a value": [b"X-A: b\x00c"],
    "a bare carriage return in a value": [b"X-A: b\rContent-Length: 5"],
    "a second host": [b"Host: other"],
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_smuggling_is_refused_and_nothing_behind_it_is_read(gateway, name):
    head = b"\r\n".join([b"POST /v1/completions HTTP/1.1", b"Host: localhost",
                         b"Authorization: Bearer " + gateway.key.encode(), *SMUGGLING[name]])
    said = gateway.raw(head + b"\r\n\r\n" + b"0\r\n\r\n" + SMUGGLED)
    answers = re.findall(rb"HTTP/1\.1 (\d+)", said)
    assert len(answers) <= 1 and all(answer.startswith(b"4") for answer in answers), said


def test_a_request_without_a_host_is_refused(gateway):
    assert gateway.raw(b"GET /v1/models HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_chunks_of_a_wrong_size_end_the_connection(gateway):
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer " + gateway.key.encode() + b"\r\n\r\n")
    for chunk in [b"zz\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"5\r\nabcdefgh\r\n", b"5;" + b"x" * 100_000 + b"\r\n"]:
        said = gateway.raw(head + chunk + SMUGGLED)
        assert b" 200 " not in said, said


def test_headers_that_are_too_large_or_too_many_are_refused(gateway):
    for lines in [b"X-A: " + b"a" * 1_000_000, b"\r\n".join(b"X-%d: a" % i for i in range(5000))]:
        said = gateway.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n\r\n")
        assert b" 200 " not in said, said[:200]
    said = gateway.raw(b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 " not in said, said[:200]


def test_a_body_that_announces_too_much_is_refused_at_once(gateway):
    said = gateway.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
                       b"Content-Type: application/json\r\nAuthorization: Bearer " + gateway.key.encode() + b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 413"), said[:200]


def test_slow_bodies_hold_up_nobody(gateway):
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer " + gateway.key.encode() + b"\r\n\r\n{")
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(gateway.connect()) for _ in range(100)]
        for stream in slow:
            stream.sendall(head)
        for _ in range(5):
            assert gateway.ask() == 200
            for stream in slow:
                stream.sendall(b" ")


def test_bodies_without_a_credential_are_not_waited_for(gateway):
    said = gateway.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
                       b"Content-Type: application/json\r\n\r\n", timeout=20)
    assert said.startswith(b"HTTP/1.1 401"), said[:200]


def test_thousands_of_idle_connections_cost_little(gateway):
    before = gateway.resident_bytes()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.ExitStack() as stack:
        for _ in range(3000):
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=30))
        assert gateway.ask() == 200
        assert gateway.resident_bytes() < before + GROWTH_BYTES


def test_garbage_instead_of_tls_is_dropped(gateway):
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(100)
    for garbage in [b"GET / HTTP/1.1\r\n\r\n", bytes(10_000), b"\xff" * 10_000, hello, hello * 100, PREFACE]:
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as stream:
            said = b""
            # It may have hung up already.
            with contextlib.suppress(OSError):
                stream.sendall(garbage)
                stream.shutdown(socket.SHUT_WR)
                while part := stream.recv(65536):
                    said += part
            # At most an alert, which is a record of type 21.
            assert not said or said[0] == 21, said[:100]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    length = bytes([len(value)]) if len(value) < 127 else b"\x7f" + varint(len(value) - 127)
    return b"\x00" + bytes([len(name)]) + name + length + value


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


def request_block(key: str) -> bytes:
    return b"\x83\x87" + literal(b":path", b"/v1/completions") + literal(b":authority", b"localhost") + literal(
        b"authorization", b"Bearer " + key.encode())


def h2_attack(gateway, frames, deadline=30.0) -> list:
    """Sends frames until the server ends the connection or there are none left; the kinds of frames that it sent."""
    stream = gateway.connect(alpn=("h2",))
    kinds, read = [], b""
    with contextlib.closing(stream), contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError, OSError):
        stream.sendall(PREFACE + frame(4, 0, 0))
        for one in frames:
            stream.sendall(one)
        stream.settimeout(3.0)
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            part = stream.recv(65536)
            if not part:
                break
            read += part
            while len(read) >= 9 and len(read) >= 9 + (size := int.from_bytes(read[:3], "big")):
                kinds.append(read[3])
                read = read[9 + size:]
    return kinds


GOAWAY = 7


def test_rapid_reset_ends_the_connection(gateway):
    block = request_block(gateway.key)
    frames = (frame(1, 4, 2 * i + 1, block) + frame(3, 0, 2 * i + 1, struct.pack(">I", 8)) for i in range(20_000))
    kinds = h2_attack(gateway, frames)
    assert GOAWAY in kinds or len(kinds) < 20_000, f"{len(kinds)} frames"


def test_floods_of_pings_and_settings_are_bounded(gateway):
    h2_attack(gateway, (frame(6, 0, 0, bytes(8)) for _ in range(20_000)), deadline=10)
    h2_attack(gateway, (frame(4, 0, 0, struct.pack(">HI", 4, 1)) for _ in range(20_000)), deadline=10)


def test_endless_continuations_are_cut_off(gateway):
    frames = [frame(1, 0, 1, request_block(gateway.key))] + [frame(9, 0, 1, literal(b"x-a", b"a" * 100))] * 20_000
    h2_attack(gateway, frames, deadline=10)


def test_a_header_bomb_is_refused(gateway):
    # An entry of the dynamic table that is named again and again.
    entry = b"\x40\x03x-a\x7f" + varint(3000 - 127) + b"a" * 3000
    block = request_block(gateway.key) + entry + b"\xbe" * 10_000
    h2_attack(gateway, [frame(1, 4, 1, block)], deadline=10)


def encode(part) -> str:
    text = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


CLAIMS = {"iss": "https://issuer.test", "aud": "kvasir", "exp": 4_000_000_000, "sub": "x"}

TOKENS = {
    "alg none": f"{encode({'alg': 'none'})}.{encode(CLAIMS)}.",
    "alg none in capitals": f"{encode({'alg': 'NONE'})}.{encode(CLAIMS)}.",
    "no signature": f"{encode({'alg': 'EdDSA', 'kid': 'k1'})}.{encode(CLAIMS)}.",
    "a signature of zeros": f"{encode({'alg': 'EdDSA', 'kid': 'k1'})}.{encode(CLAIMS)}.{encode(bytes(64))}",
    "a shared secret": f"{encode({'alg': 'HS256', 'kid': 'k1'})}.{encode(CLAIMS)}.{encode(bytes(32))}",
    "another algorithm for the key": f"{encode({'alg': 'RS256', 'kid': 'k1'})}.{encode(CLAIMS)}.{encode(bytes(256))}",
    "an unknown key": f"{encode({'alg': 'EdDSA', 'kid': '../../etc/passwd'})}.{encode(CLAIMS)}.{encode(bytes(64))}",
    "a key of its own": f"{encode({'alg': 'EdDSA', 'jwk': {'kty': 'OKP'}, 'jku': 'http://127.0.0.1/'})}.{encode(CLAIMS)}.{encode(bytes(64))}",
    "a critical extension": f"{encode({'alg': 'EdDSA', 'kid': 'k1', 'crit': ['x']})}.{encode(CLAIMS)}.{encode(bytes(64))}",
    "another issuer": f"{encode({'alg': 'EdDSA', 'kid': 'k1'})}.{encode({**CLAIMS, 'iss': 'https://evil'})}.{encode(bytes(64))}",
    "claims that nest": f"{encode({'alg': 'EdDSA', 'kid': 'k1'})}.{encode(b'[' * 10_000)}.{encode(bytes(64))}",
    "four parts": f"{encode({'alg': 'EdDSA'})}.{encode(CLAIMS)}.a.b",
    "nothing but dots": "..",
    "a key of nobody": "kv_0000000000000000_" + "0" * 52,
}


@pytest.mark.parametrize("name", TOKENS)
def test_forged_tokens_are_nobodys(gateway, name):
    assert gateway.ask(TOKENS[name]) == 401


def test_refusals_look_alike(gateway):
    context = ssl.create_default_context(cafile=gateway.authority)
    bodies = set()
    for token in TOKENS.values():
        connection = http.client.HTTPSConnection("localhost", gateway.port, context=context, timeout=30)
        connection.request("POST", "/v1/completions", BODY, {"Authorization": f"Bearer {token}"})
        bodies.add(connection.getresponse().read())
        connection.close()
    assert len(bodies) == 1, bodies


def test_two_credentials_are_refused(gateway):
    said = gateway.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + gateway.key.encode()
                       + b"\r\nAuthorization: Bearer other\r\nConnection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 401"), said[:200]


def test_identity_headers_from_outside_say_nothing(gateway):
    said = gateway.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-User: acme\r\nX-Remote-User: acme\r\n"
                       b"X-Forwarded-Client-Cert: By=acme\r\nForwarded: for=127.0.0.1\r\nConnection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 401"), said[:200]


def test_readers_that_never_read_are_bounded(gateway):
    body = json.dumps({"prompt": "a", "max_tokens": 200, "stream": True, "ignore_eos": True}).encode()
    request = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
               + str(len(body)).encode() + b"\r\nAuthorization: Bearer " + gateway.key.encode() + b"\r\n\r\n" + body)
    with contextlib.ExitStack() as stack:
        deaf = [stack.enter_context(gateway.connect()) for _ in range(20)]
        for stream in deaf:
            stream.sendall(request)
        select.select(deaf, [], [], 30)
        assert gateway.ask(timeout=120) == 200
