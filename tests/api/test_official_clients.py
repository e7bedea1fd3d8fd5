"""OpenAI's own client and curl over the Unix socket, unchanged."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from api_fakes import Gateway, with_logprobs
from trimtab.errors import ServingError


def official(gateway: Gateway) -> openai.AsyncOpenAI:
    transport = httpx.AsyncHTTPTransport(uds=str(gateway.inference_socket))
    return openai.AsyncOpenAI(
        base_url="http://trimtab/v1",
        api_key="unused",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=transport),
    )


async def test_the_official_client_chats(gateway: Gateway) -> None:
    async with official(gateway) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], temperature=0, seed=1
        )

    assert answer.choices[0].message.content == "Hello wörld!"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 10
    assert answer.model_extra is not None
    assert answer.model_extra["trimtab"]["variant"] == "int8"


async def test_the_official_client_streams_with_usage(gateway: Gateway) -> None:
    texts, usage = [], None
    async with official(gateway) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            texts += [choice.delta.content or "" for choice in chunk.choices]
            usage = chunk.usage or usage

    assert "".join(texts) == "Hello wörld!"
    assert usage is not None
    assert usage.completion_tokens == 3


async def test_the_official_client_reads_logprobs(gateway: Gateway) -> None:
    gateway.inference.events = with_logprobs("a", "b")
    async with official(gateway) as client:
        chat = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hi"}],
            logprobs=True,
            top_logprobs=2,
        )
        text = await client.completions.create(model="tiny", prompt="Hi", logprobs=2)

    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    assert chat.choices[0].logprobs.content[1].top_logprobs[1].token == "x"
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.tokens == ["a", "b"]
    assert text.choices[0].logprobs.text_offset == [0, 1]


async def test_the_official_client_completes_and_streams_text(gateway: Gateway) -> None:
    async with official(gateway) as client:
        whole = await client.completions.create(model="tiny", prompt="Once", max_tokens=5)
        stream = await client.completions.create(model="tiny", prompt=["Once"], stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]

    assert whole.choices[0].text == "Hello wörld!"
    assert whole.object == "text_completion"
    assert "".join(pieces) == "Hello wörld!"
    assert gateway.inference.requests[0].max_tokens == 5
    assert gateway.inference.requests[1].max_tokens == 16


async def test_the_official_client_lists_models(gateway: Gateway) -> None:
    async with official(gateway) as client:
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("tiny")

    assert listed == ["tiny"]
    assert one.owned_by == "trimtab"


async def test_the_official_client_raises_its_own_errors(gateway: Gateway) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    async with official(gateway) as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt", messages=messages)
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="tiny", messages=messages, n=3)
        gateway.inference.refuse = ServingError("full", status=429, code="queue_full")
        with pytest.raises(openai.RateLimitError) as full:
            await client.chat.completions.create(model="tiny", messages=messages)

    assert unknown.value.code == "model_not_found"
    assert (bad.value.code, bad.value.param) == ("unsupported_parameter", "n")
    assert full.value.code == "queue_full"


async def test_an_error_in_mid_stream_is_raised_by_the_official_client(gateway: Gateway) -> None:
    gateway.inference.events = [*with_logprobs("a"), ServingError("held", code="held_too_long")]
    async with official(gateway) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass

    assert caught.value.code == "held_too_long"


async def test_curl_talks_over_the_unix_socket(gateway: Gateway) -> None:
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]})
    answer = await _curl(gateway, "http://trimtab/v1/chat/completions", "-d", body)
    stream = await _curl(
        gateway, "http://trimtab/v1/completions", "-N", "-d",
        json.dumps({"model": "tiny", "prompt": "Hi", "stream": True}),
    )  # fmt: skip

    assert json.loads(answer)["choices"][0]["message"]["content"] == "Hello wörld!"
    assert stream.rstrip().endswith("data: [DONE]")


async def _curl(gateway: Gateway, url: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "--unix-socket", str(gateway.inference_socket), url, *arguments,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()
