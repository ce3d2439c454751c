"""KV events in vLLM's format, read by ZeroMQ's own library and decoded with vLLM's schema; and one request id from end to end."""

import json
import re
import threading
import urllib.request
from typing import Any

import msgspec
import pytest
import zmq

import server as kvasir

BLOCK_SIZE = 16


# The schema of vLLM 0.32 (`vllm/distributed/kv_events.py`), restated. Unknown fields are an error here, so that nothing is sent that a
# consumer of that version wouldn't know.
class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, forbid_unknown_fields=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


DECODER = msgspec.msgpack.Decoder(KVEventBatch)


class Subscriber:
    """Reads batches in a thread, from the moment its subscription is in place."""

    def __init__(self, endpoint: str, topic: str = ""):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVTIMEO, 30_000)
        monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.socket.subscribe(topic)
        self.socket.connect(endpoint)
        assert monitor.poll(30_000), "no handshake"
        self.socket.disable_monitor()

    def read(self) -> tuple[str, int, KVEventBatch]:
        topic, sequence, payload = self.socket.recv_multipart()
        return topic.decode(), int.from_bytes(sequence, "big"), DECODER.decode(payload)

    def close(self):
        self.context.destroy(linger=0)


def replay(endpoint: str, start: int) -> list[tuple[str, int, KVEventBatch]]:
    """Fills a gap. A DEALER, because a REQ socket takes one answer to a request and a replay is many."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVTIMEO, 30_000)
    socket.connect(endpoint)
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    batches = []
    while True:
        delimiter, topic, sequence, payload = socket.recv_multipart()
        assert delimiter == b""
        number = int.from_bytes(sequence, "big", signed=True)
        if number == -1:
            assert (topic, payload) == (b"", b"")
            context.destroy(linger=0)
            return batches
        batches.append((topic.decode(), number, DECODER.decode(payload)))


def complete(server, prompt: list[int], **more) -> dict:
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 4, "temperature": 0, "return_token_ids": True, **more}
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {kvasir.KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["choices"][0]


@pytest.fixture(scope="module")
def endpoints():
    return tuple(f"tcp://127.0.0.1:{kvasir.free_port()}" for _ in range(2))


@pytest.fixture(scope="module", params=["serve", "split"])
def publisher(request, endpoints):
    events, replays = endpoints
    config = {
        "enable_kv_cache_events": True, "endpoint": events, "bind": True, "replay_endpoint": replays, "topic": "kv@smollm2",
    }
    flags = ["--kv-cache-memory-bytes=256MiB", f"--kv-events-config={json.dumps(config)}", "--log-level=debug"]
    with kvasir.start(request.param, *flags) as running:
        yield running


def collect(subscriber: Subscriber, num_blocks: int):
    """Batches until this many blocks were stored."""
    batches, stored = [], []
    while sum(len(event.block_hashes) for event in stored) < num_blocks:
        batches.append(subscriber.read())
        stored += [event for event in batches[-1][2].events if isinstance(event, BlockStored)]
    return batches, stored


def test_stored_blocks_carry_the_tokens_of_the_request(publisher, endpoints):
    subscriber = Subscriber(endpoints[0])
    prompt = list(range(1000, 1040))
    choice = complete(publisher, prompt)
    batches, stored = collect(subscriber, 2)
    tokens = [token for event in stored for token in event.token_ids]
    assert tokens == (prompt + choice["token_ids"])[: len(tokens)]
    assert all(event.block_size == BLOCK_SIZE and event.medium == "GPU" and event.group_idx == 0 for event in stored)
    assert all(len(event.token_ids) == BLOCK_SIZE * len(event.block_hashes) for event in stored)
    assert stored[0].parent_block_hash is None
    hashes = [block for event in stored for block in event.block_hashes]
    assert len(set(hashes)) == len(hashes) and all(0 <= block < 2**64 for block in hashes)
    for before, event in zip(stored, stored[1:]):
        assert event.parent_block_hash == before.block_hashes[-1]
    assert all(topic == "kv@smollm2" and batch.data_parallel_rank == 0 for topic, _, batch in batches)
    subscriber.close()


def test_a_cached_prefix_is_not_stored_again_and_chains_to_its_parent(publisher, endpoints):
    subscriber = Subscriber(endpoints[0])
    prompt = list(range(2000, 2048))
    complete(publisher, prompt)
    _, first = collect(subscriber, 3)
    complete(publisher, prompt + list(range(3000, 3032)))
    _, second = collect(subscriber, 2)
    known = [block for event in first for block in event.block_hashes]
    assert second[0].parent_block_hash in known
    assert not set(known) & {block for event in second for block in event.block_hashes}
    subscriber.close()


def test_other_topics_are_not_delivered(publisher, endpoints):
    other, all_of_it = Subscriber(endpoints[0], "kv@another"), Subscriber(endpoints[0])
    complete(publisher, list(range(4000, 4020)))
    collect(all_of_it, 1)
    assert not other.socket.poll(200)
    other.close()
    all_of_it.close()


def test_a_gap_is_filled_by_a_replay(publisher, endpoints):
    subscriber = Subscriber(endpoints[0])
    complete(publisher, list(range(5000, 5064)))
    batches, _ = collect(subscriber, 4)
    last = batches[-1][1]
    subscriber.close()
    # Nobody listens.
    complete(publisher, list(range(6000, 6064)))
    publisher.eventually(lambda: replay(endpoints[1], last + 1), "a batch that was missed")
    subscriber = Subscriber(endpoints[0])
    complete(publisher, list(range(7000, 7064)))
    batches, _ = collect(subscriber, 4)
    missed = [batch for batch in replay(endpoints[1], last + 1) if batch[1] < batches[0][1]]
    numbers = [number for _, number, _ in missed + batches]
    assert numbers == list(range(last + 1, last + 1 + len(numbers)))
    stored = [event for _, _, batch in missed for event in batch.events if isinstance(event, BlockStored)]
    assert [token for event in stored for token in event.token_ids][:64] == list(range(6000, 6064))
    everything = replay(endpoints[1], 0)
    assert [number for _, number, _ in everything] == list(range(len(everything)))
    assert replay(endpoints[1], 2**63) == []
    subscriber.close()


def test_one_request_id_runs_through_everything(publisher, endpoints):
    subscriber = Subscriber(endpoints[0])
    choice = complete(publisher, list(range(8000, 8040)), return_timeline=True)
    timeline = choice["timeline"]
    request_id = timeline["request_id"]
    events = [entry["event"] for entry in timeline["entries"]]
    assert events[:3] == ["queued", "scheduled", "chunk"] and events[-2:] == ["first_token", "finished"]
    assert [entry["at_us"] for entry in timeline["entries"]] == sorted(entry["at_us"] for entry in timeline["entries"])
    # The KV events name it as the session that stored the blocks. Between two processes the edge's id has a serial number.
    _, stored = collect(subscriber, 2)
    names = {event.session_id for event in stored}
    assert len(names) == 1
    name = names.pop()
    assert name == request_id or re.fullmatch(re.escape(request_id) + r"#\d+", name)
    # The log has it on each chunk, with the step of the timeline, on each block, and on its beginning and end.
    log = [line for line in publisher.log.read_text(errors="replace").splitlines() if request_id in line]
    steps = {entry["step"] for entry in timeline["entries"] if entry["event"] == "chunk"}
    for wanted in ["scheduled", "computed", "block stored", "finished", *(f"step={step}" for step in steps)]:
        assert any(wanted in re.sub(r"\x1b\[[0-9;]*m", "", line) for line in log), f"{wanted} is not in {log}"
    subscriber.close()


def test_garbage_at_the_sockets_harms_nobody(publisher, endpoints):
    import socket

    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
    huge = b"\x02" + b"\x7f" + b"\xff" * 7
    for endpoint in endpoints:
        host, port = endpoint.removeprefix("tcp://").split(":")
        for garbage in [b"", b"GET / HTTP/1.1\r\n\r\n", greeting + huge, greeting + ready + huge, greeting + ready + b"\x01\x00" * 50]:
            with socket.create_connection((host, int(port)), timeout=10) as hostile:
                hostile.sendall(garbage)
                hostile.shutdown(socket.SHUT_WR)
                while hostile.recv(4096):
                    pass
    subscriber = Subscriber(endpoints[0])
    complete(publisher, list(range(9000, 9020)))
    collect(subscriber, 1)
    subscriber.close()


def test_a_subscriber_that_never_reads_holds_nobody_up(publisher, endpoints):
    slow, fast = Subscriber(endpoints[0]), Subscriber(endpoints[0])
    done = threading.Event()

    def drain():
        while not done.is_set():
            fast.socket.poll(100) and fast.read()

    reader = threading.Thread(target=drain)
    reader.start()
    for start in range(10_000, 12_000, 100):
        complete(publisher, list(range(start, start + 64)), max_tokens=1)
    done.set()
    reader.join()
    slow.close()
    fast.close()
