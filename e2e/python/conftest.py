"""One server for each process shape, shared by the tests that don't need their own."""

import openai
import pytest

import server as kvasir


@pytest.fixture(scope="session", params=["serve", "split"])
def server(request):
    with kvasir.start(request.param, "--kv-cache-memory-bytes=512MiB") as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=kvasir.KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=kvasir.KEY, max_retries=0) as client:
        yield client
