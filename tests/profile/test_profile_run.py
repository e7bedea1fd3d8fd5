"""Profiles made with real workers on the tiny model: kept, resumed, refused."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.catalog.load import load_catalog
from trimtab.domain.decisions import Source
from trimtab.domain.knobs import OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.domain.profile import Device, Kind, Measurement, Profile
from trimtab.domain.readings import Reading, Snapshot
from trimtab.errors import StateError
from trimtab.planner.predict import Facts, Situation, predict
from trimtab.profile.here import foreign, signature, this_device, versions
from trimtab.profile.known import known_here
from trimtab.profile.quality import compare
from trimtab.profile.quiet import Quiet
from trimtab.profile.runner import Runner, Setting
from trimtab.profile.schedule import FULL, QUICK, Extent, SessionPlan, cost_s, missing, plan
from trimtab.profile.store import load_profile, profile_path, save_profile, usable
from trimtab.profile.tasks import Question, Tasks
from trimtab.runtime.clock import SystemClock

TINY = Path(__file__).parent.parent / "tiny"
TEXT = "The keeper trimmed the lamp at ten and at two, and wrote it down. " * 40
SMALL = Extent("quick", (32, 128), 1, 8)


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    found = load_catalog([TINY]).models["tiny"]
    return replace(found, variants=found.variants[-1:])


class FakeClock:
    """Sleeping moves the time on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return 1000.0 + self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class Heard:
    """A reporter that remembers, and can interrupt at a step."""

    def __init__(self, stop_at: int = 10**6) -> None:
        self.steps: list[tuple[str, float, float]] = []
        self.said: list[str] = []
        self._stop_at = stop_at

    def doing(self, title: str, done_ratio: float, left_s: float) -> None:
        if len(self.steps) == self._stop_at:
            raise KeyboardInterrupt
        self.steps.append((title, done_ratio, left_s))

    def say(self, text: str) -> None:
        self.said.append(text)


def empty(model: ModelSpec, started_s: float = 5.0) -> Profile:
    device = Device("m", "cpu", 2, 8 * 2**30, "generic")
    files = {variant.name: signature(variant) for variant in model.variants}
    return Profile(device, versions(), model.model_id, files, "quick", started_s)


def a_runner(
    model: ModelSpec,
    state: Path,
    heard: Heard,
    extent: Extent = SMALL,
    deadline_s: float | None = None,
) -> Runner:
    clock = SystemClock()
    quiet = Quiet(clock, Path("/proc"), lambda: Snapshot(0.0), 80.0, 0.0, heard.say)
    setting = Setting(state, Path("/proc"), deadline_s=deadline_s)
    return Runner(model, extent, setting, TEXT, quiet, lambda: 2**33, clock, heard)


def sessions_of(model: ModelSpec) -> list[SessionPlan]:
    return plan(model, SMALL, cores=1, usual_threads=1)


async def test_a_profile_measures_load_memory_and_speeds_and_keeps_them(
    model: ModelSpec, tmp_path: Path
) -> None:
    heard = Heard()

    found = await a_runner(model, tmp_path, heard).run(empty(model), sessions_of(model))

    name = model.variants[0].name
    assert found.finished_s is not None
    assert found.left_out == ()
    assert load_profile(tmp_path, "tiny") == found
    load = found.find(Kind.LOAD_WARM, name, 1)
    held = found.find(Kind.RESIDENT, name, 1)
    token = found.find(Kind.DECODE, name, 1, 128)
    kv = found.find(Kind.KV, name, 1, 128)
    short, long = (found.find(Kind.TTFT, name, 1, tokens) for tokens in (32, 128))
    assert load is not None
    assert load.value > 0.05  # a process had to start
    assert held is not None
    assert held.value > 10 * 2**20
    assert token is not None
    assert 1e-6 < token.value < 1
    assert kv is not None
    assert kv.value >= 128 * model.variants[0].kv_bytes_per_token
    assert short is not None
    assert long is not None
    assert [ratio for _, ratio, _ in heard.steps] == sorted(ratio for _, ratio, _ in heard.steps)
    save_profile(tmp_path, replace(found, device=this_device(Path("/proc"), "generic")))
    known = known_here(model, tmp_path, Path("/proc"), 1)
    assert known.device is not None
    predicted = predict(
        OperatingPoint(name, 256),
        known.model or model,
        Situation(None, 0, 0),
        Facts(known.resident, working=known.working, device=known.device),
    )
    assert predicted.grounds.speed is Source.FITTED
    assert predicted.grounds.memory is Source.MEASURED
    assert predicted.memory_bytes == pytest.approx(held.value, rel=0.3)


async def test_an_interrupted_profile_goes_on_where_it_stopped(
    model: ModelSpec, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        await a_runner(model, tmp_path, Heard(stop_at=4)).run(empty(model), sessions_of(model))
    kept = load_profile(tmp_path, "tiny")
    assert kept is not None
    before = {one.key: one for one in kept.measurements}

    again = Heard()
    found = await a_runner(model, tmp_path, again).run(kept, sessions_of(model))

    assert len(before) >= 3
    assert found.finished_s is not None
    assert all(found.find(*_place(one)) == one for one in before.values())
    assert "bandwidth" not in {title for title, _, _ in again.steps}


async def test_what_was_measured_beside_other_work_is_measured_again_if_one_asks(
    model: ModelSpec, tmp_path: Path
) -> None:
    first = await a_runner(model, tmp_path, Heard()).run(empty(model), sessions_of(model))
    doubtful = {Kind.DECODE: ("busy",), Kind.BANDWIDTH: ("busy",)}
    clean = tuple(replace(one, wait_ratios=(), marks=()) for one in first.measurements)
    kept = replace(
        first,
        measurements=tuple(replace(one, marks=doubtful.get(one.kind, ())) for one in clean),
    )

    left = missing(sessions_of(model), kept, disturbed=True)

    kinds = {step.kind for session in left for step in session.steps}
    assert kinds == {Kind.DECODE, Kind.BANDWIDTH}
    assert missing(sessions_of(model), kept) == []


async def test_what_no_time_was_left_for_is_said_and_stays_missing(
    model: ModelSpec, tmp_path: Path
) -> None:
    late = time.monotonic() - 1

    found = await a_runner(model, tmp_path, Heard(), deadline_s=late).run(
        empty(model), sessions_of(model)
    )

    assert found.finished_s is None
    assert found.measurements == ()
    assert all("no time left" in text for text in found.left_out)
    assert missing(sessions_of(model), found) == sessions_of(model)


async def test_a_variant_that_doesnt_load_is_left_out_with_its_reason(
    model: ModelSpec, tmp_path: Path
) -> None:
    broken = replace(model.variants[0], folder=str(tmp_path / "nowhere"))
    damaged = replace(model, variants=(broken,))

    found = await a_runner(damaged, tmp_path, Heard()).run(empty(damaged), sessions_of(damaged))

    assert found.find(Kind.BANDWIDTH, threads=1) is not None
    assert found.all(Kind.DECODE) == ()
    assert any(broken.name in text for text in found.left_out)


async def test_a_worker_for_which_there_is_no_memory_is_not_started(
    model: ModelSpec, tmp_path: Path
) -> None:
    heard = Heard()
    clock = SystemClock()
    quiet = Quiet(clock, Path("/proc"), lambda: Snapshot(0.0), 80.0, 0.0, heard.say)
    runner = Runner(
        model, SMALL, Setting(tmp_path, Path("/proc")), TEXT, quiet, lambda: 1000, clock, heard
    )

    found = await runner.run(empty(model), sessions_of(model))

    assert any("are available" in text for text in found.left_out)


async def test_a_state_folder_that_cant_be_written_ends_it_with_the_reason(
    model: ModelSpec, tmp_path: Path
) -> None:
    (tmp_path / "profiles").write_text("a file where the folder should be")

    with pytest.raises(StateError, match="profiles"):
        await a_runner(model, tmp_path, Heard()).run(empty(model), sessions_of(model))


def test_a_profile_of_another_machine_is_of_no_use(model: ModelSpec) -> None:
    known = empty(model)
    others = {
        "another machine": replace(known.device, machine="x"),
        "this is Z80": replace(known.device, cpu="Z80"),
        "there are 4": replace(known.device, cores=4),
        "another size": replace(known.device, memory_bytes=2**30),
    }

    for words, device in others.items():
        assert words in foreign(known, device)
        assert usable(known, model, device, versions())[0] is None
    assert foreign(known, known.device) == ""


def test_a_new_engine_makes_all_stale_and_new_files_that_variant(model: ModelSpec) -> None:
    name = model.variants[0].name
    known = replace(empty(model), measurements=(Measurement(Kind.DECODE, (0.1,), name, 1, 64),))

    newer = usable(known, model, known.device, {**versions(), "onnxruntime": "9.9"})
    rebuilt = usable(replace(known, variants={name: "other"}), model, known.device, versions())
    same = usable(known, model, known.device, versions())

    assert newer[0] is None
    assert "onnxruntime is 9.9 now" in newer[1][0]
    assert rebuilt[0] is not None
    assert rebuilt[0].measurements == ()
    assert "have changed" in rebuilt[1][0]
    assert same == (known, ())


def test_the_daemon_starts_from_a_profile_and_without_one(model: ModelSpec, tmp_path: Path) -> None:
    name = model.variants[0].name
    without = known_here(model, tmp_path, Path("/proc"), 1)
    save_profile(tmp_path, replace(empty(model), device=replace(empty(model).device, cpu="Z80")))
    strangers = known_here(model, tmp_path, Path("/proc"), 1)
    profile_path(tmp_path, "tiny").write_text("{ damaged")
    damaged = known_here(model, tmp_path, Path("/proc"), 1)

    assert (without.measured, without.reasons, without.model) == (False, (), model)
    assert not strangers.measured
    assert "measured on" in strangers.reasons[0]
    assert "damaged" in damaged.reasons[0]
    assert damaged.model == model
    assert name not in damaged.resident


def test_speeds_that_were_seen_on_another_processor_are_not_this_devices(
    model: ModelSpec, tmp_path: Path
) -> None:
    seen = replace(model.variants[0], decode_tps=20.0, prefill_tps=300.0, proof_cpu="")
    here = replace(seen, name="here", proof_cpu=this_device(Path("/proc"), "").cpu)
    elsewhere = replace(seen, name="elsewhere", proof_cpu="Z80")
    built = replace(model, variants=(seen, here, elsewhere))

    known = known_here(built, tmp_path, Path("/proc"), 1).model

    assert known is not None
    assert [one.decode_tps for one in known.variants] == [20.0, 20.0, None]


def test_a_quick_profile_takes_the_usual_threads_first_and_far_less_time(
    model: ModelSpec,
) -> None:
    slow = replace(model.variants[0], decode_tps=20.0, prefill_tps=300.0, load_s=1.0)
    model = replace(model, variants=(slow,))
    quick = plan(model, QUICK, cores=4, usual_threads=3)
    full = plan(model, FULL, cores=4, usual_threads=3)

    assert [one.threads for one in quick][:2] == [0, 3]
    assert cost_s(quick) < cost_s(full) / 3
    keys = {step.key for one in full for step in one.steps}
    assert len(keys) == sum(len(one.steps) for one in full)


async def test_a_busy_machine_is_waited_for_and_then_marked(tmp_path: Path) -> None:
    clock = FakeClock()
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0\n")
    said: list[str] = []

    async def sleep(seconds: float) -> None:
        busy = int(clock.now_s * 1000)
        (tmp_path / "stat").write_text(f"cpu  {busy + 500} 0 0 {busy} 0 0 0 0\n")
        await clock.sleep(seconds)

    quiet = Quiet(clock, tmp_path, lambda: Snapshot(0.0), 80.0, 10.0, said.append, sleep)
    conditions = await quiet.wait()

    assert conditions.marks == ("busy",)
    assert clock.now_s >= 10
    assert len(said) == 1
    assert "of the cores" in said[0]


async def test_a_hot_board_is_waited_for_until_it_has_cooled(tmp_path: Path) -> None:
    clock = FakeClock()
    (tmp_path / "stat").write_text("cpu  0 0 0 100 0 0 0 0\n")

    def look() -> Snapshot:
        celsius = 90.0 - clock.now_s
        return Snapshot(0.0, {"temperature.max": Reading("temperature.max", celsius, 0.0)})

    said: list[str] = []
    conditions = await Quiet(clock, tmp_path, look, 80.0, 60.0, said.append).wait()

    assert conditions.marks == ()
    assert 10 <= clock.now_s < 20
    assert "hot" in said[0]


def test_quality_is_measured_with_intervals_and_answers_by_task(tmp_path: Path) -> None:
    catalog = load_catalog([TINY]).models["tiny"]
    two = replace(catalog, variants=(catalog.variants[0], catalog.variants[-1]))
    questions = tuple(Question("chat", f"Number {n}?", ("x",)) for n in range(3))

    best, worst = compare(two, Tasks(TEXT, questions), tmp_path / "cache", lambda _: None)

    assert [task.task for task in worst.tasks] == ["text", "chat"]
    text = worst.tasks[0]
    assert best.tasks[0].mean_kl == 0
    assert text.kl_low < text.mean_kl < text.kl_high
    assert text.perplexity_low < text.perplexity < text.perplexity_high
    assert text.mean_kl > 0.01
    assert (worst.tasks[1].asked, worst.tasks[1].right) == (3, 0)
    assert list((tmp_path / "cache").iterdir()) == []


def _place(one: Measurement) -> tuple[Kind, str, int, int, str]:
    return (one.kind, one.variant, one.threads, one.tokens, one.detail)
