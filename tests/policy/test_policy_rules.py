from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_files import MINIMAL, load_text, rule

from trimtab.domain.knobs import Knob, KvPlacement
from trimtab.domain.readings import Quality, Reading, Snapshot
from trimtab.policy.combine import EffectiveBounds, combine
from trimtab.policy.compiled import BetweenTimes, KnobBounds, Policy, Rule, Tightening, Window
from trimtab.policy.evaluate import RulesState, Verdict, carry_over, evaluate, standing
from trimtab.policy.shelf import policy_files, shipped_folder
from trimtab.policy.trend import KEPT, feed, slope

MIB = 2.0**20


class Feeder:
    """Feeds a policy one snapshot after the other."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.state = RulesState()
        self.at_s = 0.0

    def tick(
        self, seconds: float = 1.0, minute: int | None = 12 * 60, **values: float | None
    ) -> tuple[Verdict, ...]:
        """One tick later: signals by name, a double underscore for each dot; None is absent."""
        self.at_s += seconds
        names = {name.replace("__", "."): value for name, value in values.items()}
        readings = {
            name: Reading(name, value, self.at_s, Quality.ABSENT if value is None else Quality.GOOD)
            for name, value in names.items()
        }
        snapshot = Snapshot(self.at_s, readings)
        self.state, verdicts = evaluate(self.policy, self.state, snapshot, minute)
        return verdicts

    def psi(self, *values: float | None) -> list[bool]:
        """Ticks with these memory stalls: whether the first rule was in force after each."""
        return [self.tick(memory__psi__some_avg10=value)[0].in_force for value in values]


STALLS = rule("{signal: memory.psi.some_avg10, above: 10%, for: 3s}", "{below: 2%, for: 2s}")


def _feeder(folder: Path, text: str) -> Feeder:
    return Feeder(load_text(text, folder).require())


def test_a_condition_must_hold_for_its_time_without_a_break(tmp_path: Path) -> None:
    feeder = _feeder(tmp_path, STALLS)

    assert feeder.psi(0.2, 0.2, 0.2, 0.05) == [False] * 4
    assert feeder.psi(0.2, 0.2, 0.2, 0.2) == [False, False, False, True]


def test_between_enter_and_leave_a_rule_stays_as_it_is(tmp_path: Path) -> None:
    feeder = _feeder(tmp_path, STALLS)
    feeder.psi(0.2, 0.2, 0.2, 0.2)

    assert feeder.psi(0.05, 0.05, 0.05, 0.05) == [True] * 4
    assert feeder.psi(0.01, 0.01, 0.05, 0.01, 0.01, 0.01) == [True, True, True, True, True, False]
    assert feeder.psi(0.05) == [False]


def test_a_verdict_says_what_brought_the_rule_in_force(tmp_path: Path) -> None:
    feeder = _feeder(tmp_path, STALLS)
    feeder.psi(0.2, 0.2, 0.2, 0.25)
    (verdict,) = feeder.state.verdicts

    assert verdict.since_s == 4
    assert verdict.why is not None
    assert (verdict.why.signal, verdict.why.value, verdict.why.threshold, verdict.why.for_s) == (
        "memory.psi.some_avg10",
        0.25,
        0.1,
        3,
    )
    assert standing(verdict) == "in force: memory.psi.some_avg10 was 25%, above 10% for 3s"


def test_an_absent_signal_keeps_a_rule_out_of_force_and_is_named(tmp_path: Path) -> None:
    feeder = _feeder(tmp_path, STALLS)

    assert feeder.psi(0.2, 0.2, 0.2, None, None) == [False] * 5
    assert feeder.state.verdicts[0].absent == ("memory.psi.some_avg10",)
    assert standing(feeder.state.verdicts[0]) == (
        "not in force (memory.psi.some_avg10 can't be read)"
    )
    assert feeder.psi(0.2, 0.2, 0.2, 0.2) == [False, False, False, True]


def test_what_was_tightened_stays_tightened_while_its_signal_is_absent(tmp_path: Path) -> None:
    feeder = _feeder(tmp_path, STALLS)
    feeder.psi(0.2, 0.2, 0.2, 0.2)

    assert feeder.psi(*[None] * 100) == [True] * 100
    assert standing(feeder.state.verdicts[0]).endswith("can't be read), so it stays")
    assert feeder.psi(0.01, 0.01, 0.01) == [True, True, False]


@pytest.mark.parametrize("quality", [Quality.SUSPECT, Quality.STALE, Quality.FAILED])
def test_a_reading_that_cannot_be_trusted_counts_as_absent(
    tmp_path: Path, quality: Quality
) -> None:
    policy = load_text(
        rule("{signal: temperature.max, above: 80C}", "{below: 70C}"), tmp_path
    ).require()
    reading = Reading("temperature.max", 120.0, 1.0, quality)

    _, (verdict,) = evaluate(policy, RulesState(), Snapshot(1.0, {"temperature.max": reading}), 0)

    assert not verdict.in_force
    assert verdict.absent == ("temperature.max",)


def test_windows_are_fed_while_another_part_of_the_condition_is_false(tmp_path: Path) -> None:
    when = (
        "{all: [{signal: temperature.max, above: 80C}, "
        "{signal: memory.psi.some_avg10, above: 10%, for: 3s}]}"
    )
    feeder = _feeder(tmp_path, rule(when, "{signal: temperature.max, below: 70C}"))
    for _ in range(4):
        feeder.tick(temperature__max=50, memory__psi__some_avg10=0.2)

    (verdict,) = feeder.tick(temperature__max=85, memory__psi__some_avg10=0.2)

    assert verdict.in_force


@pytest.mark.parametrize(
    ("when", "hot", "stalls", "expected"),
    [
        ("any", 85, None, True),
        ("any", 60, None, False),
        ("any", None, None, False),
        ("all", 85, 0.2, True),
        ("all", 85, None, False),
        ("all", 60, None, False),
    ],
)
def test_all_and_any_treat_an_absent_part_as_unknown(
    tmp_path: Path, when: str, hot: float | None, stalls: float | None, expected: bool
) -> None:
    parts = "{signal: temperature.max, above: 80C}, {signal: memory.psi.some_avg10, above: 10%}"
    feeder = _feeder(
        tmp_path, rule(f"{{{when}: [{parts}]}}", "{signal: temperature.max, below: 70C}")
    )

    (verdict,) = feeder.tick(temperature__max=hot, memory__psi__some_avg10=stalls)

    assert verdict.in_force is expected


def test_not_turns_round_what_is_known_and_leaves_unknown_alone(tmp_path: Path) -> None:
    text = rule("{not: {signal: memory.available, above: 1GiB}}", "{above: 2GiB}")

    assert not _feeder(tmp_path, text).tick(memory__available=3 * 2.0**30)[0].in_force
    assert _feeder(tmp_path, text).tick(memory__available=2.0**29)[0].in_force
    assert not _feeder(tmp_path, text).tick(memory__available=None)[0].in_force


def test_a_trend_fires_on_speed_and_not_on_one_jump(tmp_path: Path) -> None:
    when = "{signal: memory.available, falling_faster_than: 20MiB/s, over: 10s}"
    leave = "{not: {signal: memory.available, falling_faster_than: 5MiB/s, over: 10s}}"
    steady = _feeder(tmp_path, rule(when, leave))
    jump = _feeder(tmp_path, rule(when, leave))

    fired = [
        steady.tick(memory__available=8000 * MIB - 30 * MIB * n)[0].in_force for n in range(12)
    ]
    jumped = [
        jump.tick(memory__available=(8000 if n < 10 else 7900) * MIB)[0].in_force for n in range(12)
    ]

    assert fired[:4] == [False] * 4
    assert fired[-1]
    assert not any(jumped)
    assert steady.state.verdicts[0].why is not None
    assert steady.state.verdicts[0].why.text == (
        "memory.available was falling by 30MiB/s, faster than 20MiB/s"
    )
    settled = [steady.tick(memory__available=7600 * MIB)[0].in_force for _ in range(15)]
    assert settled[-1] is False


def test_a_time_of_the_day_may_cross_midnight(tmp_path: Path) -> None:
    feeder = _feeder(tmp_path, rule("{between: [22:00, 06:00]}", None))
    times = [21 * 60 + 59, 22 * 60, 23 * 60 + 59, 0, 5 * 60 + 59, 6 * 60]

    assert [feeder.tick(minute=minute)[0].in_force for minute in times] == [
        False,
        True,
        True,
        True,
        True,
        False,
    ]
    assert not feeder.tick(minute=None)[0].in_force


def test_a_rule_bound_to_a_time_ends_with_it(tmp_path: Path) -> None:
    when = "{all: [{signal: temperature.max, above: 80C}, {between: [08:00, 18:00]}]}"
    feeder = _feeder(tmp_path, rule(when, "{below: 70C}"))
    assert feeder.tick(minute=9 * 60, temperature__max=85)[0].in_force

    assert feeder.tick(minute=17 * 60, temperature__max=75)[0].in_force
    assert not feeder.tick(minute=18 * 60, temperature__max=75)[0].in_force


def test_rules_that_a_new_policy_has_too_go_on_and_others_begin(tmp_path: Path) -> None:
    feeder = _feeder(tmp_path, STALLS)
    feeder.psi(0.2, 0.2, 0.2, 0.2)
    same = load_text(STALLS + "floor: {quality: 0.5}\n", tmp_path).require()
    changed = load_text(STALLS.replace("10%", "15%"), tmp_path).require()

    assert carry_over(feeder.state, same).verdicts[0].in_force
    assert not carry_over(feeder.state, changed).verdicts[0].in_force


def test_ten_ticks_a_millisecond_apart_count_as_the_time_that_they_took(tmp_path: Path) -> None:
    feeder = _feeder(tmp_path, STALLS)
    for _ in range(2900):
        (verdict,) = feeder.tick(0.001, memory__psi__some_avg10=0.2)

    assert not verdict.in_force
    assert feeder.tick(0.2, memory__psi__some_avg10=0.2)[0].in_force


def test_a_window_stays_small_however_fast_the_ticks_come() -> None:
    samples: tuple[tuple[float, float], ...] = ()
    for n in range(10_000):
        samples = feed(samples, n * 0.01, n * 3.0, 10.0)

    assert len(samples) <= KEPT + 2
    assert slope(samples, 10.0) == pytest.approx(300.0)


BOUNDS = KnobBounds(
    ("fp32", "int8", "int4"),
    512,
    8192,
    Window(shift=False, keep=None),
    ("off", "ngram"),
    (KvPlacement.MEMORY, KvPlacement.DISK),
    1,
    None,
    0.1,
    1.0,
)


def _in_force(name: str, then: Tightening) -> Verdict:
    span = BetweenTimes(0, 1)
    return Verdict(Rule(name, span, span, then), in_force=True)


def test_of_several_rules_the_tightest_wins_and_is_named() -> None:
    effective = combine(
        [
            _in_force("wide", Tightening(context_at_most=4096)),
            _in_force("tight", Tightening(context_at_most=1024)),
            _in_force("as tight", Tightening(context_at_most=1024)),
            _in_force("other", Tightening(threads_at_most=2, speculation=frozenset({"off"}))),
            Verdict(_in_force("idle", Tightening(pace_at_most_ratio=0.1)).rule),
        ],
        BOUNDS,
    )

    assert effective.knobs.context_max == 1024
    assert effective.knobs.threads_max == 2
    assert effective.knobs.speculation == ("off",)
    assert effective.knobs.pace_max_ratio == 1.0
    assert effective.tightened_by == {
        Knob.CONTEXT: ("tight", "as tight"),
        Knob.THREADS: ("other",),
        Knob.SPECULATION: ("other",),
    }


def test_demands_that_leave_nothing_give_way_and_are_reported() -> None:
    effective = combine(
        [
            _in_force("low", Tightening(context_at_most=1024, variants=frozenset({"int4"}))),
            _in_force("high", Tightening(context_at_least=2048, variants=frozenset({"fp32"}))),
        ],
        BOUNDS,
    )

    assert (effective.knobs.context_min, effective.knobs.context_max) == (1024, 1024)
    assert effective.knobs.variants == ("int4",)
    assert len(effective.conflicts) == 2


_SETS = st.none() | st.frozensets(st.sampled_from(BOUNDS.variants), min_size=1)
_TIGHTENINGS = st.builds(
    Tightening,
    variants=_SETS,
    context_at_most=st.none() | st.integers(512, 8192),
    context_at_least=st.none() | st.integers(512, 8192),
    speculation=st.none() | st.frozensets(st.sampled_from(BOUNDS.speculation), min_size=1),
    kv_placement=st.none() | st.frozensets(st.sampled_from(BOUNDS.kv_placement), min_size=1),
    threads_at_most=st.none() | st.integers(1, 8),
    threads_at_least=st.none() | st.integers(1, 8),
    pace_at_most_ratio=st.none() | st.floats(0.1, 1.0),
    pace_at_least_ratio=st.none() | st.floats(0.1, 1.0),
)


def _within(inner: EffectiveBounds, outer: KnobBounds) -> bool:
    knobs = inner.knobs
    return (
        set(knobs.variants) <= set(outer.variants)
        and set(knobs.speculation) <= set(outer.speculation)
        and set(knobs.kv_placement) <= set(outer.kv_placement)
        and outer.context_min <= knobs.context_min <= knobs.context_max <= outer.context_max
        and outer.threads_min <= knobs.threads_min
        and (outer.threads_max is None or (knobs.threads_max or 0) <= outer.threads_max)
        and outer.pace_min_ratio <= knobs.pace_min_ratio <= knobs.pace_max_ratio
        and knobs.pace_max_ratio <= outer.pace_max_ratio
    )


@given(st.lists(_TIGHTENINGS, max_size=5))
@settings(deadline=None)
def test_no_rules_ever_loosen_the_policys_own_bounds(thens: list[Tightening]) -> None:
    effective = combine([_in_force(str(n), then) for n, then in enumerate(thens)], BOUNDS)

    assert _within(effective, BOUNDS)
    assert effective.knobs.variants
    assert effective.knobs.speculation


@given(st.lists(_TIGHTENINGS, max_size=4), _TIGHTENINGS)
@settings(deadline=None)
def test_another_upper_bound_never_widens_what_is_left(
    thens: list[Tightening], another: Tightening
) -> None:
    upper = Tightening(
        context_at_most=another.context_at_most,
        threads_at_most=another.threads_at_most,
        pace_at_most_ratio=another.pace_at_most_ratio,
        speculation=another.speculation,
    )
    verdicts = [_in_force(str(n), then) for n, then in enumerate(thens)]
    before = combine(verdicts, BOUNDS).knobs

    after = combine([*verdicts, _in_force("another", upper)], BOUNDS).knobs

    assert after.context_max <= before.context_max
    assert after.pace_max_ratio <= before.pace_max_ratio
    assert set(after.speculation) <= set(before.speculation)
    if before.threads_max is not None:
        assert after.threads_max is not None
        assert after.threads_max <= before.threads_max


def test_a_policy_without_rules_keeps_its_bounds(tmp_path: Path) -> None:
    policy = load_text(MINIMAL, tmp_path).require()
    state, verdicts = evaluate(policy, RulesState(), Snapshot(0.0), None)

    assert combine(verdicts, policy.knobs).knobs is policy.knobs
    assert state.verdicts == ()


@pytest.mark.parametrize("path", policy_files(shipped_folder()), ids=lambda path: path.stem)
def test_no_shipped_rule_takes_the_last_rung_away(path: Path, tmp_path: Path) -> None:
    policy = load_text(path.read_text(), tmp_path).require()
    for in_force in policy.rules:
        bounds = combine([Verdict(in_force, in_force=True)], policy.knobs).knobs

        before, after = policy.knobs.kv_placement, bounds.kv_placement
        assert (KvPlacement.DISK_ALL in after) == (KvPlacement.DISK_ALL in before), in_force.name
