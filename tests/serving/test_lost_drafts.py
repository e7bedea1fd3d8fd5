"""Drafts that can't be had: the target serves all the same, and everybody is told."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rig import Rig, running
from test_continuity import TALK

from policies_for_tests import policy
from trimtab.domain.actions import HandoverMode, SwitchWorker
from trimtab.domain.events import ActionEnded
from trimtab.domain.models import ModelSpec
from trimtab.runtime.dispatch import Dispatcher
from trimtab.workers import supervisor
from trimtab.workers.protocol import DraftLost
from trimtab.workers.supervisor import Supervisor
from trimtab.workers.worker import Launch, Worker

DRAFTING = policy(knobs=replace(policy().knobs, speculation=("off", "ngram", "draft:int4")))


def with_damaged_int4(tiny: ModelSpec, folder: Path) -> ModelSpec:
    """The model, where no graph of int4 is one."""
    copy = folder / "int4"
    shutil.copytree(next(one.folder for one in tiny.variants if one.name == "int4"), copy)
    for path in copy.glob("*.onnx"):
        path.write_bytes(b"\xff" * 1000)
    variants = [
        replace(one, folder=str(copy)) if one.name == "int4" else one for one in tiny.variants
    ]
    return replace(tiny, variants=tuple(variants))


async def serves_without_draft(rig: Rig) -> None:
    answer = await rig.read(await rig.ask(TALK))

    assert len(answer.tokens) == 200
    assert (rig.variant, rig.daemon.dispatcher.point.speculation) == ("fp32", "ngram")
    assert not rig.daemon.controller.state.quarantine
    assert "int4" in rig.daemon.controller.state.drafts_out


async def test_a_damaged_draft_takes_nobody_out(tiny: ModelSpec, tmp_path: Path) -> None:
    async with running(with_damaged_int4(tiny, tmp_path), DRAFTING) as rig:
        await serves_without_draft(rig)
        told = dict(rig.log.lines)["draft_failed"]
        (worker,) = rig.daemon.supervisor.workers

        assert (told["variant"], told["draft"]) == ("fp32", "int4")
        assert "the engine refuses the variant" in told["reason"]
        assert worker.draft is None
        assert worker.draft_lost == told["reason"]
        assert rig.daemon.supervisor.losses == 0


async def loads_and_gets(rig: Rig, number: signal.Signals) -> Worker:
    """The first worker, which has got a signal while it loads; another one serves by now."""
    await rig.until(lambda: bool(rig.daemon.supervisor.workers))
    (worker,) = rig.daemon.supervisor.workers
    os.kill(worker.pid or 0, number)
    await rig.until(lambda: rig.daemon.streams.active is not None)
    return worker


async def test_a_worker_that_dies_while_its_draft_loads_is_tried_without_it(
    tiny: ModelSpec,
) -> None:
    rig = Rig(tiny, DRAFTING, "kv")
    rig.daemon.start(tiny)
    try:
        await loads_and_gets(rig, signal.SIGKILL)
        await serves_without_draft(rig)
        failed = rig.records.outcomes[0].outcome
    finally:
        await rig.daemon.stop()

    assert failed is not None
    assert failed.kind == "failed"
    assert failed.reason.endswith("it is tried again without its draft int4")


async def test_a_draft_that_fails_while_it_serves_is_out_and_its_worker_stays(
    tiny: ModelSpec,
) -> None:
    async with running(tiny, DRAFTING) as rig:
        began = rig.daemon.dispatcher.point.speculation
        (worker,) = rig.daemon.supervisor.workers
        rig.daemon.supervisor.worker_said(worker, DraftLost("its logits are no numbers"))
        await serves_without_draft(rig)

        assert began == "draft:int4"
        assert rig.daemon.supervisor.workers == (worker,)
        assert worker.draft_lost == "its logits are no numbers"


async def test_a_draft_that_hangs_while_it_loads_is_tried_without_before_the_target_is_blamed(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def soon(launch: Launch, measured_s: float | None) -> float:
        return 1.0 if launch.draft is not None else 60.0

    monkeypatch.setattr(supervisor, "load_timeout_s", soon)
    rig = Rig(tiny, DRAFTING, "kv")
    rig.daemon.start(tiny)
    try:
        worker = await loads_and_gets(rig, signal.SIGSTOP)
        await serves_without_draft(rig)
        failed = rig.records.outcomes[0].outcome
        told = rig.daemon.controller.state.drafts_out["int4"].reason
    finally:
        await rig.daemon.stop()

    assert not worker.alive
    assert told == "variant fp32 did not load within 1 s"
    assert failed is not None
    assert failed.reason.endswith("it is tried again without its draft int4")


async def switch(dispatcher: Dispatcher, variant: str, speculation: str) -> None:
    """Have it as the planner would; nothing is loaded where that is there."""
    point = replace(dispatcher.point, variant=variant, speculation=speculation)
    Dispatcher.execute(dispatcher, [SwitchWorker(10**6, point, HandoverMode.MAKE_BEFORE_BREAK)])
    await dispatcher.finished()


async def test_how_long_a_load_took_counts_for_the_same_draft_and_is_least_with_one(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[float | None] = []
    took: list[float] = []
    load = Supervisor.load

    async def noted(self: Supervisor, worker: Worker, measured_s: float | None) -> None:
        await load(self, worker, measured_s)
        assert worker.ready is not None
        known.append(measured_s)
        took.append(worker.ready.load_s)

    monkeypatch.setattr(Supervisor, "load", noted)
    async with running(tiny, DRAFTING, "kv") as rig:
        dispatcher = rig.daemon.dispatcher
        monkeypatch.setattr(dispatcher, "execute", lambda _: None)  # the planner has no say
        await dispatcher.finished()
        for variant, speculation in (
            ("fp32", "ngram"),
            ("fp32", "draft:int4"),
            ("int8", "ngram"),
            ("int8", "draft:int4"),
            ("int8", "ngram"),
        ):
            await switch(dispatcher, variant, speculation)

    with_draft_s, int8_s = took[0], took[3]
    assert known == [None, None, with_draft_s, None, int8_s, int8_s]


async def test_a_switch_that_wanted_no_draft_lacks_none(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, DRAFTING) as rig:
        dispatcher, ended = rig.daemon.dispatcher, list[str]()
        (worker,) = rig.daemon.supervisor.workers
        rig.daemon.supervisor.worker_said(worker, DraftLost("its logits are no numbers"))
        monkeypatch.setattr(dispatcher, "execute", lambda _: None)
        monkeypatch.setattr(
            dispatcher,
            "_post",
            lambda event: isinstance(event, ActionEnded) and ended.append(event.reason),
        )
        await dispatcher.finished()
        ended.clear()
        await switch(dispatcher, "fp32", "ngram")

    assert ended == [""]
