"""Requests made from the OpenAPI documents, right and wrong ones, against a whole daemon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from loopback_door import door_to
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from real_daemon import RealDaemon

pytestmark = pytest.mark.slow

# What a client may ask for is less than what JSON Schema can say, so a request that the document
# allows may get an honest 400.
LEFT_OUT = [positive_data_acceptance]
EXAMPLES = 60
# These never end.
ENDLESS = ("/trimtab/v1/status/stream", "/trimtab/v1/decisions/stream", "/trimtab/v1/recording")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    running = RealDaemon(tmp_path_factory.mktemp("daemon"), API_RATE="0").start()
    yield running
    status, said = running.end()
    assert status == 0
    assert "Traceback" not in said
    assert '"level": "error"' not in said


def answers_as_promised(base_url: str, operation: Any, mode: Any) -> Counter[int]:
    """Ask an operation again and again, and check each answer against the document."""
    seen: Counter[int] = Counter()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        answer = case.call(base_url=base_url, timeout=20)
        seen[answer.status_code] += 1
        case.validate_response(answer, excluded_checks=LEFT_OUT)

    try:
        check()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # there is nothing to send that could be wrong
    return seen


@pytest.mark.parametrize("socket", ["inference", "control"])
@pytest.mark.timeout(400)
def test_every_operation_answers_as_its_document_says(daemon: RealDaemon, socket: str) -> None:
    statuses: Counter[int] = Counter()
    operations = 0
    with door_to(daemon.sockets / f"{socket}.sock") as base_url:
        document = httpx.get(f"{base_url}/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)
        schema.validate()
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path in ENDLESS:
                continue
            operations += 1
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                statuses += answers_as_promised(base_url, operation, mode)
        daemon.unpin()

    assert operations >= 20
    assert statuses[200] >= operations / 2
    assert statuses[400] > 0
    assert not [status for status in statuses if status >= 500]
    assert daemon.status()["restarts_total"] == 0
