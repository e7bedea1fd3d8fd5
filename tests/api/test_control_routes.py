"""The control socket: what it shows, what it takes, and what is written down about it."""

from __future__ import annotations

import asyncio
import io
import json
import os
from typing import Any

import msgspec
import pytest

from api_fakes import Gateway, a_record
from trimtab.errors import PolicyError, RequestError
from trimtab.telemetry.log import LogFormat, LogLevel, configure

V1 = "/trimtab/v1"


@pytest.mark.parametrize("socket", ["inference", "control"])
async def test_state_can_be_read_on_both_sockets(gateway: Gateway, socket: str) -> None:
    path = getattr(gateway, f"{socket}_socket")
    async with gateway.client(path) as client:
        status = await client.get(f"{V1}/status")
        signals = await client.get(f"{V1}/signals")
        points = await client.get(f"{V1}/points")
        policy = await client.get(f"{V1}/policy")

    assert status.json()["point"]["variant"] == "int8"
    assert signals.json()["signals"][1]["quality"] == "absent"
    assert points.json()["points"][1]["reason"] == "needs 90 MiB more memory"
    assert policy.json()["name"] == "balanced"


async def test_orders_are_taken_on_the_control_socket_only(gateway: Gateway) -> None:
    async with gateway.client(gateway.inference_socket) as client:
        answers = [
            await client.put(f"{V1}/pin", json={"knobs": {"variant": "int8"}}),
            await client.post(f"{V1}/pause"),
            await client.post(f"{V1}/reload"),
        ]

    assert [answer.status_code for answer in answers] == [404, 404, 404]
    assert not gateway.control.orders


async def test_orders_reach_the_daemon_with_their_sender(gateway: Gateway) -> None:
    async with gateway.client(gateway.control_socket) as client:
        pin = await client.put(f"{V1}/pin", json={"knobs": {"variant": "int8"}, "for": "10m"})
        await client.delete(f"{V1}/pin")
        await client.post(f"{V1}/pause")
        await client.post(f"{V1}/resume")
        reload = await client.post(f"{V1}/reload")

    names = [order[0] for order in gateway.control.orders]
    senders = {order[-1] for order in gateway.control.orders}
    assert pin.json() == {"pinned": {"variant": "int8"}, "for_s": 600.0}
    assert names == ["pin", "unpin", "pause", "pause", "reload"]
    assert gateway.control.orders[0][1:3] == ({"variant": "int8"}, 600.0)
    assert [order[1] for order in gateway.control.orders[2:4]] == [True, False]
    assert len(senders) == 1
    assert f"uid {os.getuid()}, pid {os.getpid()}" in senders.pop()
    assert reload.json()["revision"] == "new"


async def test_each_order_leaves_an_audit_line_with_user_and_process(gateway: Gateway) -> None:
    lines = io.StringIO()
    configure(LogLevel.INFO, LogFormat.JSON, lines)
    try:
        async with gateway.client(gateway.control_socket) as client:
            await client.post(f"{V1}/pause")
            gateway.control.refuse = RequestError("no", code="pin_invalid")
            await client.delete(f"{V1}/pin")
    finally:
        configure()

    done, refused = (json.loads(line) for line in lines.getvalue().splitlines())
    assert done["event"] == "control_done"
    assert done["action"] == f"POST {V1}/pause"
    assert (done["uid"], done["pid"]) == (os.getuid(), os.getpid())
    assert refused["event"] == "control_refused"
    assert refused["code"] == "pin_invalid"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"knobs": {}}, "knobs"),
        ({"knobs": {"colour": "red"}}, "knobs.colour"),
        ({"knobs": {"variant": ["int8"]}}, "knobs[...]"),
        ({"knobs": {"variant": "int8"}, "for": "soon"}, "for"),
        ({"knobs": {"variant": "int8"}, "for": 0}, "for"),
        ({"knobs": {"variant": "int8"}, "until": "noon"}, "until"),
    ],
)
async def test_a_pin_that_makes_no_sense_is_a_problem_that_names_its_field(
    gateway: Gateway, body: dict[str, Any], param: str
) -> None:
    async with gateway.client(gateway.control_socket) as client:
        answer = await client.put(f"{V1}/pin", json=body)

    problem = answer.json()
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:trimtab:problem:{problem['code']}"
    assert problem["title"] == "Bad Request"
    assert problem["param"] == param
    assert not gateway.control.orders


async def test_a_bad_policy_is_422_with_the_way_out(gateway: Gateway) -> None:
    gateway.control.refuse = PolicyError("balanced.yaml:3:1: bad", hint="Mend line 3.")
    async with gateway.client(gateway.control_socket) as client:
        answer = await client.post(f"{V1}/reload")

    assert answer.status_code == 422
    assert answer.json()["detail"] == "balanced.yaml:3:1: bad"
    assert answer.json()["hint"] == "Mend line 3."


async def test_decisions_are_listed_oldest_first_and_found_by_number(gateway: Gateway) -> None:
    async with gateway.client() as client:
        listed = await client.get(f"{V1}/decisions", params={"limit": 2})
        one = await client.get(f"{V1}/decisions/2")
        missing = await client.get(f"{V1}/decisions/99")

    assert [record["id"] for record in listed.json()["decisions"]] == [2, 3]
    assert one.json()["id"] == 2
    assert missing.status_code == 404
    assert missing.json()["code"] == "no_such_decision"


@pytest.mark.parametrize("path", ["decisions?limit=0", "decisions?limit=x", "decisions/-1"])
async def test_a_number_that_is_none_is_refused(gateway: Gateway, path: str) -> None:
    async with gateway.client(gateway.control_socket) as client:
        answer = await client.get(f"{V1}/{path}")

    assert answer.status_code == 400


async def test_decisions_can_be_followed_from_the_last_one_seen(gateway: Gateway) -> None:
    headers = {"last-event-id": "1"}
    async with (
        gateway.client(gateway.control_socket) as client,
        client.stream("GET", f"{V1}/decisions/stream", headers=headers) as answer,
    ):
        gateway.control.live.put_nowait(a_record(4))
        gateway.control.live.put_nowait(None)
        lines = [line async for line in answer.aiter_lines()]

    ids = [line for line in lines if line.startswith("id: ")]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert ids == ["id: 2", "id: 3", "id: 4"]


async def test_a_quiet_decision_stream_gives_signs_of_life(serve: Any) -> None:
    gateway = await serve(keep_alive="50ms")
    async with (
        gateway.client(gateway.control_socket) as client,
        client.stream("GET", f"{V1}/decisions/stream") as answer,
    ):
        lines = answer.aiter_lines()
        first = [await anext(lines) for _ in range(4)]

    assert first == [": decisions", "", ": waiting", ""]


async def test_health_says_the_loop_runs_and_readiness_that_tokens_can_flow(
    gateway: Gateway,
) -> None:
    async with gateway.client() as client:
        ready = await client.get("/readyz")
        gateway.control.now = msgspec.structs.replace(
            gateway.control.now, state="parked", tokens_can_flow=False, reason="too hot"
        )
        parked = await client.get("/readyz")
        health = await client.get("/healthz")

    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert (parked.status_code, parked.json()["reason"]) == (503, "too hot")
    assert health.status_code == 200


async def test_metrics_tell_state_point_streams_and_signals(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.get("/metrics")

    lines = answer.text.splitlines()
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'trimtab_state{state="ready"} 1.0' in lines
    assert 'trimtab_state{state="parked"} 0.0' in lines
    assert 'trimtab_point_info{kv_placement="memory",speculation="off",variant="int8"} 1.0' in lines
    assert "trimtab_tokens_total 12.0" in lines
    assert 'trimtab_signal_bytes{signal="memory.available"} 5e+08' in lines
    assert 'trimtab_signal_usable{signal="temperature.max"} 0.0' in lines
    assert not [line for line in lines if "_created" in line]


async def test_a_fault_of_ours_is_500_without_a_traceback_for_the_client(gateway: Gateway) -> None:
    def broken() -> None:
        raise ZeroDivisionError("secret detail")

    gateway.control.status = broken  # type: ignore[method-assign,assignment]
    lines = io.StringIO()
    configure(LogLevel.INFO, LogFormat.JSON, lines)
    try:
        async with gateway.client() as client:
            answer = await client.get(f"{V1}/status")
    finally:
        configure()

    assert answer.status_code == 500
    assert answer.json()["code"] == "internal_error"
    assert "secret" not in answer.text
    assert "ZeroDivisionError" in lines.getvalue()


async def test_status_answers_while_many_streams_run(gateway: Gateway) -> None:
    gateway.inference.hold = True
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with gateway.client() as client, gateway.client(gateway.control_socket) as owner:
        running = [
            asyncio.ensure_future(client.post("/v1/chat/completions", json=chat)) for _ in range(20)
        ]
        while len(gateway.inference.handles) < 20:
            await asyncio.sleep(0.01)
        answer = await owner.get(f"{V1}/status")
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    assert answer.status_code == 200
