"""How many requests a user may send, and what one gets who sends more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_fakes import Gateway
from trimtab.api.faults import OPENAI, fault_response
from trimtab.api.rate import MAX_USERS, RateLimit
from trimtab.errors import ServingError

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


def test_a_burst_goes_through_and_the_next_waits_for_its_turn() -> None:
    limit = RateLimit(per_second=10, burst=3)

    waits_s = [limit.wait_s(1000, 5.0) for _ in range(4)]

    assert waits_s[:3] == [0, 0, 0]
    assert waits_s[3] == pytest.approx(0.1)


def test_who_waits_as_long_as_told_is_let_in() -> None:
    limit = RateLimit(per_second=10, burst=1)
    limit.wait_s(1000, 5.0)

    wait_s = limit.wait_s(1000, 5.0)

    assert limit.wait_s(1000, 5.0 + wait_s * 0.9) > 0
    assert limit.wait_s(1000, 5.0 + wait_s) == 0


def test_one_user_takes_nothing_from_another() -> None:
    limit = RateLimit(per_second=1, burst=1)
    limit.wait_s(1000, 5.0)

    assert limit.wait_s(1000, 5.0) > 0
    assert limit.wait_s(1001, 5.0) == 0
    assert limit.wait_s(None, 5.0) == 0


def test_a_rate_of_zero_lifts_the_limit() -> None:
    limit = RateLimit(per_second=0, burst=1)

    assert all(limit.wait_s(1000, 5.0) == 0 for _ in range(1000))


def test_users_who_are_quiet_are_forgotten_and_a_busy_one_is_not() -> None:
    limit = RateLimit(per_second=1, burst=1)
    for user in range(MAX_USERS - 1):
        limit.wait_s(user, 0.0)
    limit.wait_s(-7, 10.0)

    limit.wait_s(-8, 10.5)

    assert limit.wait_s(-7, 10.5) > 0
    assert len(limit) == 2


@given(
    per_second=st.floats(0.1, 1000),
    burst=st.integers(1, 50),
    gaps_s=st.lists(st.floats(0, 2), max_size=200),
)
def test_no_stretch_of_time_holds_more_than_burst_and_rate_allow(
    per_second: float, burst: int, gaps_s: list[float]
) -> None:
    limit = RateLimit(per_second, burst)
    at_s, admitted_s = 0.0, []
    for gap_s in gaps_s:
        at_s += gap_s
        if limit.wait_s(1, at_s) == 0:
            admitted_s.append(at_s)

    for first, begun_s in enumerate(admitted_s):
        for last in range(first, len(admitted_s)):
            stretch_s = admitted_s[last] - begun_s
            assert last - first + 1 <= burst + per_second * stretch_s + 1e-6


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/v1/models", ("error", "code")),
        ("/api/tags", ("code",)),
        ("/trimtab/v1/status", ("code",)),
    ],
)
async def test_a_request_too_many_gets_429_in_the_words_of_its_route(
    serve: Any, path: str, where: tuple[str, ...]
) -> None:
    gateway: Gateway = await serve(rate=0.5, burst=2)
    async with gateway.client() as client:
        before = [(await client.get(path)).status_code for _ in range(2)]
        refused = await client.get(path)

    told: Any = refused.json()
    for name in where:
        told = told[name]
    assert before == [200, 200]
    assert refused.status_code == 429
    assert told == "rate_limited"
    assert refused.headers["retry-after"] == "2"
    assert gateway.counted('trimtab_api_responses_total{socket="inference",status="429"}') == 1


async def test_a_refused_request_never_reaches_the_engine_and_keeps_the_connection(
    serve: Any,
) -> None:
    gateway: Gateway = await serve(rate=20, burst=1)
    async with gateway.client() as client:
        await client.get("/healthz")
        refused = await client.post("/v1/chat/completions", json=CHAT)
        while refused.status_code == 429:
            asked = len(gateway.inference.requests)
            refused = await client.post("/v1/chat/completions", json=CHAT)

    assert asked == 0
    assert refused.status_code == 200
    assert len(gateway.inference.requests) == 1


async def test_orders_are_limited_too_and_each_socket_counts_for_itself(serve: Any) -> None:
    gateway: Gateway = await serve(rate=0.1, burst=1)
    async with gateway.client() as reader, gateway.client(gateway.control_socket) as owner:
        first = await reader.get("/healthz")
        done = await owner.post("/trimtab/v1/pause")
        refused = await owner.post("/trimtab/v1/resume")

    assert first.status_code == done.status_code == 200
    assert refused.status_code == 429
    assert refused.json()["hint"].startswith("`rate` and `burst`")
    assert [order[1] for order in gateway.control.orders] == [True]


def test_the_waiting_time_is_never_told_shorter_than_it_is() -> None:
    answer = fault_response(OPENAI, ServingError("wait", status=429, retry_after_s=2.2))

    assert answer.headers["retry-after"] == "3"
