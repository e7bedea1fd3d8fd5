"""The operating point over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from real_daemon import RealDaemon
from trimtab.catalog.load import load_catalog
from trimtab.domain.knobs import PARKED, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.runtime.last_point import FILE, HELD_S, LastPoint, load_point
from trimtab.telemetry.log import get_logger

POINT = OperatingPoint("int8", 1024, threads=2, speculation="ngram", pace_ratio=0.5)


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_catalog([Path(__file__).parent.parent]).model("tiny")


class Watched:
    """The state directory of a test, and what failed."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.failed: list[str] = []
        self.point = LastPoint(state, get_logger("test"), lambda name, _: self.failed.append(name))

    def load(self, model: ModelSpec | None, threads: int = 2) -> OperatingPoint | None:
        return load_point(self.state, model, threads, get_logger("test"))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


async def test_a_point_that_held_comes_back_at_full_pace(
    watched: Watched, model: ModelSpec
) -> None:
    watched.point.seen(0.0, model, POINT)
    watched.point.seen(HELD_S, model, POINT)
    await watched.point.written()

    assert watched.load(model, threads=3) == OperatingPoint(
        "int8", 1024, threads=3, speculation="ngram"
    )
    assert watched.failed == []


async def test_a_point_that_did_not_hold_is_not_kept(watched: Watched, model: ModelSpec) -> None:
    watched.point.seen(0.0, model, POINT)
    watched.point.seen(HELD_S - 1, model, OperatingPoint("fp32", 2048))
    watched.point.seen(HELD_S, model, POINT)
    await watched.point.written()

    assert watched.load(model) is None


async def test_parking_keeps_what_was_there_before(watched: Watched, model: ModelSpec) -> None:
    watched.point.seen(0.0, model, POINT)
    watched.point.seen(HELD_S, model, POINT)
    await watched.point.written()
    watched.point.seen(HELD_S + 1, model, PARKED)
    watched.point.seen(HELD_S * 3, model, PARKED)
    await watched.point.written()
    back = watched.load(model)

    assert back is not None
    assert back.variant == "int8"


def test_a_damaged_file_is_no_reason_not_to_start(watched: Watched, model: ModelSpec) -> None:
    (watched.state / FILE).write_text("{")

    assert watched.load(model) is None


def test_a_real_daemon_begins_where_it_had_been(tmp_path: Path) -> None:
    saved = '{"model": "tiny", "variant": "int4", "context": 2048, "speculation": "off"'
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE).write_text(
        f'{{"version": 1, "data": {saved}, "kv_placement": "memory"}}}}'
    )
    daemon = RealDaemon(tmp_path).start()
    with daemon.client("control") as client:
        first = client.get("/trimtab/v1/decisions").json()
    daemon.end()

    records = first["decisions"] if isinstance(first, dict) else first
    assert records[0]["target"]["variant"] == "int4"
