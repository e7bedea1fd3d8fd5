"""Orders to pin that can't be carried out."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real_daemon import TINY, RealDaemon
from trimtab.domain.knobs import Knob
from trimtab.errors import RequestError
from trimtab.planner import State
from trimtab.planner.state import Pin, Quarantine
from trimtab.runtime.pins import pin_waits, refuse_broken

BROKEN = State(quarantine={"int4": Quarantine(160.0, 60.0, "model.onnx is truncated")})


def test_a_variant_that_failed_is_refused_with_the_reason_and_the_way_out() -> None:
    with pytest.raises(RequestError) as told:
        refuse_broken(BROKEN, {Knob.VARIANT: "int4"}, at_s=110.0)

    assert told.value.status == 409
    assert told.value.code == "variant_quarantined"
    assert told.value.message == (
        "int4 can't be pinned now, since it failed (model.onnx is truncated); "
        "it may be tried again in 50 s"
    )
    assert "models verify" in told.value.hint


@pytest.mark.parametrize(
    ("knobs", "at_s"),
    [({Knob.VARIANT: "int8"}, 110.0), ({Knob.CONTEXT: 1024}, 110.0), ({Knob.VARIANT: "int4"}, 160)],
)
def test_nothing_else_is_refused(knobs: dict[Knob, str | int | float], at_s: float) -> None:
    refuse_broken(BROKEN, knobs, at_s)


def test_a_pin_says_what_it_waits_for_as_long_as_it_stands() -> None:
    state = State(
        quarantine=BROKEN.quarantine, pin=Pin({Knob.VARIANT: "int4"}, until_s=150.0, by="uid 0")
    )

    assert pin_waits(state, 110.0) == (
        "it may be tried again in 50 s, since it failed (model.onnx is truncated)"
    )
    assert pin_waits(state, 150.0) == ""
    assert pin_waits(BROKEN, 110.0) == ""


# ---------------------------------------------------------------- the whole daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RealDaemon]:
    shutil.copytree(TINY, tmp_path / "models" / "tiny")
    made = RealDaemon(tmp_path, models=tmp_path / "models").start()
    yield made
    made.end()


def break_off(daemon: RealDaemon, variant: str) -> None:
    """Half of the variant's graphs is gone since the daemon looked."""
    for graph in (daemon.folder / "models" / "tiny" / variant).glob("*.onnx"):
        os.truncate(graph, graph.stat().st_size // 2)


def waiting(daemon: RealDaemon) -> dict[str, Any]:
    """The status once the pin is known to wait."""
    until_s = time.monotonic() + 30
    while not (status := daemon.status())["pin_waits"]:
        assert time.monotonic() < until_s, status
        time.sleep(0.05)
    return status


def test_a_broken_variant_that_is_pinned_takes_nothing_away_and_is_refused_from_then_on(
    daemon: RealDaemon,
) -> None:
    before = daemon.status()
    break_off(daemon, "int4")
    first = daemon.command("pin", "variant=int4")
    status = waiting(daemon)
    people = daemon.command("status")
    second = daemon.command("pin", "variant=int4")
    after = daemon.status()

    assert first.returncode == 0
    assert status["pin_waits"].startswith("it may be tried again in ")
    assert "tried again in" in people.stdout
    assert second.returncode == 1
    assert "int4 can't be pinned now, since it failed" in second.stderr
    assert "fp32 serves on" in second.stderr
    assert "models verify" in second.stderr
    assert after["state"] == "ready"
    assert after["workers"][0]["pid"] == before["workers"][0]["pid"]
    assert after["pinned"] == {"variant": "int4"}
