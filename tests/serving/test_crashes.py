"""Workers killed at the worst moments: every answer is, token for token, what it would have been.

All of it on fp32, where the tokens of a stream depend on nothing but its own.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rig import Rig, running
from test_continuity import DECODERS, SLOW, TALK

from policies_for_tests import policy
from trimtab.domain.actions import HandoverMode, SwitchWorker
from trimtab.domain.models import ModelSpec
from trimtab.serving.stream import Stream
from trimtab.serving.streams import Streams
from trimtab.workers.protocol import Finished, FromWorker
from trimtab.workers.worker import Worker

TOKENS = 400
DRAFTING = policy(knobs=replace(SLOW.knobs, speculation=("off", "draft:int4")))


def kill(worker: Worker) -> None:
    os.kill(worker.pid or 0, signal.SIGKILL)


async def ask(rig: Rig, text: str = TALK, tokens: int = TOKENS) -> Stream:
    stream = await rig.ask(text, max_tokens=tokens)
    assert isinstance(stream, Stream)
    return stream


async def unbroken(tiny: ModelSpec, decoder: str = "kv", text: str = TALK) -> list[int]:
    """What fp32 says if nothing happens."""
    async with running(tiny, decoder=decoder) as rig:
        answer = await rig.read(await ask(rig, text))
        return answer.tokens


@dataclass
class Ends:
    """What workers say at the ends of streams."""

    drafted: int = 0


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    seen, said = Ends(), Streams.said

    def spy(streams: Streams, worker: Worker, message: FromWorker) -> None:
        if isinstance(message, Finished):
            seen.drafted += message.drafted
        said(streams, worker, message)

    monkeypatch.setattr(Streams, "said", spy)
    return seen


async def test_a_worker_that_is_killed_while_it_drafts_loses_and_doubles_nothing(
    tiny: ModelSpec, ends: Ends
) -> None:
    expected = await unbroken(tiny)
    async with running(tiny, DRAFTING) as rig:
        mode = rig.daemon.dispatcher.point.speculation
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=30)
        for upto in (100, 200, 10**9):
            rig.kill_worker()
            await rig.read(stream, answer, upto)

        assert mode == "draft:int4"
        assert ends.drafted > 0
        assert stream.disclosure.variants == ("fp32",)
        assert stream.disclosure.resumed == 3
        assert answer.tokens == expected


@pytest.mark.parametrize("decoder", DECODERS)
async def test_a_worker_that_is_killed_in_the_middle_of_a_prefill_loses_nothing(
    tiny: ModelSpec, decoder: str
) -> None:
    long = TALK * 25
    expected = await unbroken(tiny, decoder, long)
    async with running(tiny, SLOW, decoder) as rig:
        stream = await ask(rig, long)
        await rig.until(lambda: stream.spent.cached > 0)
        read, begun = stream.spent.cached, bool(stream.generated)
        rig.kill_worker()
        answer = await rig.read(stream)

        assert 0 < read < len(stream.prompt)
        assert not begun
        assert stream.disclosure.resumed == 1
        assert answer.tokens == expected


@pytest.mark.slow
async def test_a_variant_that_dies_of_each_stream_is_left_out_and_the_next_one_goes_on(
    tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = Streams.attach

    def deadly(streams: Streams, worker: Worker) -> None:
        attach(streams, worker)
        if worker.variant.name == "fp32":
            kill(worker)

    async with running(tiny, SLOW) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=30)
        monkeypatch.setattr(Streams, "attach", deadly)
        rig.kill_worker()
        await rig.read(stream, answer)

        assert stream.disclosure.variants == ("fp32", "int8")
        assert len(answer.tokens) == TOKENS


# ---------------------------------------------------------------- hand-overs


def switch(rig: Rig, mode: HandoverMode) -> None:
    """Have another worker go on, with a draft that changes no token."""
    point = replace(rig.daemon.dispatcher.point, speculation="draft:int4")
    rig.daemon.dispatcher.execute([SwitchWorker(10**6, point, mode)])


def on_release(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    """The old worker dies when it has been told to hand its streams back."""
    release = Streams.release

    def deadly(streams: Streams, worker: Worker) -> None:
        release(streams, worker)
        kill(worker)

    monkeypatch.setattr(Streams, "release", deadly)


def on_attach(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    """The new worker dies when it has just been given the streams."""
    attach = Streams.attach

    def deadly(streams: Streams, worker: Worker) -> None:
        attach(streams, worker)
        kill(worker)
        monkeypatch.setattr(Streams, "attach", attach)

    monkeypatch.setattr(Streams, "attach", deadly)


def on_load(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    """The old worker dies while the new one loads."""
    load = rig.daemon.supervisor.load
    old = rig.daemon.streams.active

    async def deadly(worker: Worker, measured_s: float | None) -> None:
        if old is not None and old.alive:
            kill(old)
        await load(worker, measured_s)

    monkeypatch.setattr(rig.daemon.supervisor, "load", deadly)


@pytest.mark.parametrize("mode", list(HandoverMode))
@pytest.mark.parametrize("moment", [on_release, on_attach, on_load])
async def test_a_worker_that_is_killed_during_a_hand_over_loses_nothing(
    tiny: ModelSpec,
    monkeypatch: pytest.MonkeyPatch,
    moment: Callable[[pytest.MonkeyPatch, Rig], None],
    mode: HandoverMode,
) -> None:
    expected = await unbroken(tiny)
    async with running(tiny, SLOW) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=20)
        first = rig.worker_pid
        moment(monkeypatch, rig)
        switch(rig, mode)
        await rig.read(stream, answer)
        held = rig.daemon.pool.ledger().leased

        assert stream.disclosure.variants == ("fp32",)
        assert rig.worker_pid != first
        assert answer.tokens == expected
        assert held == 0


# ---------------------------------------------------------------- loads


def with_a_broken_int4(tiny: ModelSpec, folder: Path) -> ModelSpec:
    """Its graph breaks off in the middle."""
    fp32, int8, int4 = tiny.variants
    shutil.copytree(int4.folder, folder)
    graph = folder / "model.onnx"
    os.truncate(graph, graph.stat().st_size // 2)
    return replace(tiny, variants=(fp32, int8, replace(int4, folder=str(folder))))


async def test_a_variant_that_does_not_load_in_mid_stream_costs_the_stream_nothing(
    tiny: ModelSpec, tmp_path: Path
) -> None:
    expected = await unbroken(tiny)
    async with running(with_a_broken_int4(tiny, tmp_path / "int4"), SLOW) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=20)
        first = rig.worker_pid
        point = replace(rig.daemon.dispatcher.point, variant="int4")
        rig.daemon.dispatcher.execute([SwitchWorker(10**6, point, HandoverMode.MAKE_BEFORE_BREAK)])
        await rig.daemon.dispatcher.finished()
        still = rig.worker_pid
        await rig.read(stream, answer)

        assert still == first
        assert stream.disclosure.resumed == 0
        assert answer.tokens == expected


async def test_a_pinned_variant_that_does_not_load_leaves_the_serving_one_and_its_streams_alone(
    tiny: ModelSpec, tmp_path: Path
) -> None:
    expected = await unbroken(tiny)
    async with running(with_a_broken_int4(tiny, tmp_path / "int4"), SLOW) as rig:
        stream = await ask(rig)
        answer = await rig.read(stream, tokens=20)
        first = rig.worker_pid
        rig.pin("int4")
        await rig.until(lambda: "int4" in rig.daemon.controller.state.quarantine)
        await rig.read(stream, answer)

        assert rig.worker_pid == first
        assert stream.disclosure.variants == ("fp32",)
        assert stream.disclosure.resumed == 0
        assert answer.tokens == expected
