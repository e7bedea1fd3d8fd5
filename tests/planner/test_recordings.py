"""What the core took in and decided, written to a file and run again."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from planner_world import MIB, World

from policies_for_tests import policy
from trimtab.domain.decisions import Direction
from trimtab.domain.events import (
    Event,
    PausedSet,
    PinCleared,
    PinSet,
    PolicyChanged,
    RequestArrived,
    RequestEnded,
    RequestProgress,
    WorkerLost,
)
from trimtab.domain.knobs import PARKED, Knob
from trimtab.domain.scheduling import Objective
from trimtab.errors import StateError
from trimtab.policy.compiled import MemoryLimit, Policy
from trimtab.runtime.recorder import Recorder
from trimtab.telemetry.recording import (
    RecordingWriter,
    event_line,
    read_recording,
    rerun,
    start_line,
)
from trimtab.telemetry.values import from_plain, to_plain


@dataclass
class RecordedWorld(World):
    """A world whose core is followed by a recorder."""

    recorder: Recorder = field(default_factory=Recorder)

    def post(self, event: Event) -> None:
        made = len(self.decisions)
        before = self.policy
        super().post(event)
        if self.recorder.active:
            new = self.decisions[made:]
            self.recorder.took(event, before, new[0] if new else None)


async def until(lines: AsyncIterator[dict[str, Any]], last: dict[str, Any]) -> list[dict[str, Any]]:
    taken = [await anext(lines)]
    while taken[-1] != last:
        taken.append(await anext(lines))
    return taken


async def live(world: RecordedWorld) -> list[dict[str, Any]]:
    """A day with pressure, heat, a pin, a lost worker and another policy, as lines."""
    lines = world.recorder.follow(world.state, world.policy, 1.7e9)
    first = [await anext(lines)]
    world.run(30)
    world.free_bytes = 700 * MIB
    world.run(30)
    world.free_bytes = 8192 * MIB
    world.celsius = 90.0
    world.run(120)
    world.celsius = 50.0
    world.post(PinSet(world.now, ((Knob.CONTEXT, 1024),), None, "me"))
    world.run(40)
    world.post(PinCleared(world.now, "me"))
    patient, hurried = Objective(1e6, 1e6, 1.0), Objective(0.001, 0.002, 0.0)
    world.post(RequestArrived(world.now, 0, 1_000_000, 64, 1.0, patient))
    world.post(RequestArrived(world.now, 1, 100, 64, 1.0, hurried))  # it is refused
    world.post(RequestProgress(world.now, 0, 10, 0, 0.5))
    world.run(1)
    world.post(RequestEnded(world.now, 0, 20, 0.1, 2.0, together=2.0))
    world.policy = replace(
        world.policy, revision="000000000002", memory=MemoryLimit(900 * MIB, 1200 * MIB)
    )
    world.post(PolicyChanged(world.now, world.policy.revision))
    world.run(60)
    world.loaded = PARKED
    world.post(WorkerLost(world.now, world.point.variant or "", "killed"))
    world.run(60)
    last = PausedSet(world.now, paused=False, by="the end")
    world.post(last)
    return first + await until(lines, event_line(last))


@pytest.fixture
def world() -> RecordedWorld:
    world = RecordedWorld(policy())
    world.start()
    return world


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    with RecordingWriter(path) as writer:
        for line in lines:
            writer.write(line)
    return path


def recorded(world: RecordedWorld, path: Path) -> Path:
    return write(path, asyncio.run(live(world)))


def test_a_recording_that_began_in_the_middle_gives_the_same_decisions_again(
    world: RecordedWorld, tmp_path: Path
) -> None:
    before = len(world.decisions)

    again = rerun(read_recording(recorded(world, tmp_path / "day.gz")))

    assert len(again.decisions) >= 4
    assert Direction.SHED in {decision.direction for decision in again.decisions}
    assert list(again.decisions) == world.decisions[before:]
    assert again.differences == ()
    assert again.state == world.state


def test_another_policy_on_the_same_events_shows_where_it_decides_otherwise(
    world: RecordedWorld, tmp_path: Path
) -> None:
    recording = read_recording(recorded(world, tmp_path / "day.gz"))
    wide = replace(policy(), memory=MemoryLimit(1 * MIB, 2 * MIB))

    again = rerun(recording, wide)

    assert again.differences != ()
    assert any(one.recorded is not None and one.again is None for one in again.differences)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_recording_that_was_cut_off_is_read_up_to_the_cut(
    world: RecordedWorld, tmp_path: Path, share: float
) -> None:
    whole = recorded(world, tmp_path / "day.gz")
    part = tmp_path / "part.gz"
    data = whole.read_bytes()
    part.write_bytes(data[: int(len(data) * share)])

    recording = read_recording(part)

    assert recording.cut
    assert 0 < len(recording.entries) < len(read_recording(whole).entries) + 1
    assert rerun(recording).differences == ()


def test_lines_are_in_the_file_as_soon_as_they_are_written(
    world: RecordedWorld, tmp_path: Path
) -> None:
    writer = RecordingWriter(tmp_path / "live.gz")
    writer.write(start_line(world.state, world.policy, "0", 0.0))
    writer.write(event_line(PinCleared(1.0, "me")))

    recording = read_recording(tmp_path / "live.gz")
    writer.__exit__(None, None, None)

    assert [entry.event for entry in recording.entries] == [PinCleared(1.0, "me")]
    assert recording.cut


def test_a_recording_without_a_line_leaves_no_file(tmp_path: Path) -> None:
    write(tmp_path / "empty.gz", [])

    assert not (tmp_path / "empty.gz").exists()


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.write_text("mine")

    with pytest.raises(StateError, match="File exists"):
        RecordingWriter(file)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain text\n", "is no recording"),
        (gzip.compress(b'{"kind": "event"}\n'), "is no recording"),
        (gzip.compress(b""), "is no recording"),
        (gzip.compress(b"not json\n"), "is no recording"),
        (
            gzip.compress(b'{"kind": "start", "v": 99, "trimtab": "9.9"}\n'),
            "trimtab 9.9 in a newer",
        ),
        (
            gzip.compress(
                b'{"kind":"start","v":1,"trimtab":"0","wall_s":0,"state":{"@":"os.system"},'
                b'"policy":null}\n'
            ),
            "can't be read",
        ),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "bad.gz"
    file.write_bytes(content)

    with pytest.raises(StateError, match=message):
        read_recording(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="No such file"):
        read_recording(tmp_path / "none.gz")


def test_a_follower_that_does_not_read_is_let_go(world: RecordedWorld) -> None:
    async def overrun() -> int:
        lines = world.recorder.follow(world.state, world.policy, 0.0)
        await anext(lines)
        for _ in range(5000):
            world.recorder.took(PinCleared(1.0, "me"), world.policy, None)
        return sum([1 async for _ in lines])

    read = asyncio.run(overrun())

    assert read == 1999
    assert not world.recorder.active


def test_a_value_that_is_not_the_cores_is_no_part_of_a_recording() -> None:
    with pytest.raises(TypeError, match="Path is no value"):
        to_plain(Path("/etc"))


@pytest.mark.parametrize("value", [1e308, float("inf"), -0.0, 3, "x", None, True, (), (1, (2.5,))])
def test_plain_values_come_back_as_they_were(value: object) -> None:
    assert from_plain(to_plain(value)) == value


def test_the_whole_policy_comes_back_as_it_was(world: RecordedWorld) -> None:
    again: Policy = from_plain(to_plain(world.policy))

    assert again == world.policy


def test_means_that_rest_are_in_a_recording_and_come_back_the_same() -> None:
    world = World(policy=policy(), celsius=79.9).start().run(60)
    world.celsius = 80.1
    world.run(36)

    again = from_plain(json.loads(json.dumps(to_plain(world.state))))

    assert world.state.distrust
    assert world.state.heat.tried
    assert again == world.state
