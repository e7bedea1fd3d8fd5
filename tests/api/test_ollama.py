"""Ollama's routes, with Ollama's own client where there is one for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import ollama
import pytest

from api_fakes import Gateway
from trimtab.errors import NoModelError, ServingError

CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[ollama.AsyncClient]:
    """Ollama's own client, over the Unix socket."""
    async with httpx.AsyncHTTPTransport(uds=str(gateway.inference_socket)) as transport:
        yield ollama.AsyncClient(host="http://trimtab", transport=transport)


async def test_the_official_client_chats(gateway: Gateway, client: ollama.AsyncClient) -> None:
    whole = await client.chat("tiny:latest", CHAT["messages"])
    pieces = [piece async for piece in await client.chat("tiny", CHAT["messages"], stream=True)]

    assert whole.message.content == "Hello wörld!"
    assert whole.done_reason == "stop"
    assert (whole.prompt_eval_count, whole.eval_count) == (7, 3)
    assert whole.total_duration is not None
    assert whole.total_duration > 0
    assert whole.model == "tiny:latest"
    assert "".join(piece.message.content or "" for piece in pieces) == "Hello wörld!"
    assert [piece.done for piece in pieces] == [False, False, False, True]
    assert gateway.inference.requests[0].model == "tiny"


async def test_the_official_client_generates(gateway: Gateway, client: ollama.AsyncClient) -> None:
    options = {"temperature": 0.1, "num_predict": 9, "stop": ["END"], "seed": 3, "num_ctx": 512}
    whole = await client.generate("tiny", "Why?", system="Be short.", options=options)
    raw = await client.generate("tiny", "Why?", raw=True)

    asked, as_it_is = gateway.inference.requests
    assert whole.response == raw.response == "Hello wörld!"
    assert asked.messages == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Why?"},
    ]
    assert (asked.max_tokens, asked.stop, asked.sampling.seed) == (9, ("END",), 3)
    assert asked.sampling.seeded
    assert asked.sampling.temperature == 0.1
    assert (as_it_is.messages, as_it_is.text) == (None, "Why?")


async def test_a_top_p_of_0_keeps_the_best_token_alone(
    gateway: Gateway, client: ollama.AsyncClient
) -> None:
    await client.generate("tiny", "Why?", options={"top_p": 0})
    await client.generate("tiny", "Why?")

    assert [asked.sampling.top_p for asked in gateway.inference.requests] == [0, 0.9]


@pytest.mark.parametrize(
    ("options", "penalty", "window"),
    [
        ({}, 1.1, 64),
        ({"repeat_last_n": 5}, 1.1, 5),
        ({"repeat_last_n": -1}, 1.1, 0),
        ({"repeat_last_n": 0, "repeat_penalty": 1.3}, 1.0, 0),
    ],
)
async def test_repetitions_are_looked_for_as_far_back_as_is_asked_for(
    gateway: Gateway,
    client: ollama.AsyncClient,
    options: dict[str, float],
    penalty: float,
    window: int,
) -> None:
    await client.generate("tiny", "Why?", options=options)
    (asked,) = gateway.inference.requests

    assert asked.sampling.repetition_penalty == penalty
    assert asked.sampling.repetition_window == window


async def test_the_official_client_lists_and_shows_the_model(
    gateway: Gateway, client: ollama.AsyncClient
) -> None:
    listed = await client.list()
    shown = await client.show("tiny:latest")
    running = await client.ps()

    assert [model.model for model in listed.models] == ["tiny:latest"]
    assert shown.details is not None
    assert shown.details.family == "llama"
    assert [model.model for model in running.models] == ["tiny:latest"]


async def test_the_official_client_raises_its_own_error(
    gateway: Gateway, client: ollama.AsyncClient
) -> None:
    with pytest.raises(ollama.ResponseError) as unknown:
        await client.chat("llama3", CHAT["messages"])
    gateway.inference.refuse = NoModelError("there is no model")
    with pytest.raises(ollama.ResponseError) as none:
        await client.chat("tiny", CHAT["messages"])

    assert unknown.value.status_code == 404
    assert none.value.status_code == 503
    assert "trimtab models build" in none.value.error


async def test_a_stream_that_breaks_ends_with_one_error_line(gateway: Gateway) -> None:
    gateway.inference.events = [*gateway.inference.events[:1], ServingError("held", code="held")]
    async with gateway.client() as client:
        answer = await client.post("/api/chat", json=CHAT)

    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [line.get("done") for line in lines] == [False, None]
    assert lines[-1] == {"error": "held", "code": "held"}


async def test_the_operating_point_is_disclosed(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post("/api/chat", json=CHAT | {"stream": False})

    assert answer.json()["trimtab"]["variant"] == "int8"
    assert answer.headers["trimtab-variant"] == "int8"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        (
            {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
            "messages[0].images",
        ),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"format": "xml"}, "format"),
        ({"format": 1}, "format"),
        ({"format": {"type": "string", "multipleOf": 9999991}}, "format"),
        ({"tools": [{"function": {"name": "no good"}}]}, "tools[0].function.name"),
        ({"think": True}, "think"),
        ({"options": {"min_p": 0.1}}, "options.min_p"),
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": {"repeat_last_n": -2}}, "options.repeat_last_n"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
    ],
)
async def test_what_cant_be_honoured_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    async with gateway.client() as client:
        answer = await client.post("/api/chat", json=CHAT | fields)

    assert answer.status_code == 400
    assert answer.json()["param"] == param
    assert isinstance(answer.json()["error"], str)


async def test_somebody_is_there(gateway: Gateway) -> None:
    async with gateway.client() as client:
        root = await client.get("/")
        head = await client.head("/")
        version = await client.get("/api/version")

    assert root.text == "trimtab is running"
    assert head.status_code == 200
    assert version.json()["version"]
