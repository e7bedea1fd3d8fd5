"""Calls of tools as OpenAI's and Ollama's own clients read them, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import ollama
import openai
import pytest

from api_fakes import Gateway, a_model, deltas, with_logprobs
from trimtab.domain.tools import ToolFormat
from trimtab.serving.requests import Ended, FinishReason, Usage

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "clock")
]
TWO_CALLS = (
    "I'll look.\n<tool_ca",
    'll>\n{"name": "weather", "argu',
    'ments": {"city": "Par',
    'is"}}\n</tool_call>\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
)


@pytest.fixture
def gateway(gateway: Gateway) -> Gateway:
    """A model that takes tools, and calls two of them."""
    gateway.inference.served = replace(a_model(), tool_format=ToolFormat.HERMES)
    gateway.inference.events = deltas(*TWO_CALLS)
    return gateway


def official(gateway: Gateway) -> openai.AsyncOpenAI:
    transport = httpx.AsyncHTTPTransport(uds=str(gateway.inference_socket))
    return openai.AsyncOpenAI(
        base_url="http://trimtab/v1",
        api_key="unused",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=transport),
    )


@pytest.fixture
async def of_ollama(gateway: Gateway) -> AsyncIterator[ollama.AsyncClient]:
    async with httpx.AsyncHTTPTransport(uds=str(gateway.inference_socket)) as transport:
        yield ollama.AsyncClient(host="http://trimtab", transport=transport)


async def test_the_official_client_gets_calls_beside_the_text(gateway: Gateway) -> None:
    async with official(gateway) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)

    choice = answer.choices[0]
    calls: Any = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I'll look.\n"
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", '{"city": "Paris"}'),
        ("clock", "{}"),
    ]
    assert calls[0].id.startswith("call_")
    assert calls[0].id != calls[1].id


async def test_the_official_client_puts_streamed_calls_together(gateway: Gateway) -> None:
    async with (
        official(gateway) as client,
        client.chat.completions.stream(model="tiny", messages=MESSAGES, tools=TOOLS) as stream,
    ):
        kinds = [event.type async for event in stream]
        completion = await stream.get_final_completion()

    choice = completion.choices[0]
    calls: Any = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I'll look.\n"
    assert [call.function.arguments for call in calls] == ['{"city": "Paris"}', "{}"]
    assert kinds.count("tool_calls.function.arguments.done") == 2


async def test_arguments_are_streamed_as_they_come(gateway: Gateway) -> None:
    async with official(gateway) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS, stream=True
        )
        found = [
            call async for chunk in stream for choice in chunk.choices
            for call in choice.delta.tool_calls or []
        ]  # fmt: skip

    begun = [call for call in found if call.id]
    pieces = [call.function.arguments for call in found if call.function and call.index == 0]
    assert [call.function and call.function.name for call in begun] == ["weather", "clock"]
    assert pieces == ["", '{"city": "Par', 'is"}']


async def test_an_answer_of_calls_alone_has_no_content(gateway: Gateway) -> None:
    gateway.inference.events = deltas('<tool_call>\n{"name": "clock", "arguments": {}}')
    async with official(gateway) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)

    assert answer.choices[0].message.content is None


async def test_an_answer_without_calls_ends_as_usual(gateway: Gateway) -> None:
    gateway.inference.events = deltas("Just <", "text", " <tool")
    async with official(gateway) as client:
        whole = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS, stream=True
        )
        chunks = [chunk.choices[0] async for chunk in stream]

    assert whole.choices[0].message.content == "Just <text <tool"
    assert whole.choices[0].message.tool_calls is None
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Just <text <tool"
    assert whole.choices[0].finish_reason == chunks[-1].finish_reason == "stop"


async def test_a_call_that_was_cut_off_says_so(gateway: Gateway) -> None:
    gateway.inference.events = [
        *deltas('<tool_call>\n{"name": "weather", "arguments": {"ci'),
        Ended(FinishReason.LENGTH, Usage(7, 9)),
    ]
    async with official(gateway) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, tools=TOOLS)

    calls: Any = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "length"
    assert calls[0].function.arguments == '{"ci'


async def test_text_that_looks_like_a_call_is_text_where_there_are_no_tools(
    gateway: Gateway,
) -> None:
    async with official(gateway) as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)

    assert answer.choices[0].message.content == "".join(TWO_CALLS)


async def test_log_probabilities_come_with_calls_too(gateway: Gateway) -> None:
    gateway.inference.events = with_logprobs(*TWO_CALLS)
    async with official(gateway) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, tools=TOOLS, logprobs=True, stream=True
        )
        told = [
            one.token async for chunk in stream for choice in chunk.choices
            for one in (choice.logprobs and choice.logprobs.content) or []
        ]  # fmt: skip

    assert told == list(TWO_CALLS)


async def test_ollamas_client_gets_calls_with_values(of_ollama: ollama.AsyncClient) -> None:
    whole = await of_ollama.chat("tiny", MESSAGES, tools=TOOLS)
    stream = await of_ollama.chat("tiny", MESSAGES, tools=TOOLS, stream=True)
    parts = [part async for part in stream]

    calls = [call.function for call in whole.message.tool_calls or []]
    streamed = [call.function for part in parts for call in part.message.tool_calls or []]
    assert [(call.name, call.arguments) for call in calls] == [
        ("weather", {"city": "Paris"}),
        ("clock", {}),
    ]
    assert streamed == calls
    assert "".join(part.message.content or "" for part in parts) == "I'll look.\n"
    assert parts[-1].done_reason == "stop"


async def test_ollamas_clients_can_answer_for_a_tool(
    gateway: Gateway, of_ollama: ollama.AsyncClient
) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "sunny", "tool_name": "weather"},
        {"role": "tool", "content": "rain", "tool_name": "weather"},
    ]
    await of_ollama.chat("tiny", messages, tools=TOOLS)

    shown = gateway.inference.requests[0].messages
    assert shown is not None
    assert shown[1]["tool_calls"][0]["function"] == call["function"]
    ids = [one["id"] for one in shown[1]["tool_calls"]]
    assert [shown[2]["tool_call_id"], shown[3]["tool_call_id"]] == ids
    assert {len(one) for one in ids} == {9}


async def test_ollamas_format_reaches_the_engine(
    gateway: Gateway, of_ollama: ollama.AsyncClient
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    await of_ollama.chat("tiny", MESSAGES, format="json")
    await of_ollama.chat("tiny", MESSAGES, format=schema)
    await of_ollama.generate("tiny", "Hi", format=schema)

    guides = [request.guide for request in gateway.inference.requests]
    assert [guide and json.loads(guide.schema) for guide in guides] == [
        {"type": "object"},
        schema,
        schema,
    ]
    assert {guide and guide.field for guide in guides} == {"format"}


async def test_ollamas_clients_learn_whether_a_model_takes_tools(
    gateway: Gateway, of_ollama: ollama.AsyncClient
) -> None:
    with_tools = await of_ollama.show("tiny")
    gateway.inference.served = a_model()
    without = await of_ollama.show("tiny")

    assert with_tools.capabilities == ["completion", "tools"]
    assert without.capabilities == ["completion"]
