"""A draft comes and goes in the worker that serves, whatever comes in between."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rig import Answer, Rig, running
from test_continuity import TALK
from test_lost_drafts import DRAFTING, with_damaged_int4

from trimtab.domain.actions import Action, HandoverMode, SetSpeculation, SwitchWorker
from trimtab.domain.events import ActionEnded, Event
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Reading
from trimtab.runtime import dispatch
from trimtab.runtime.dispatch import Dispatcher
from trimtab.serving.requests import StreamHandle
from trimtab.workers.worker import Worker


def at(model: ModelSpec, folder: Path) -> ModelSpec:
    """The model, with int4 in another folder."""
    variants = [
        replace(one, folder=str(folder)) if one.name == "int4" else one for one in model.variants
    ]
    return replace(model, variants=tuple(variants))


@pytest.fixture
def waiting(tiny: ModelSpec, tmp_path: Path) -> ModelSpec:
    """The model, where int4 doesn't load until somebody writes its configuration."""
    folder = tmp_path / "int4"
    shutil.copytree(next(one.folder for one in tiny.variants if one.name == "int4"), folder)
    (folder / "genai_config.json").unlink()
    os.mkfifo(folder / "genai_config.json")
    return at(tiny, folder)


class Hands:
    """Carries out what a test says on a real daemon, whose planner has no say."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.dispatcher = rig.daemon.dispatcher
        self.ended: list[ActionEnded] = []

    def execute(self, *actions: Action) -> None:
        Dispatcher.execute(self.dispatcher, actions)

    async def drafts(self, speculation: str) -> None:
        """Have another mode."""
        self.execute(SetSpeculation(10**6, speculation))
        await self.dispatcher.finished()

    @property
    def worker(self) -> Worker:
        worker = self.rig.daemon.streams.active
        assert worker is not None
        return worker

    def note(self, event: Event) -> None:
        if isinstance(event, ActionEnded):
            self.ended.append(event)


@asynccontextmanager
async def by_hand(
    model: ModelSpec, monkeypatch: pytest.MonkeyPatch, decoder: str = "kv"
) -> AsyncIterator[Hands]:
    """fp32 serves without a draft."""
    async with running(model, decoder=decoder) as rig:
        hands = Hands(rig)
        await rig.serves("fp32")
        post: Callable[[Event], None] = hands.dispatcher._post
        monkeypatch.setattr(hands.dispatcher, "execute", lambda _: None)
        monkeypatch.setattr(
            hands.dispatcher, "_post", lambda event: (hands.note(event), post(event))
        )
        yield hands


async def while_int4_loads(hands: Hands) -> tuple[StreamHandle, Answer]:
    """An answer that goes on while the draft is ordered and waits for its configuration."""
    stream = await hands.rig.ask(TALK)
    answer = await hands.rig.read(stream, tokens=20)
    hands.execute(SetSpeculation(10**6, "draft:int4"))
    await hands.rig.read(stream, answer, tokens=40)
    return stream, answer


async def test_a_draft_comes_and_goes_in_one_worker_while_it_answers(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with by_hand(tiny, monkeypatch) as hands:
        whole = await hands.rig.read(await hands.rig.ask(TALK, max_tokens=1000))
        worker, points = hands.worker, list[str]()
        stream = await hands.rig.ask(TALK, max_tokens=1000)
        answer = await hands.rig.read(stream, tokens=50)
        for mode, tokens in (("draft:int4", 500), ("ngram", 700), ("draft:int4", 900)):
            await hands.drafts(mode)
            points.append(f"{hands.dispatcher.point.speculation} {worker.draft is not None}")
            await hands.rig.read(stream, answer, tokens=tokens)
        await hands.rig.read(stream, answer)

        assert points == ["draft:int4 True", "ngram False", "draft:int4 True"]
        assert answer.tokens == whole.tokens
        assert hands.rig.daemon.supervisor.workers == (worker,)
        assert [one.kind for one in hands.ended] == ["done"] * 3
        assert [one.point for one in hands.ended][-1].speculation == "draft:int4"


async def test_a_damaged_draft_is_left_out_and_told(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with by_hand(with_damaged_int4(tiny, tmp_path), monkeypatch) as hands:
        await hands.drafts("draft:int4")
        told = dict(hands.rig.log.lines)["draft_failed"]
        (end,) = hands.ended

        assert (end.kind, end.point.speculation) == ("done", "ngram")
        assert "without its draft int4" in end.reason
        assert "the engine refuses the variant" in end.reason
        assert "int4" in hands.rig.daemon.controller.state.drafts_out
        assert (told["variant"], told["draft"]) == ("fp32", "int4")
        assert hands.worker.draft is None
        assert hands.worker.draft_lost == told["reason"]


async def test_a_worker_that_dies_while_its_draft_loads_comes_back_without_it(
    waiting: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with by_hand(waiting, monkeypatch) as hands:
        stream, answer = await while_int4_loads(hands)
        monkeypatch.setattr(hands.dispatcher, "execute", lambda actions: hands.execute(*actions))
        hands.rig.kill_worker()
        await hands.rig.read(stream, answer)

        assert len(answer.tokens) == 200
        assert (hands.ended[0].kind, hands.ended[0].reason) == (
            "failed",
            "the worker died while it loaded int4 to draft",
        )
        assert "int4" in hands.rig.daemon.controller.state.drafts_out
        assert not hands.rig.daemon.controller.state.quarantine
        assert hands.rig.variant == "fp32"


async def test_a_switch_that_comes_while_a_draft_loads_is_made(
    waiting: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with by_hand(waiting, monkeypatch) as hands:
        stream, answer = await while_int4_loads(hands)
        point = replace(hands.dispatcher.point, variant="int8")
        hands.execute(SwitchWorker(10**6 + 1, point, HandoverMode.MAKE_BEFORE_BREAK))
        await hands.dispatcher.finished()
        await hands.rig.read(stream, answer)

        assert [one.kind for one in hands.ended] == ["superseded", "done"]
        assert hands.rig.variant == "int8"
        assert len(answer.tokens) == 200
        assert len(hands.rig.daemon.supervisor.workers) == 1
        assert not hands.rig.daemon.controller.state.drafts_out


async def test_a_draft_that_is_given_up_while_it_loads_can_be_had_later(
    waiting: ModelSpec, tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with by_hand(waiting, monkeypatch) as hands:
        worker = hands.worker
        hands.execute(SetSpeculation(10**6, "draft:int4"))
        await hands.rig.read(await hands.rig.ask(TALK))
        await hands.drafts("ngram")
        given_up = worker.draft, hands.dispatcher.point.speculation
        fifo = Path(next(one.folder for one in waiting.variants if one.name == "int4"))
        whole = Path(next(one.folder for one in tiny.variants if one.name == "int4"))
        text = (whole / "genai_config.json").read_bytes()
        (fifo / "genai_config.json").write_bytes(text)
        hands.dispatcher.configure(tiny)
        await hands.drafts("draft:int4")

        assert given_up == (None, "ngram")
        assert [one.kind for one in hands.ended] == ["superseded", "done", "done"]
        assert hands.dispatcher.point.speculation == "draft:int4"
        assert worker.draft is not None
        assert hands.rig.daemon.supervisor.workers == (worker,)


async def test_a_draft_that_takes_too_long_is_left_out_and_nothing_waits_for_it(
    waiting: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "draft_timeout_s", lambda _: 0.3)
    async with by_hand(waiting, monkeypatch) as hands:
        await hands.drafts("draft:int4")
        (end,) = hands.ended

        assert end.reason == "without its draft int4: it did not load within 0 s"
        assert hands.rig.daemon.controller.state.drafts_out["int4"].reason in end.reason
        assert len((await hands.rig.read(await hands.rig.ask(TALK))).tokens) == 200


async def test_a_generator_that_was_asked_for_makes_room_for_a_worker_that_can_draft(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with by_hand(tiny, monkeypatch, "generator") as hands:
        before = hands.worker
        await hands.drafts("draft:int4")

        assert hands.worker is not before
        assert hands.worker.draft is not None
        assert hands.dispatcher.point.speculation == "draft:int4"
        assert len(hands.rig.daemon.supervisor.workers) == 1


def squeeze(rig: Rig, monkeypatch: pytest.MonkeyPatch, available_bytes: int) -> None:
    """So much memory is available, and what a draft holds more once it has gone."""
    (draft,) = [one for one in rig.model.variants if one.name == "int4"]

    def seen(at_s: float) -> Reading:
        worker = rig.daemon.streams.active
        back = 0 if worker is None or worker.draft is not None else draft.weights_bytes
        return Reading("memory.available", float(available_bytes + back), at_s)

    monkeypatch.setattr(rig.sensors, "memory_available", seen)


async def test_memory_that_runs_short_takes_the_draft_and_not_the_worker(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tiny, DRAFTING) as rig:
        await rig.serves("fp32")
        began, pid = rig.daemon.dispatcher.point.speculation, rig.worker_pid
        stream = await rig.ask(TALK)
        answer = await rig.read(stream, tokens=20)
        limit = DRAFTING.memory
        assert limit is not None
        squeeze(rig, monkeypatch, limit.headroom_bytes - 64 * 1024)
        await rig.until(lambda: rig.daemon.dispatcher.point.speculation != began)
        same = rig.worker_pid == pid
        await rig.read(stream, answer)

        assert began == "draft:int4"
        assert same
        assert len(answer.tokens) == 200
