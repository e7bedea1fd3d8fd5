"""The model of a device: what it says of points that were never measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.domain.decisions import Source
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.profile import (
    STOLEN,
    Device,
    Kind,
    Measurement,
    Profile,
    TaskQuality,
    VariantQuality,
)
from trimtab.planner.device_fit import calibrate, fit, from_build, line

BASES = {"fp32": 0.050, "int8": 0.025, "int4": 0.020}
SLOPE = 12e-6
SPEED_UP = 0.6  # what two threads take, as a share of one
MB = 10**6


def variant(name: str, size: int) -> VariantSpec:
    return VariantSpec(name, name, "", size, size, 46080, 1.0, "same", 8192, 0.5, 10.0, 100.0)


MODEL = ModelSpec(
    "m", "m", "llama", 8192, 30, 3, 64, "", True,
    (variant("fp32", 700 * MB), variant("int8", 230 * MB), variant("int4", 170 * MB)),
)  # fmt: skip


def token_s(name: str, tokens: int, threads: int) -> float:
    """The device that is modelled."""
    base = BASES[name] * (SPEED_UP if threads == 2 else 1)
    return base + SLOPE * tokens


def profile(*measurements: Measurement) -> Profile:
    return Profile(Device("", "", 2, 8 * 2**30, ""), {}, "m", {}, "quick", 0.0, None, measurements)


def decode(name: str, tokens: int, threads: int = 1) -> Measurement:
    return Measurement(Kind.DECODE, (token_s(name, tokens, threads),), name, threads, tokens)


def resident(name: str, size: int) -> Measurement:
    return Measurement(Kind.RESIDENT, (float(size),), name, 1)


FEW = profile(
    *(decode(name, tokens) for name in BASES for tokens in (64, 512)),
    decode("int4", 64, threads=2),
    resident("fp32", 707 * MB),
    resident("int8", 228 * MB),
)


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("tokens", [0, 200, 1024, 4096])
def test_a_token_is_predicted_at_contexts_that_were_not_measured(name: str, tokens: int) -> None:
    found = fit(FEW).decode_s(MODEL.variant(name) or MODEL.variants[0], tokens, 1)

    assert found is not None
    assert found.source is Source.FITTED
    assert found.value == pytest.approx(token_s(name, tokens, 1), rel=0.01)


def test_a_measured_point_is_predicted_as_it_was_measured() -> None:
    found = fit(FEW).decode_s(MODEL.variants[0], 512, 1)

    assert found is not None
    assert (found.value, found.source) == (token_s("fp32", 512, 1), Source.MEASURED)


def test_other_threads_follow_from_the_variant_that_was_measured_with_both() -> None:
    found = fit(FEW).decode_s(MODEL.variants[0], 64, 2)

    assert found is not None
    assert found.source is Source.SCALED
    assert found.value == pytest.approx(token_s("fp32", 64, 2), rel=0.1)


def test_threads_that_no_variant_was_measured_with_follow_from_bandwidth() -> None:
    bandwidths = [
        Measurement(Kind.BANDWIDTH, (rate,), threads=threads)
        for threads, rate in ((1, 6e9), (4, 12e9))
    ]
    device = fit(profile(*FEW.measurements, *bandwidths))

    one, four = device.decode_s(MODEL.variants[1], 64, 1), device.decode_s(MODEL.variants[1], 64, 4)

    assert one is not None
    assert four is not None
    assert four.value == pytest.approx(one.value / 2)


def test_a_variant_that_was_never_measured_follows_from_its_bytes() -> None:
    half = variant("int5", 114 * MB)

    found = fit(FEW).decode_s(half, 64, 1)

    assert found is not None
    assert found.source is Source.BYTES
    assert found.value == pytest.approx(token_s("int8", 64, 1) * 0.58, rel=0.05)


def test_what_is_known_less_well_has_the_larger_error() -> None:
    device = fit(FEW)
    spec = MODEL.variants[0]
    found = [
        device.decode_s(spec, 64, 1),
        device.decode_s(spec, 2048, 1),
        device.decode_s(spec, 64, 2),
        device.decode_s(variant("new", 90 * MB), 64, 1),
    ]

    errors = [one.sigma_ratio for one in found if one is not None]

    assert len(errors) == 4
    assert errors == sorted(errors)


def test_points_that_lie_off_their_curve_widen_its_error() -> None:
    off = [(64, 0.020), (512, 0.034), (1024, 0.026), (2048, 0.048)]
    wavering = profile(*(Measurement(Kind.DECODE, (s,), "int8", 1, n) for n, s in off))
    steady = fit(FEW).decode_s(MODEL.variants[1], 1500, 1)

    found = fit(wavering).decode_s(MODEL.variants[1], 1500, 1)

    assert found is not None
    assert steady is not None
    assert found.sigma_ratio > 2 * steady.sigma_ratio


def test_without_a_profile_speeds_are_those_seen_at_the_build() -> None:
    never = replace(MODEL.variants[2], name="new", decode_tps=None, prefill_tps=None)
    device = from_build(replace(MODEL, variants=(*MODEL.variants, never)))

    own, two, other = (
        device.decode_s(MODEL.variants[0], 384, 1),
        device.decode_s(MODEL.variants[0], 384, 2),
        device.decode_s(never, 384, 1),
    )

    assert own is not None
    assert two is not None
    assert other is not None
    assert own.value == pytest.approx(0.1)
    assert own.value / 2 < two.value < own.value
    assert {one.source for one in (own, two, other)} == {Source.BUILD}
    assert [one.sigma_ratio for one in (own, two, other)] == [0.35, 0.35, 0.35]


def test_nothing_measured_gives_no_speed_rather_than_a_guess() -> None:
    device = fit(profile())

    assert device.decode_s(MODEL.variants[0], 64, 1) is None
    assert device.first_token_s(MODEL.variants[0], 64, 1) is None


def test_a_first_token_grows_with_the_square_of_the_prompt() -> None:
    def seconds(tokens: int) -> float:
        return tokens * (2.2e-3 + 8e-7 * tokens)

    device = fit(
        profile(
            *(Measurement(Kind.TTFT, (seconds(tokens),), "int8", 1, tokens) for tokens in (64, 512))
        )
    )

    found = device.first_token_s(MODEL.variants[1], 2048, 1)

    assert found is not None
    assert found.value == pytest.approx(seconds(2048), rel=0.01)


def test_memory_is_what_was_loaded_and_the_cache_by_arithmetic() -> None:
    found = fit(FEW).memory_bytes(MODEL.variants[1], 1000)

    assert found.value == pytest.approx(228 * MB + 46080 * 1000)


def test_working_memory_is_taken_once_and_grows_little_with_the_prompt() -> None:
    used = [
        Measurement(Kind.IN_USE, (230.0 * MB + 1000 * tokens,), "int8", 1, tokens)
        for tokens in (64, 512)
    ]
    device = fit(profile(*FEW.measurements, *used))

    found = device.memory_bytes(MODEL.variants[1], 2000)

    assert found.value == pytest.approx(230 * MB + 1000 * 2000 + 46080 * 2000, rel=1e-4)


def test_a_stolen_core_costs_what_it_was_measured_to_cost() -> None:
    slow = Measurement(Kind.DECODE, (0.06,), "int4", 2, 64, STOLEN)
    device = fit(profile(*FEW.measurements, slow))

    alone = device.decode_s(MODEL.variants[0], 64, 2)
    beside = device.decode_s(MODEL.variants[0], 64, 2, stolen=True)

    assert alone is not None
    assert beside is not None
    assert beside.value / alone.value == pytest.approx(0.06 / token_s("int4", 64, 2))


def test_disturbed_samples_give_way_to_undisturbed_ones() -> None:
    one = Measurement(Kind.DECODE, (0.02, 0.05, 0.06), "int8", 1, 64, wait_ratios=(0.01, 0.4, 0.6))

    assert one.value == 0.02
    assert not one.disturbed
    assert replace(one, wait_ratios=(0.2, 0.4, 0.6)).value == 0.05
    assert replace(one, wait_ratios=(0.2, 0.4, 0.6)).disturbed
    assert replace(one, marks=("hot",)).disturbed


def test_a_calibrated_model_has_this_devices_figures_and_keeps_the_rest() -> None:
    task = TaskQuality("code", 100, 9.0, 8.0, 10.0, 0.2, 0.1, 0.3, 0.8)
    known = replace(FEW, quality=(VariantQuality("int4", (task,)),))

    model = calibrate(MODEL, known, threads=1)

    int4 = model.variant("int4")
    assert int4 is not None
    assert int4.decode_tps == pytest.approx(1 / token_s("int4", 384, 1))
    assert int4.quality == pytest.approx(0.8187, abs=1e-3)
    assert int4.prefill_tps == 100.0  # never measured: the manifest's stays
    assert [one.name for one in model.variants] == ["fp32", "int8", "int4"]


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(1e-4, 10.0)), min_size=2, max_size=8))
def test_more_tokens_are_never_predicted_to_take_less(points: list[tuple[int, float]]) -> None:
    base, slope = line(points)

    assert slope >= 0
    assert base >= 0
    assert base + slope > 0
