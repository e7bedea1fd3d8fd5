"""Chat over a real socket: what comes, and how faults look."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from api_fakes import Gateway, a_model, deltas, with_logprobs
from trimtab.api.context import priorities_by_uid
from trimtab.errors import EngineError, NoModelError, RequestError, ServingError
from trimtab.serving.requests import Ended, FinishReason, Priority, Usage

CHAT = "/v1/chat/completions"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields


def events(text: str) -> list[Any]:
    """The data of each server-sent event; comments are left out."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


async def test_a_whole_answer_has_text_usage_and_its_operating_point(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body())

    told = answer.json()
    assert answer.status_code == 200
    assert told["object"] == "chat.completion"
    assert told["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hello wörld!",
        "refusal": None,
    }
    assert told["choices"][0]["finish_reason"] == "stop"
    assert told["usage"]["total_tokens"] == 10
    assert told["trimtab"]["variant"] == "int8"
    assert answer.headers["trimtab-variant"] == "int8"
    assert answer.headers["trimtab-context"] == "2048"
    assert answer.headers["trimtab-policy-revision"] == "abc123def456"


async def test_a_stream_gives_the_role_each_piece_and_one_end(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(stream=True))

    came = events(answer.text)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert came[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [one["choices"][0]["delta"].get("content") for one in came[1:4]] == [
        "Hello",
        " wörld",
        "!",
    ]
    assert came[4]["choices"][0]["finish_reason"] == "stop"
    assert came[4]["trimtab"]["policy_revision"] == "abc123def456"
    assert came[5:] == ["[DONE]"]
    assert len({one["id"] for one in came[:5]}) == 1


async def test_usage_comes_last_and_only_if_asked_for(gateway: Gateway) -> None:
    async with gateway.client() as client:
        asked = await client.post(
            CHAT, json=body(stream=True, stream_options={"include_usage": True})
        )
        plain = await client.post(CHAT, json=body(stream=True))

    usage = events(asked.text)[-2]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert all(one["usage"] is None for one in events(asked.text)[:-2])
    assert "usage" not in plain.text


async def test_logprobs_come_with_their_alternatives(gateway: Gateway) -> None:
    gateway.inference.events = with_logprobs("a", "b")
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(logprobs=True, top_logprobs=2))
        stream = await client.post(CHAT, json=body(logprobs=True, top_logprobs=2, stream=True))

    whole = answer.json()["choices"][0]["logprobs"]["content"]
    pieces = [one["choices"][0]["logprobs"] for one in events(stream.text)[1:3]]
    assert [one["token"] for one in whole] == ["a", "b"]
    assert whole[0]["bytes"] == [97]
    assert [top["token"] for top in whole[0]["top_logprobs"]] == ["a", "x"]
    assert [piece["content"][0]["logprob"] for piece in pieces] == [-0.5, -0.5]
    assert gateway.inference.requests[0].sampling.top_logprobs == 2


async def test_every_sampling_field_reaches_the_engine(gateway: Gateway) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": -1,
        "presence_penalty": 0.1,
        "frequency_penalty": -0.2,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100},
        "stop": ["\n", "END"],
        "max_completion_tokens": 33,
    }
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(**fields))

    request = gateway.inference.requests[0]
    assert answer.status_code == 200
    assert request.sampling.temperature == 0.5
    assert request.sampling.seed == 2**64 - 1
    assert request.sampling.seeded
    assert request.sampling.logit_bias == {5: -100.0}
    assert request.sampling.repetition_penalty == 1.1
    assert request.stop == ("\n", "END")
    assert request.max_tokens == 33


async def test_two_requests_without_a_seed_get_different_ones(gateway: Gateway) -> None:
    async with gateway.client() as client:
        for _ in range(2):
            await client.post(CHAT, json=body())

    first, second = gateway.inference.requests
    assert first.sampling.seed != second.sampling.seed
    assert not first.sampling.seeded


async def test_a_developer_message_and_text_parts_become_what_templates_know(
    gateway: Gateway,
) -> None:
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    async with gateway.client() as client:
        await client.post(CHAT, json=body(messages=messages))

    assert gateway.inference.requests[0].messages == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "ab"},
    ]


async def test_the_peers_user_id_and_wish_for_priority_reach_serving(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await client.post(CHAT, json=body(trimtab={"priority": "background"}))

    request = gateway.inference.requests[0]
    assert request.priority is Priority.BACKGROUND
    assert request.user is not None


@pytest.mark.parametrize(
    ("allowed", "wish", "given"),
    [
        ("background", "interactive", Priority.BACKGROUND),
        ("background", None, Priority.BACKGROUND),
        ("interactive", "background", Priority.BACKGROUND),
        ("interactive", None, Priority.INTERACTIVE),
        (None, "interactive", Priority.INTERACTIVE),
        (None, "background", Priority.BACKGROUND),
    ],
)
async def test_a_request_may_lower_its_priority_and_not_raise_it_above_its_users(
    serve: Callable[..., Awaitable[Gateway]],
    allowed: str | None,
    wish: str | None,
    given: Priority,
) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    gateway = await serve(users={me: allowed} if allowed else {})
    fields = {"trimtab": {"priority": wish}} if wish else {}
    async with gateway.client() as client:
        await client.post(CHAT, json=body(**fields))
        await client.post("/v1/completions", json={"model": "tiny", "prompt": "Hi"} | fields)

    assert [one.priority for one in gateway.inference.requests] == [given, given]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_completion_tokens": 10**30}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tempreature": 1}, "tempreature"),
        ({"trimtab": {"priority": "urgent"}}, "trimtab.priority"),
    ],
)
async def test_a_field_that_cant_be_honoured_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(**fields))

    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert not gateway.inference.requests


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[1]", b'{"model": "\xff"}', b"[" * 100_000, b'{"model":"\\ud800"}'],
)
async def test_a_body_that_is_no_json_object_is_refused(gateway: Gateway, content: bytes) -> None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, content=content)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in {"invalid_json", "invalid_value"}


async def test_a_missing_field_is_named(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, json={"messages": []})

    assert answer.json()["error"]["param"] == "model"
    assert answer.json()["error"]["code"] == "missing_required_parameter"


async def test_a_body_over_the_limit_is_refused_before_it_is_read(serve: Any) -> None:
    gateway = await serve(max_body="2KiB")
    async with gateway.client() as client:
        told = await client.post(CHAT, content=b"x" * 3000)

        async def pieces() -> Any:
            for _ in range(30):
                yield b"x" * 100

        untold = await client.post(CHAT, content=pieces())

    assert told.status_code == untold.status_code == 413
    assert told.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ServingError("full", status=429, retry_after_s=2.2, code="queue_full"), 429, "queue_full"),
        (NoModelError("there is no model"), 503, "no_model"),
        (
            RequestError("too long", param="messages", code="context_length_exceeded"),
            400,
            "context_length_exceeded",
        ),
        (EngineError("broke"), 502, "engine_failed"),
        (EngineError("token ids end at 511", code="invalid_request"), 400, "invalid_request"),
    ],
)
async def test_a_refusal_has_its_status_and_code(
    gateway: Gateway, error: Exception, status: int, code: str
) -> None:
    gateway.inference.refuse = error  # type: ignore[assignment]
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(stream=True))

    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    if status == 429:
        assert answer.headers["retry-after"] == "3"
    if code == "no_model":
        assert "trimtab models build" in answer.json()["error"]["message"]


async def test_an_unknown_model_is_404(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(model="int8"))

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


async def test_an_error_before_the_first_token_has_its_own_status(gateway: Gateway) -> None:
    gateway.inference.events = [ServingError("parked", code="parked", retry_after_s=5)]
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(stream=True))

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "parked"


async def test_an_error_in_mid_stream_is_the_one_terminal_event(gateway: Gateway) -> None:
    gateway.inference.events = [*deltas("a"), ServingError("held too long", code="held_too_long")]
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(stream=True))

    came = events(answer.text)
    assert came[-1]["error"]["code"] == "held_too_long"
    assert "[DONE]" not in came


async def test_a_stream_that_is_held_gets_signs_of_life(serve: Any) -> None:
    gateway = await serve(keep_alive="50ms")
    gateway.inference.hold = True
    gateway.inference.events = []
    async with (
        gateway.client() as client,
        client.stream("POST", CHAT, json=body(stream=True)) as answer,
    ):
        lines = answer.aiter_lines()
        comment = ""
        while not comment.startswith(":"):
            comment = await anext(lines)
        gateway.inference.handles[0].queue.put_nowait(Ended(FinishReason.LENGTH, Usage(7, 0)))
        rest = [line async for line in lines]

    assert comment == ": waiting"
    assert rest[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_at_once(gateway: Gateway, stream: bool) -> None:
    gateway.inference.hold = True
    async with gateway.client() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(CHAT, json=body(stream=stream), timeout=0.2)
    handle = gateway.inference.handles[0]

    async with asyncio.timeout(1):
        await handle.cancelled.wait()
    assert gateway.counted(
        'gen_ai_server_request_duration_seconds_count{gen_ai_operation_name="chat",'
        'outcome="cancelled"}'
    )


async def test_a_client_that_leaves_while_its_request_waits_ends_the_wait(gateway: Gateway) -> None:
    gateway.inference.slow = asyncio.Event()
    async with gateway.client() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(CHAT, json=body(), timeout=0.2)
    await asyncio.sleep(0.05)
    gateway.inference.slow.set()
    await asyncio.sleep(0.05)

    assert gateway.inference.requests
    assert not gateway.inference.handles


async def test_ttft_and_tokens_are_counted_once_a_request(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await client.post(CHAT, json=body(stream=True))
        await client.post(CHAT, json=body())

    labels = '{gen_ai_operation_name="chat",variant="int8"}'
    assert gateway.counted(f"gen_ai_server_time_to_first_token_seconds_count{labels}") == 2
    assert gateway.counted('trimtab_request_tokens_total{kind="completion",variant="int8"}') == 6
    assert gateway.counted('trimtab_api_responses_total{socket="inference",status="200"}') == 2


async def test_models_are_listed_by_id_and_never_by_variant(gateway: Gateway) -> None:
    gateway.inference.served = a_model("org/tiny")
    async with gateway.client() as client:
        listed = await client.get("/v1/models")
        one = await client.get("/v1/models/org/tiny")
        variant = await client.get("/v1/models/int8")

    assert [model["id"] for model in listed.json()["data"]] == ["org/tiny"]
    assert one.json()["trimtab"]["variants"] == ["fp32", "int8"]
    assert variant.status_code == 404
    assert variant.json()["error"]["code"] == "model_not_found"


async def test_no_model_is_an_empty_list(gateway: Gateway) -> None:
    gateway.inference.served = None
    async with gateway.client() as client:
        listed = await client.get("/v1/models")

    assert listed.json() == {"object": "list", "data": []}


async def test_unknown_paths_and_methods_have_openais_shape(gateway: Gateway) -> None:
    async with gateway.client() as client:
        missing = await client.get("/v2/nothing")
        wrong = await client.get(CHAT)

    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "not_found"
    assert wrong.status_code == 405
    assert wrong.json()["error"]["code"] == "method_not_allowed"


def test_a_users_highest_priority_comes_from_the_configuration() -> None:
    me = pwd.getpwuid(os.getuid())
    known = priorities_by_uid({me.pw_name: "background", "nobody-of-that-name": "background"})

    assert known == {me.pw_uid: Priority.BACKGROUND}
