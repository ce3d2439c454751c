"""Many streams at once, clients that leave, and what is left behind."""

import asyncio
import random

import openai
import pytest

import server as kvasir

STREAMS = 200


@pytest.fixture(scope="module", params=["serve", "split"])
def busy_server(request):
    flags = ("--kv-cache-memory-bytes=256MiB", "--max-num-seqs=64", "--max-num-queued-reqs=1000")
    with kvasir.start(request.param, *flags) as running:
        yield running


def request_of(number: int) -> dict:
    generator = random.Random(number)
    words = " ".join(generator.choice(["river", "stone", "cloud", "fire", "tree", "bird"]) for _ in range(8))
    return dict(
        model="smollm2", prompt=f"{words}:", max_tokens=4 + number % 9,
        temperature=0 if number % 2 else 1.0, seed=number,
    )


async def one_stream(client, number: int, leaves_after: int | None) -> str | None:
    """The text, or None if the client left before the end."""
    stream = await client.completions.create(**request_of(number), stream=True)
    text, chunks = "", 0
    async for chunk in stream:
        text += chunk.choices[0].text
        chunks += 1
        if leaves_after is not None and chunks > leaves_after:
            await stream.close()
            return None
    return text


async def storm(server, round_number: int) -> dict:
    generator = random.Random(round_number)
    leaves = {number: generator.randrange(3) if generator.random() < 0.3 else None for number in range(STREAMS)}
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=kvasir.KEY, max_retries=0, timeout=600
    ) as client:
        texts = await asyncio.gather(*[one_stream(client, number, leaves[number]) for number in range(STREAMS)])
    return {number: text for number, text in enumerate(texts) if text is not None}


def idle(server) -> bool:
    return (
        server.metric("vllm:num_requests_running") == 0
        and server.metric("vllm:num_requests_waiting") == 0
        and server.metric("vllm:kv_cache_usage_perc") == 0
    )


async def test_two_hundred_streams_with_disconnects_leave_nothing_behind(busy_server):
    server = busy_server
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=kvasir.KEY, max_retries=0, timeout=600) as client:
        alone = {number: client.completions.create(**request_of(number)).choices[0].text for number in range(0, STREAMS, 5)}
    resident = []
    for round_number in range(3):
        texts = await storm(server, round_number)
        server.eventually(lambda: idle(server), "no request and no block in use")
        for number, text in alone.items():
            if number in texts:
                assert texts[number] == text, f"request {number} differs between alone and round {round_number}"
        resident.append(server.resident_bytes())
    grown = resident[-1] - resident[-2]
    assert grown < 48 * 1024 * 1024, f"resident memory by round, MiB: {[size >> 20 for size in resident]}"


async def test_a_client_that_leaves_frees_its_blocks_while_others_go_on(busy_server):
    server = busy_server
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=kvasir.KEY, max_retries=0) as client:
        long = dict(model="smollm2", prompt="Once upon a time", max_tokens=2000, extra_body={"ignore_eos": True})
        leaving = await client.completions.create(**long, stream=True)
        await anext(aiter(leaving))
        assert server.metric("vllm:num_requests_running") == 1
        await leaving.close()
        server.eventually(lambda: idle(server), "the abandoned request ended")
        waiting = asyncio.create_task(client.completions.create(**long))
        server_is_busy = lambda: server.metric("vllm:num_requests_running") == 1  # noqa: E731
        await asyncio.to_thread(server.eventually, server_is_busy, "the second request runs")
        waiting.cancel()
        await asyncio.to_thread(server.eventually, lambda: idle(server), "the abandoned answer ended")
