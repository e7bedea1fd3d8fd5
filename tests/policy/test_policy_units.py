import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.domain.readings import Unit
from trimtab.policy.units import (
    QuantityError,
    exact_size,
    format_quantity,
    parse_any,
    parse_any_slope,
    parse_quantity,
    parse_slope,
    unit_example,
)


@pytest.mark.parametrize(
    ("written", "unit", "value"),
    [
        ("512MiB", Unit.BYTES, 512 * 2**20),
        ("1.5 GiB", Unit.BYTES, 1.5 * 2**30),
        ("500MB", Unit.BYTES, 5e8),
        (0, Unit.BYTES, 0),
        ("80C", Unit.CELSIUS, 80),
        ("-5°C", Unit.CELSIUS, -5),
        ("300ms", Unit.SECONDS, 0.3),
        ("1h30m", Unit.SECONDS, 5400),
        ("2min", Unit.SECONDS, 120),
        ("25%", Unit.RATIO, 0.25),
        (0.65, Unit.RATIO, 0.65),
        ("20MiB/s", Unit.BYTES_PER_S, 20 * 2**20),
        ("6C/min", Unit.CELSIUS_PER_S, 0.1),
        (4, Unit.COUNT, 4),
        ("20 tokens/s", Unit.TOKENS_PER_S, 20),
        ("1.5GHz", Unit.HERTZ, 1.5e9),
        (True, Unit.BOOL, 1),
    ],
)
def test_a_quantity_becomes_its_base_unit(written: object, unit: Unit, value: float) -> None:
    assert parse_quantity(written, unit) == pytest.approx(value)


@pytest.mark.parametrize(
    ("written", "unit", "part", "suggestion"),
    [
        ("512", Unit.BYTES, "without a unit", "512MiB"),
        (512, Unit.BYTES, "without a unit", "512MiB"),
        ("512mib", Unit.BYTES, "written 'MiB'", "512MiB"),
        ("512MiB", Unit.SECONDS, "a time is wanted", ""),
        ("80F", Unit.CELSIUS, "Celsius", "27C"),
        ("-3s", Unit.SECONDS, "negative", ""),
        (-1, Unit.COUNT, "negative", ""),
        (10, Unit.RATIO, "more than 100%", "10%"),
        ("120%", Unit.RATIO, "more than 100%", ""),
        (math.nan, Unit.RATIO, "finite", ""),
        (math.inf, Unit.COUNT, "finite", ""),
        ("1e400s", Unit.SECONDS, "wanted", ""),
        ([1], Unit.BYTES, "a list", ""),
        (None, Unit.BYTES, "nothing", ""),
        (True, Unit.SECONDS, "True", ""),
        ("on", Unit.BOOL, "true and false", "true"),
        ("fast", Unit.SECONDS, "a time is wanted", ""),
    ],
)
def test_a_wrong_quantity_says_what_is_wanted(
    written: object, unit: Unit, part: str, suggestion: str
) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(written, unit)

    assert part in caught.value.message
    assert caught.value.suggestion == suggestion


def test_a_slope_needs_a_time_and_is_above_zero() -> None:
    assert parse_slope("20MiB/s", Unit.BYTES) == 20 * 2**20
    assert parse_slope("60%/min", Unit.RATIO) == pytest.approx(0.01)
    for wrong in ("20MiB", "0MiB/s", "-1MiB/s", 5, "20C/s"):
        with pytest.raises(QuantityError):
            parse_slope(wrong, Unit.BYTES)
    with pytest.raises(QuantityError, match="no trend"):
        parse_slope("1/s", Unit.BOOL)


def test_a_signal_of_unknown_unit_takes_any_quantity() -> None:
    assert parse_any("10%") == pytest.approx(0.1)
    assert parse_any(12.5) == 12.5
    assert parse_any("2GiB") == 2 * 2**30
    assert parse_any(True) == 1
    assert parse_any_slope("5/min") == pytest.approx(5 / 60)
    assert parse_any_slope("2C/s") == 2
    with pytest.raises(QuantityError):
        parse_any("5 bananas")
    with pytest.raises(QuantityError):
        parse_any_slope("5")


@given(st.integers(0, 2**50))
@settings(deadline=None)
def test_an_exact_size_is_read_back_as_the_same_bytes(size_bytes: int) -> None:
    assert int(parse_quantity(exact_size(size_bytes), Unit.BYTES)) == size_bytes


@pytest.mark.parametrize("unit", list(Unit))
def test_every_unit_has_an_example_that_is_read_and_printed_alike(unit: Unit) -> None:
    example = unit_example(unit)

    value = parse_quantity(True if unit is Unit.BOOL else example, unit)

    assert format_quantity(value, unit) == example


@given(
    st.text(max_size=30) | st.floats() | st.integers() | st.none() | st.booleans(),
    st.sampled_from(Unit),
)
@settings(deadline=None)
def test_reading_a_quantity_is_total(found: object, unit: Unit) -> None:
    try:
        value = parse_quantity(found, unit)
    except QuantityError:
        value = 0.0

    assert math.isfinite(value)
