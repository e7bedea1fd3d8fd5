from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from trimtab.domain.models import ModelSpec
from trimtab.errors import PolicyError
from trimtab.policy.compiled import Policy, ScheduleEntry
from trimtab.policy.schedule import entry_in_force, next_change_s
from trimtab.runtime import policy_watch
from trimtab.runtime.inotify import Happened, Inotify, folders_of, open_inotify
from trimtab.runtime.policy_watch import PolicyWatch

SOUND = "version: 1\nname: {name}\nprotect: [latency, memory]\nfloor: {{context: {context}}}\n"
BAD = "version: 1\nname: mine\nprotect: [latency, memory, accuracy]\n"


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = error = info


@dataclass
class WallClock:
    """Real time to wait with, and a wall clock that is set by hand."""

    wall: float = 0.0

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return self.wall

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class Daemon:
    """Remembers which policies were put in force."""

    policies: list[Policy] = field(default_factory=list)

    def put_in_force(self, policy: Policy) -> None:
        self.policies.append(policy)


@dataclass
class Stubborn:
    """A daemon that fails the first time."""

    behind: Daemon
    failed: bool = False

    def put_in_force(self, policy: Policy) -> None:
        if not self.failed:
            self.failed = True
            raise RuntimeError("not now")
        self.behind.put_in_force(policy)


@dataclass
class Place:
    """A policy folder with a watch over it."""

    folder: Path
    state: Path
    clock: WallClock = field(default_factory=WallClock)
    daemon: Daemon = field(default_factory=Daemon)
    log: Log = field(default_factory=Log)

    def write(self, text: str, name: str = "mine") -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(text)
        return path

    def sound(self, context: int = 1024, name: str = "mine") -> str:
        return SOUND.format(name=name, context=context)

    def watch(
        self, name: str = "mine", notify: Callable[[], Inotify | None] = open_inotify
    ) -> PolicyWatch:
        made = PolicyWatch(name, self.folder, self.state, self.log, self.clock, notify)
        made.connect(self.daemon)
        return made

    @property
    def contexts(self) -> list[int]:
        return [policy.floor.context for policy in self.daemon.policies]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder, state = tmp_path / "policies", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    return Place(folder, state)


@contextlib.asynccontextmanager
async def running(watch: PolicyWatch, model: ModelSpec | None = None) -> AsyncIterator[None]:
    """The watch at work."""
    watch.load(model)
    task = asyncio.get_running_loop().create_task(watch.run())
    await asyncio.sleep(0.1)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something holds; generous, since other things run on the machine too."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it never came to hold"
        await asyncio.sleep(0.005)


NOTIFY = pytest.mark.parametrize("notify", [open_inotify, lambda: None], ids=["inotify", "polling"])


@NOTIFY
async def test_a_changed_file_comes_in_force(
    place: Place, notify: Callable[[], Inotify | None]
) -> None:
    place.write(place.sound())
    watch = place.watch(notify=notify)

    async with running(watch):
        place.write(place.sound(2048))
        await until(lambda: place.contexts == [2048])

    assert watch.view().stale is False


async def test_an_editors_rename_and_a_swapped_link_are_noticed(place: Place) -> None:
    place.write(place.sound(1024), "first")
    place.write(place.sound(2048), "second")
    link = place.folder / "mine.yaml"
    link.symlink_to("first.yaml")
    watch = place.watch(str(link))

    async with running(watch):
        swap = place.folder / ".swap"
        swap.symlink_to("second.yaml")
        swap.replace(link)
        await until(lambda: place.contexts == [2048])

        edited = place.folder / ".mine.yaml.swp"
        edited.write_text(place.sound(4096))
        edited.replace(place.folder / "second.yaml")
        await until(lambda: place.contexts == [2048, 4096])

    assert watch.view().name == "mine"


async def test_a_swapped_folder_is_noticed(place: Place) -> None:
    for name, context in (("v1", 1024), ("v2", 2048)):
        (place.folder / name).mkdir()
        (place.folder / name / "mine.yaml").write_text(place.sound(context))
    current = place.folder / "current"
    current.symlink_to("v1")
    watch = PolicyWatch("mine", current, place.state, place.log, place.clock)
    watch.connect(place.daemon)

    async with running(watch):
        swap = place.folder / ".swap"
        swap.symlink_to("v2")
        swap.replace(current)
        await until(lambda: place.contexts == [2048])


def context_in_force(watch: PolicyWatch) -> str:
    """``floor.context`` as the watch tells it, with the policy's name."""
    told = watch.values_in_force()
    text = next(one["text"] for one in told["values"] if one["path"] == ["floor", "context"])
    return f"{told['name']} {text}"


async def test_what_is_told_of_the_policy_in_force_is_what_counts_not_what_the_file_says(
    place: Place,
) -> None:
    place.write(place.sound())
    watch = place.watch()

    async with running(watch):
        place.write(BAD)
        await until(lambda: watch.view().stale)
        bad = context_in_force(watch)
        place.write(place.sound(2048))
        await until(lambda: not watch.view().stale)

    assert bad == "mine 1024"
    assert context_in_force(watch) == "mine 2048"
    assert watch.values_in_force()["revision"] == watch.view().revision


def test_after_a_start_from_the_last_good_policy_its_values_can_be_told(place: Place) -> None:
    place.write(place.sound())
    revision = place.watch().load(None).revision
    place.write(BAD)

    again = place.watch()
    again.load(None)

    assert context_in_force(again) == "mine 1024"
    assert again.values_in_force()["revision"] == revision


async def test_a_bad_file_leaves_the_good_policy_in_force_and_says_so(place: Place) -> None:
    place.write(place.sound())
    watch = place.watch()

    async with running(watch):
        place.write(BAD)
        await until(lambda: watch.view().stale)
        view = watch.view()
        place.write(place.sound())
        await until(lambda: not watch.view().stale)

    assert "a device can hold two of them" in view.error
    assert view.name == "mine"
    assert place.daemon.policies == []
    assert "policy_bad" in [event for event, _ in place.log.lines]


async def test_a_file_that_vanishes_and_comes_back_is_only_stale_meanwhile(place: Place) -> None:
    path = place.write(place.sound())
    watch = place.watch()

    async with running(watch):
        path.unlink()
        await until(lambda: watch.view().stale)
        assert "there is no policy 'mine'" in watch.view().error
        place.write(place.sound(2048))
        await until(lambda: place.contexts == [2048])

    assert not watch.view().stale


async def test_a_file_written_in_pieces_is_read_when_it_is_whole(place: Place) -> None:
    path = place.write(place.sound())
    watch = place.watch()
    text = place.sound(2048)

    async with running(watch):
        with path.open("w") as stream:
            for letter in text:
                stream.write(letter)
                stream.flush()
                await asyncio.sleep(0.001)
        await until(lambda: place.contexts == [2048])

    assert "policy_bad" not in [event for event, _ in place.log.lines]


async def test_a_change_of_an_extended_policy_counts(place: Place) -> None:
    place.write(place.sound(1024, "base"), "base")
    place.write("version: 1\nname: mine\nextends: base\n")
    watch = place.watch()

    async with running(watch):
        place.write(place.sound(2048, "base"), "base")
        await until(lambda: place.contexts == [2048])


async def test_writing_the_same_again_applies_nothing(place: Place) -> None:
    place.write(place.sound())
    watch = place.watch()

    async with running(watch):
        place.write(place.sound())
        await asyncio.sleep(0.4)
        await watch.reload()

    assert place.daemon.policies == []


async def test_reloads_that_come_together_all_count(place: Place) -> None:
    place.write(place.sound())
    watch = place.watch()
    watch.load(None)
    place.write(place.sound(2048))

    views = await asyncio.gather(*(watch.reload() for _ in range(5)))

    assert place.contexts == [2048]
    assert len({view.revision for view in views}) == 1


async def test_a_signal_makes_the_watch_look_at_once(place: Place) -> None:
    place.write(place.sound())
    watch = PolicyWatch(
        "mine", place.folder, place.state, place.log, place.clock, lambda: None, poll_s=3600.0
    )
    watch.connect(place.daemon)

    async with running(watch):
        place.write(place.sound(2048))
        await asyncio.sleep(0.2)
        before = list(place.contexts)
        watch.reload_soon()
        await until(lambda: place.contexts == [2048])

    assert before == []


def test_a_start_with_a_bad_file_takes_the_last_good_policy(place: Place) -> None:
    base = place.write(place.sound(2048, "base"), "base")
    place.write("version: 1\nname: mine\nextends: base\nlimits: {memory: {headroom: 300MiB}}\n")
    good = place.watch().load(None)
    base.unlink()
    place.write(BAD)

    watch = place.watch()
    policy = watch.load(None)

    assert policy == good
    assert watch.view().stale
    assert "a device can hold two of them" in watch.view().error


def test_a_start_without_any_good_policy_is_an_error_with_all_problems(place: Place) -> None:
    place.write(BAD)

    with pytest.raises(PolicyError, match="a device can hold two of them"):
        place.watch().load(None)


async def test_a_start_from_the_last_good_policy_mends_itself(place: Place) -> None:
    path = place.write(place.sound())
    place.watch().load(None)
    path.unlink()
    watch = place.watch()

    async with running(watch):
        assert watch.view().stale
        place.write(place.sound(2048))
        await until(lambda: place.contexts == [2048])

    assert not watch.view().stale


def test_a_damaged_last_good_file_is_no_obstacle(place: Place) -> None:
    (place.state / "last-good-policy.json").write_text("{")
    place.write(place.sound())

    assert place.watch().load(None).name == "mine"


async def test_another_policy_can_be_used_and_a_restart_keeps_to_it(place: Place) -> None:
    place.write(place.sound())
    place.write(place.sound(2048, "other"), "other")
    watch = place.watch()
    watch.load(None)

    view = await watch.use("other")

    assert (view.name, place.contexts) == ("other", [2048])
    assert place.watch().load(None).name == "other"
    assert place.watch("other").load(None).name == "other"


async def test_of_two_who_choose_at_once_the_later_one_is_kept_over_a_restart(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "first", "second"):
        place.write(place.sound(name=name), name)
    watch = place.watch()
    watch.load(None)
    save = policy_watch.save_choice

    def slow_at_first(state: Path, configured: str, chosen: str) -> None:
        time.sleep(0.3 if chosen == "first" else 0.0)
        save(state, configured, chosen)

    monkeypatch.setattr(policy_watch, "save_choice", slow_at_first)
    await asyncio.gather(watch.use("first"), watch.use("second"))

    assert watch.view().name == "second"
    assert place.watch().load(None).name == "second"


async def test_a_reload_that_had_to_wait_for_another_choice_reloads_that(place: Place) -> None:
    place.write(place.sound())
    place.write(place.sound(2048, "other"), "other")
    watch = place.watch()
    watch.load(None)

    await asyncio.gather(watch.use("other"), watch.reload())

    assert watch.view().name == "other"


async def test_using_a_bad_or_missing_policy_changes_nothing(place: Place) -> None:
    place.write(place.sound())
    place.write(BAD.replace("mine", "bad"), "bad")
    watch = place.watch()
    watch.load(None)

    for name in ("bad", "nowhere", "../bad", "/etc/passwd"):
        with pytest.raises(PolicyError):
            await watch.use(name)

    assert (watch.view().name, watch.view().stale) == ("mine", False)
    assert place.daemon.policies == []


async def test_the_library_tells_what_there_is_and_what_is_wrong_with_it(place: Place) -> None:
    place.write(place.sound())
    place.write(BAD.replace("mine", "bad"), "bad")
    watch = place.watch()
    watch.load(None)

    rows = {row["name"]: row for row in await watch.library()}
    shown = await watch.values("mine")
    checked = await watch.check(place.sound()), await watch.check(BAD)

    assert rows["mine"]["problems"] == []
    assert "a device can hold two" in rows["bad"]["problems"][0]["message"]
    assert rows["balanced"]["shipped"] is True
    assert {
        "path": ["floor", "context"],
        "text": "1024",
        "origin": f"{place.folder}/mine.yaml:4",
    } in (shown["values"])
    assert [one["sound"] for one in checked] == [True, False]
    with pytest.raises(PolicyError, match="no name"):
        await watch.values("../mine")


def test_what_a_policy_names_in_vain_is_logged(place: Place, tiny: ModelSpec) -> None:
    place.write(place.sound() + "knobs: {variant: [int8, int3]}\n")

    place.watch().load(tiny)

    ((event, fields),) = place.log.lines
    assert event == "policy_doubt"
    assert "no variant 'int3'; int8 remain" in fields["problem"]


async def test_a_candidate_is_compiled_without_touching_what_is_in_force(place: Place) -> None:
    place.write(place.sound())
    watch = place.watch()
    watch.load(None)

    candidate = await watch.compile(place.sound(2048, "other"))
    with pytest.raises(PolicyError, match="stand by itself"):
        await watch.compile("version: 1\nname: x\nextends: mine\n")

    assert candidate.floor.context == 2048
    assert watch.view().name == "mine"
    assert place.daemon.policies == []


async def test_a_pipe_in_place_of_the_file_does_not_hang_the_watch(place: Place) -> None:
    path = place.write(place.sound())
    watch = place.watch()

    async with running(watch):
        path.unlink()
        os.mkfifo(path)
        await until(lambda: watch.view().stale)
        path.unlink()
        place.write(place.sound(2048))
        await until(lambda: place.contexts == [2048])


SCHEDULED = 'schedule: [{cron: "0 22 * * *", for: 8h, policy: night, timezone: UTC}]\n'


def _at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


async def test_a_schedule_puts_another_policy_in_force_and_takes_it_back(place: Place) -> None:
    place.write(place.sound() + SCHEDULED)
    place.write(place.sound(2048, "night"), "night")
    place.clock.wall = _at("2026-03-01 21:59:59")
    watch = place.watch(notify=lambda: None)

    async with running(watch):
        place.clock.wall = _at("2026-03-01 22:00:00")
        await until(lambda: place.contexts == [2048])
        place.clock.wall = _at("2026-03-02 06:00:01")
        await until(lambda: place.contexts == [2048, 1024])

    assert watch.view().name == "mine"


def test_a_start_in_the_middle_of_a_span_begins_with_its_policy(place: Place) -> None:
    place.write(place.sound() + SCHEDULED)
    place.write(place.sound(2048, "night"), "night")
    place.clock.wall = _at("2026-03-02 03:00:00")

    watch = place.watch()

    assert watch.load(None).name == "night"
    assert context_in_force(watch) == "night 2048"


async def test_a_clock_out_of_its_mind_puts_no_schedule_in_force(place: Place) -> None:
    place.write(place.sound() + SCHEDULED)
    place.write(place.sound(2048, "night"), "night")
    place.clock.wall = 1e20
    watch = place.watch(notify=lambda: None)

    async with running(watch):
        assert watch.view().name == "mine"
        place.clock.wall = _at("2026-03-01 23:00:00")
        await until(lambda: place.contexts == [2048])


async def test_the_watch_outlives_what_nobody_foresaw(place: Place) -> None:
    place.write(place.sound())
    watch = place.watch()
    watch.connect(Stubborn(place.daemon))
    before = watch.load(None).revision

    async with running(watch):
        place.write(place.sound(2048))
        await until(lambda: "policy_watch_failed" in [event for event, _ in place.log.lines])
        assert watch.view().revision == before
        await until(lambda: place.contexts == [2048])


BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = ScheduleEntry("0 22 * * *", "night", "Europe/Berlin", 8 * 3600.0)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("2026-01-10 21:59", None),
        ("2026-01-10 22:00", "night"),
        ("2026-01-11 05:59", "night"),
        ("2026-01-11 06:00", None),
        ("2026-03-29 06:59", "night"),  # the clock went forward: eight hours end at seven
        ("2026-03-29 07:01", None),
        ("2026-10-25 05:01", None),  # the clock went back: eight hours end at five
    ],
)
def test_a_span_lasts_as_long_as_it_says_in_local_time(when: str, expected: str | None) -> None:
    wall_s = datetime.fromisoformat(when).replace(tzinfo=BERLIN).timestamp()

    entry = entry_in_force((NIGHT,), wall_s)

    assert (entry.policy if entry else None) == expected


def test_weekdays_are_counted_as_cron_counts_them() -> None:
    sunday = ScheduleEntry("0 12 * * 0", "sunday", "UTC", 3600.0)
    monday = ScheduleEntry("0 12 * * 1", "monday", "UTC", 3600.0)

    on_sunday = entry_in_force((sunday, monday), _at("2026-03-01 12:30"))

    assert on_sunday is sunday
    assert entry_in_force((sunday, monday), _at("2026-03-02 12:30")) is monday


def test_of_two_spans_the_one_that_began_last_holds() -> None:
    late = ScheduleEntry("0 23 * * *", "late", "UTC", 3600.0)
    night = ScheduleEntry("0 22 * * *", "night", "UTC", 8 * 3600.0)

    assert entry_in_force((night, late), _at("2026-03-01 23:30")) is late
    assert entry_in_force((night, late), _at("2026-03-02 00:30")) is night


def test_the_next_change_is_the_nearest_beginning_or_end() -> None:
    night = ScheduleEntry("0 22 * * *", "night", "UTC", 8 * 3600.0)

    assert next_change_s((night,), _at("2026-03-01 12:00")) == _at("2026-03-01 22:00")
    assert next_change_s((night,), _at("2026-03-01 23:00")) == _at("2026-03-02 06:00")
    assert next_change_s((), 0.0) is None


def test_the_folders_of_every_link_on_the_way_are_watched(tmp_path: Path) -> None:
    (tmp_path / "v1" / "p").mkdir(parents=True)
    (tmp_path / "v1" / "p" / "a.yaml").write_text("x")
    (tmp_path / "current").symlink_to("v1")
    (tmp_path / "v1" / "p" / "b.yaml").symlink_to("a.yaml")

    found = folders_of(tmp_path / "current" / "p" / "b.yaml")

    assert found == {tmp_path, tmp_path / "v1" / "p"}


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    assert folders_of(tmp_path / "a" / "x.yaml") == {tmp_path}


def test_inotify_tells_of_a_change_and_forgets_a_folder(tmp_path: Path) -> None:
    inotify = open_inotify()
    assert inotify is not None
    inotify.watch({tmp_path, tmp_path / "nowhere"}, {"a", "c"})
    (tmp_path / "a").write_text("x")

    assert inotify.watched == {tmp_path}
    assert inotify.drain() is Happened.WHOLE
    (tmp_path / "b").write_text("x")
    assert inotify.drain() is Happened.SOMETHING
    (tmp_path / "b").replace(tmp_path / "c")
    assert inotify.drain() is Happened.WHOLE
    (tmp_path / "c").unlink()
    assert inotify.drain() is Happened.SOMETHING
    inotify.watch(set())
    inotify.drain()
    (tmp_path / "b").write_text("x")
    assert inotify.drain() is Happened.NOTHING
    inotify.close()
