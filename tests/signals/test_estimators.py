"""The small estimators that signals are made of."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.signals.estimators import (
    Ewma,
    Hysteresis,
    OutlierFilter,
    Rate,
    StuckDetector,
    Trend,
    Window,
    quantile,
)
from trimtab.signals.histogram import SlidingHistogram

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


def test_the_quantile_is_a_value_that_was_seen() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(range(1, 101), 0.95) == 95
    assert quantile([], 0.5) is None
    assert quantile([7], 0.0) == 7


@given(values=VALUES, ratio=st.floats(0, 1))
def test_a_quantile_has_its_share_at_or_below_it(values: list[float], ratio: float) -> None:
    found = quantile(values, ratio)

    assert found in values
    assert sum(value <= found for value in values) >= ratio * len(values) - 1e-9


def test_a_window_forgets_what_is_older_than_its_length() -> None:
    window = Window(10.0)
    for at_s in range(20):
        window.add(float(at_s), float(at_s))

    assert window.values() == [float(value) for value in range(9, 20)]
    assert window.mean() == 14.0


def test_a_window_keeps_a_bounded_number_of_samples() -> None:
    window = Window(1e9, most=100)
    for at_s in range(1000):
        window.add(float(at_s), 1.0)

    assert len(window) == 100


def test_an_ewma_has_taken_over_63_percent_after_its_time_constant() -> None:
    mean = Ewma(10.0)
    mean.add(0.0, 0.0)

    assert mean.add(10.0, 1.0) == pytest.approx(1 - 1 / math.e)


def test_an_ewma_does_not_depend_on_how_often_it_is_fed() -> None:
    often, seldom = Ewma(10.0), Ewma(10.0)
    often.add(0.0, 0.0)
    seldom.add(0.0, 0.0)
    for step in range(1, 101):
        often.add(step / 10, 5.0)

    assert often.value == pytest.approx(seldom.add(10.0, 5.0))


def test_a_trend_finds_the_slope_of_large_numbers_at_late_times() -> None:
    trend = Trend(10.0)
    for step in range(20):
        trend.add(1e9 + step, 8e9 - 20e6 * step)

    assert trend.slope_per_s() == pytest.approx(-20e6)


def test_a_trend_of_one_moment_has_no_slope() -> None:
    trend = Trend(10.0)
    trend.add(1.0, 5.0)
    trend.add(1.0, 9.0)

    assert trend.slope_per_s() is None


@given(slope=st.floats(-1e6, 1e6), noise=st.floats(0, 10))
def test_a_trend_sees_through_noise(slope: float, noise: float) -> None:
    dice = random.Random(1)
    trend = Trend(60.0)
    for step in range(60):
        trend.add(float(step), slope * step + dice.uniform(-noise, noise))

    assert trend.slope_per_s() == pytest.approx(slope, abs=noise / 10 + abs(slope) * 1e-6 + 1e-6)


def feed(condition: Hysteresis, values: list[float | None]) -> list[bool]:
    return [condition.add(float(at_s), value) for at_s, value in enumerate(values)]


def test_a_condition_for_too_much_stays_until_the_leave_threshold() -> None:
    hot = Hysteresis(enter=80, leave=72)

    assert feed(hot, [79, 80, 75, 73, 72, 79, 80]) == [
        False, True, True, True, False, False, True,
    ]  # fmt: skip


def test_a_condition_for_too_little_works_the_other_way_round() -> None:
    low = Hysteresis(enter=512, leave=768)

    assert feed(low, [600, 512, 700, 768, 600]) == [False, True, True, False, False]


def test_a_condition_must_hold_without_a_break() -> None:
    hot = Hysteresis(enter=80, leave=72, enter_for_s=2)

    assert feed(hot, [80, 80, 79, 80, 81, 82]) == [False] * 5 + [True]


def test_a_missing_value_changes_nothing_but_breaks_the_wait() -> None:
    hot = Hysteresis(enter=80, leave=72, enter_for_s=2)

    assert feed(hot, [80, None, 80, 80, 80, None]) == [False] * 4 + [True, True]


@given(values=st.lists(st.floats(0, 100), max_size=60))
def test_within_the_band_a_condition_never_changes(values: list[float]) -> None:
    hot = Hysteresis(enter=60, leave=40)
    before = False
    for at_s, value in enumerate(values):
        after = hot.add(float(at_s), value)
        if 40 < value < 60:
            assert after is before
        before = after


def test_one_wild_sample_is_doubted_and_a_second_believed() -> None:
    outliers = OutlierFilter(step=12, step_per_s=8)

    believed = [outliers.add(float(at_s), v) for at_s, v in enumerate([45, 46, 127, 46, 127, 126])]

    assert believed == [True, True, False, True, False, True]


def test_a_change_is_believed_after_a_long_silence() -> None:
    outliers = OutlierFilter(step=12, step_per_s=8)
    outliers.add(0.0, 20.0)

    assert outliers.add(60.0, 90.0)


def test_a_value_is_stuck_after_long_enough_and_not_before() -> None:
    stuck = StuckDetector(after_s=10, samples=5)

    seen = [stuck.add(at_s * 2.0, 100.0) for at_s in range(8)]

    assert seen == [False] * 5 + [True] * 3
    assert not stuck.add(16.0, 99.5)


def test_a_counter_becomes_a_rate_and_a_reset_gives_none() -> None:
    rate = Rate()

    seen = [rate.add(float(at_s), count) for at_s, count in enumerate([100, 150, 150, 20, 30])]

    assert seen == [None, 50.0, 0.0, None, 10.0]


def test_a_counter_that_wraps_goes_on() -> None:
    rate = Rate(wraps_at=1000)
    rate.add(0.0, 990)

    assert rate.add(2.0, 10) == 10.0


def test_a_rate_at_one_moment_is_none() -> None:
    rate = Rate()
    rate.add(1.0, 5)

    assert rate.add(1.0, 6) is None


@given(values=st.lists(st.floats(1e-4, 100), min_size=1, max_size=200), ratio=st.floats(0, 1))
def test_a_histograms_quantile_is_at_most_5_percent_too_large(
    values: list[float], ratio: float
) -> None:
    histogram = SlidingHistogram(60.0)
    for value in values:
        histogram.add(1.0, value)

    exact = quantile(values, ratio)
    found = histogram.quantile(ratio)

    assert exact is not None
    assert found is not None
    assert exact * 0.999 <= found <= exact * 1.0501


def test_a_histogram_forgets_slice_by_slice() -> None:
    histogram = SlidingHistogram(60.0, slices=12)
    histogram.add(0.0, 9.0)
    for at_s in range(5, 60, 5):
        histogram.add(float(at_s), 1.0)
    before = histogram.count

    histogram.forget(60.0)

    assert (before, histogram.count) == (12, 11)
    assert histogram.quantile(1.0) == pytest.approx(1.0, rel=0.051)


@pytest.mark.parametrize("silence_s", [59.0, 61.0, 65.0, 1000.0, 1e9])
def test_a_histogram_survives_a_long_silence(silence_s: float) -> None:
    histogram = SlidingHistogram(60.0)
    histogram.add(1e6, 5.0)

    histogram.add(1e6 + silence_s, 2.0)

    assert histogram.count == (2 if silence_s < 60 else 1)


def test_extreme_values_stay_inside_the_histogram() -> None:
    histogram = SlidingHistogram(60.0)
    for value in (0.0, -1.0, 1e12, 1e-12):
        histogram.add(0.0, value)

    assert histogram.count == 4
    assert histogram.quantile(0.5) == pytest.approx(1e-5)
