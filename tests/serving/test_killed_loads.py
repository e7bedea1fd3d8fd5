"""Loads that come to nothing while a stream is held and there is only one variant: it goes on.

Real workers, killed or stopped while they load; on fp32, whose tokens hang on nothing else.
"""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rig import Answer, Rig, running
from test_continuity import SLOW, TALK
from test_crashes import ask, unbroken

from trimtab.domain.decisions import Decision
from trimtab.domain.models import ModelSpec
from trimtab.serving.stream import Stream
from trimtab.workers import supervisor
from trimtab.workers.worker import Worker, WorkerState

ONE = replace(SLOW, knobs=replace(SLOW.knobs, variants=("fp32",)))


async def begun(rig: Rig) -> tuple[Stream, Answer]:
    """A stream with some tokens."""
    stream = await ask(rig, TALK)
    return stream, await rig.read(stream, tokens=30)


async def loading(rig: Rig, but: Worker | None = None) -> Worker:
    """A worker that is about to load."""

    def found() -> list[Worker]:
        workers = rig.daemon.supervisor.workers
        return [one for one in workers if one.state is WorkerState.STARTING and one is not but]

    await rig.until(lambda: bool(found()))
    return found()[0]


def failures(rig: Rig) -> list[Decision]:
    made = [one for one in rig.records.outcomes if one.outcome is not None]
    return [one for one in made if one.outcome is not None and one.outcome.kind == "failed"]


@pytest.mark.parametrize("times", [1, 2])
async def test_a_held_stream_outlives_workers_that_are_killed_while_they_load_for_it(
    tiny: ModelSpec, times: int
) -> None:
    expected = await unbroken(tiny)
    async with running(tiny, ONE) as rig:
        stream, answer = await begun(rig)
        rig.kill_worker()
        worker = None
        for _ in range(times):
            worker = await loading(rig, but=worker)
            os.kill(worker.pid or 0, signal.SIGKILL)
        await rig.read(stream, answer)

        assert len(failures(rig)) == times
        assert rig.daemon.controller.state.quarantine == {}
        assert stream.disclosure.variants == ("fp32",)
        assert stream.disclosure.resumed == 1
        assert answer.tokens == expected


async def test_a_held_stream_outlives_a_load_that_comes_too_late(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await unbroken(tiny)
    async with running(tiny, ONE) as rig:
        stream, answer = await begun(rig)
        monkeypatch.setattr(supervisor, "load_timeout_s", lambda *_: 3.0)
        rig.kill_worker()
        worker = await loading(rig)
        os.kill(worker.pid or 0, signal.SIGSTOP)
        await rig.read(stream, answer)

        assert "did not load within 3 s" in str(failures(rig)[0].outcome)
        assert rig.daemon.controller.state.quarantine == {}
        assert answer.tokens == expected


async def test_a_held_stream_outlives_the_quarantine_of_files_that_could_not_be_read_for_a_while(
    tiny: ModelSpec, tmp_path: Path
) -> None:
    expected = await unbroken(tiny)
    fp32 = tiny.variants[0]
    shutil.copytree(fp32.folder, folder := tmp_path / "fp32")
    model = replace(tiny, variants=(replace(fp32, folder=str(folder)),))
    soon = replace(ONE, handover=replace(ONE.handover, hold_max_s=12.0))
    async with running(model, soon) as rig:
        stream, answer = await begun(rig)
        folder.rename(tmp_path / "away")
        rig.kill_worker()
        await rig.until(lambda: "fp32" in rig.daemon.controller.state.quarantine)
        (tmp_path / "away").rename(folder)
        await rig.read(stream, answer)
        started = rig.records.made[-1]

        assert "fp32 is tried in spite of its quarantine" in started.trigger.text
        assert stream.disclosure.resumed == 1
        assert answer.tokens == expected
