"""Time to a trip point by the first-order model, on boards whose physics is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.domain.readings import Quality, Reading
from trimtab.signals.derived import DerivedSignals
from trimtab.signals.thermal import fit, since_turn


def heating(
    final: float, tau_s: float, start: float = 45.0, seconds: int = 90, step: float = 0.0
) -> list[tuple[float, float]]:
    """A board under constant load, its sensor in steps of this size."""
    samples = []
    for at_s in range(seconds):
        celsius = final + (start - final) * math.exp(-at_s / tau_s)
        samples.append((float(at_s), round(celsius / step) * step if step else celsius))
    return samples


@pytest.mark.parametrize("step", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("final", "tau_s"), [(95.0, 60.0), (90.0, 120.0), (110.0, 200.0)])
def test_the_time_to_a_trip_point_is_that_of_the_boards_physics(
    final: float, tau_s: float, step: float
) -> None:
    samples = heating(final, tau_s, step=step)
    now = final + (45.0 - final) * math.exp(-(len(samples) - 1) / tau_s)
    trip = now + 0.5 * (final - now)
    true_s = tau_s * math.log((final - now) / (final - trip))

    model = fit(samples)

    assert model is not None
    found_s = model.time_to(trip)
    assert found_s is not None
    assert found_s == pytest.approx(true_s, rel=0.6 if step else 0.1)


def test_a_board_that_settles_below_the_trip_point_never_reaches_it() -> None:
    model = fit(heating(final=70.0, tau_s=40.0, seconds=120))

    assert model is not None
    assert model.time_to(85.0) is None
    assert model.final_celsius == pytest.approx(70.0, abs=2.0)


def test_a_cooling_board_reaches_no_trip_point() -> None:
    model = fit(heating(final=40.0, tau_s=60.0, start=80.0))

    assert model is not None
    assert model.time_to(85.0) is None


def test_a_board_that_is_past_it_has_no_time_left() -> None:
    model = fit(heating(final=95.0, tau_s=60.0))

    assert model is not None
    assert model.time_to(50.0) == 0.0


def steps(*legs: tuple[float, int]) -> list[tuple[float, float]]:
    """Temperatures that stay for so many seconds each."""
    values = [celsius for celsius, seconds in legs for _ in range(seconds)]
    return [(float(at_s), value) for at_s, value in enumerate(values)]


def test_a_board_that_has_just_cooled_is_not_taken_for_one_that_heats_up() -> None:
    # as a real ACPI zone was set in a virtual machine: 45, 60, 88, then 70 degrees
    samples = steps((45.0, 5), (60.0, 4), (88.0, 6))
    for seconds in range(1, 12):
        model = fit([*samples, *((15.0 + s, 70.0) for s in range(seconds))])
        assert model is None or model.time_to(105.0) is None


@pytest.mark.parametrize(
    ("legs", "first"),
    [
        (((50.0, 5), (60.0, 5), (70.0, 5)), 50.0),
        (((50.0, 5), (80.0, 5), (70.0, 5)), 80.0),
        (((80.0, 5), (50.0, 5), (52.0, 5), (54.0, 5)), 50.0),
        (((80.0, 5), (50.0, 5), (51.0, 5), (49.0, 5)), 80.0),
        (((50.0, 5), (51.0, 5), (49.5, 5)), 50.0),
    ],
)
def test_only_what_follows_the_last_turn_counts(
    legs: tuple[tuple[float, int], ...], first: float
) -> None:
    assert since_turn(steps(*legs))[0][1] == first


def test_a_few_samples_say_nothing() -> None:
    assert fit([(0.0, 45.0), (1.0, 46.0)]) is None
    assert fit([]) is None


@given(
    celsius=st.lists(st.floats(-40, 150), min_size=12, max_size=60),
    trip=st.floats(30, 150),
)
def test_the_fit_is_total(celsius: list[float], trip: float) -> None:
    model = fit([(at_s * 2.0, value) for at_s, value in enumerate(celsius)])

    if model is not None:
        left_s = model.time_to(trip)
        assert left_s is None or (math.isfinite(left_s) and left_s >= 0)


def readings(at_s: float, celsius: float) -> dict[str, Reading]:
    return {
        "temperature.max": Reading("temperature.max", celsius, at_s),
        "temperature.headroom": Reading("temperature.headroom", 85.0 - celsius, at_s),
        "memory.available": Reading("memory.available", 4e9 - 1e7 * at_s, at_s),
    }


def test_slopes_and_time_to_trip_come_with_the_ticks() -> None:
    derived = DerivedSignals()
    dice = random.Random(3)

    for at_s, celsius in heating(final=100.0, tau_s=100.0, start=50.0, seconds=60):
        found = derived.update(readings(at_s, celsius + dice.uniform(-0.2, 0.2)), at_s)

    values = {reading.signal: reading.value for reading in found}
    assert values["memory.available.slope"] == pytest.approx(-1e7)
    assert values["temperature.slope"] == pytest.approx(0.31, abs=0.06)
    assert values["temperature.time_to_trip"] == pytest.approx(60.0, rel=0.5)


def test_the_first_ticks_have_no_slope_and_say_so() -> None:
    (slope, *_) = DerivedSignals().update(readings(0.0, 50.0), 0.0)

    assert (slope.value, slope.quality) == (None, Quality.ABSENT)
    assert slope.reason == "needs 2 s of readings"


def test_a_suspect_reading_is_no_sample_and_a_missing_one_starts_afresh() -> None:
    derived = DerivedSignals()
    for at_s in range(5):
        derived.update(readings(float(at_s), 50.0), float(at_s))
    wild = readings(5.0, 50.0)
    wild["memory.available"] = Reading("memory.available", 9e9, 5.0, Quality.SUSPECT, "no")

    kept = derived.update(wild, 5.0)[0]
    gone = derived.update({}, 6.0)[0]
    fresh = derived.update(readings(7.0, 50.0), 7.0)[0]

    assert kept.value == pytest.approx(-1e7)
    assert gone.quality is Quality.ABSENT
    assert fresh.value is None
