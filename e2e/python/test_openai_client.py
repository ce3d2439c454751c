"""The official `openai` package: sync, async and streaming, over both process shapes."""

import asyncio

import openai
import pytest

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def test_models_lists_the_served_name(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_chat_answers_the_question(client):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert "Paris" in choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.object == "chat.completion"


def test_the_stream_equals_the_answer(client):
    request = dict(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_async_requests_and_streams_run_together(async_client):
    request = dict(model=MODEL, messages=QUESTION, temperature=0, max_tokens=16)

    async def streamed():
        stream = await async_client.chat.completions.create(**request, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def whole():
        return (await async_client.chat.completions.create(**request)).choices[0].message.content

    answers = await asyncio.gather(*[streamed() for _ in range(4)], *[whole() for _ in range(4)])
    assert len(set(answers)) == 1


def test_a_seed_gives_the_same_text_again_and_another_seed_another(client):
    def run(seed):
        return client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Write a line about rivers."}],
            temperature=1.5, seed=seed, max_tokens=24,
        ).choices[0].message.content

    assert run(7) == run(7)
    assert len({run(seed) for seed in (7, 8, 9, 10)}) > 1


def test_n_gives_n_choices_with_their_own_draws(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Name an animal."}], n=4, temperature=1.8, seed=1, max_tokens=16
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_chat_log_probabilities_have_their_shape_and_order(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)
        assert bytes(entry.bytes) == entry.token.encode()
        assert entry.logprob <= 0
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content


def test_completions_echo_and_log_probabilities_cover_the_prompt(client):
    prompt = "The quick brown fox"
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0, echo=True, logprobs=2)
    choice = answer.choices[0]
    assert choice.text.startswith(prompt)
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == answer.usage.total_tokens
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens) == choice.text
    for offset, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
        assert choice.text[offset:].startswith(token)


def test_completions_take_token_ids_and_lists_of_prompts(client):
    answer = client.completions.create(model=MODEL, prompt=["One, two,", "Red, green,"], max_tokens=4, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    single = client.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0)
    assert answer.choices[0].text == single.choices[0].text
    ids = client.completions.create(model=MODEL, prompt=[504, 2365], max_tokens=1, temperature=0)
    assert ids.usage.prompt_tokens == 2


def test_a_stop_string_is_cut_and_named(client):
    request = dict(model=MODEL, prompt="Count: one, two, three, four,", max_tokens=32, temperature=0)
    free = client.completions.create(**request).choices[0].text
    words = free.split()
    assert len(words) > 3, free
    stop = words[2]
    cut = client.completions.create(**request, stop=[stop]).choices[0]
    assert cut.text == free[: free.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.stop_reason == stop
    streamed = "".join(c.choices[0].text for c in client.completions.create(**request, stop=[stop], stream=True))
    assert streamed == cut.text


def test_a_logit_bias_forces_and_forbids_a_token(client):
    request = dict(model=MODEL, prompt="Hello", max_tokens=3, temperature=0)
    forced = client.completions.create(**request, logit_bias={"504": 100}, extra_body={"return_token_ids": True})
    assert forced.choices[0].token_ids == [504, 504, 504]


def test_errors_arrive_as_the_exceptions_of_the_package(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
    assert MODEL in str(missing.value)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_the_second_turn_reads_the_first_from_the_prefix_cache(server, client):
    history = [{"role": "user", "content": "Tell me about the moon. " * 8}]
    first = client.chat.completions.create(model=MODEL, messages=history, temperature=0, max_tokens=16)
    history += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And the sun?"},
    ]
    before = server.metric("vllm:prefix_cache_hits_total")
    client.chat.completions.create(model=MODEL, messages=history, temperature=0, max_tokens=4)
    assert server.metric("vllm:prefix_cache_hits_total") - before >= 48
