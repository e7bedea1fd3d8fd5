"""The demo's limits follow from the memory that is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.demo.plan import (
    MIB,
    SAFE_BYTES,
    TooSmallError,
    make_plan,
    policy_text,
    shrinking,
)
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.planner.predict import loaded_bytes
from trimtab.policy.compile import DeviceVariants
from trimtab.policy.load import load_policy

SMOL_BYTES = {"fp32": 660 * MIB, "int8": 219 * MIB, "int4_mixed": 208 * MIB, "int4": 168 * MIB}


def model(**weights: int) -> ModelSpec:
    variants = tuple(
        VariantSpec(name, name, f"/m/{name}", held, held, 46080, 1.0 - 0.1 * place, "f", 8192)
        for place, (name, held) in enumerate(weights.items())
    )
    return ModelSpec("m", "M", "llama", 8192, 30, 3, 64, "t", True, variants)


SMOL = model(**SMOL_BYTES)


def test_the_ladder_has_only_variants_that_give_memory_back() -> None:
    assert [variant.name for variant in shrinking(SMOL.variants)] == ["fp32", "int8", "int4"]


@pytest.mark.parametrize("available", [1600 * MIB, 4096 * MIB, 64 * 1024 * MIB])
def test_the_best_variant_starts_with_room_and_a_squeeze_of_a_few_hundred_mib_takes_it(
    available: int,
) -> None:
    plan = make_plan(SMOL, available)
    best = SMOL.variants[0]
    kv = best.kv_bytes_per_token * plan.context
    left = available - loaded_bytes(best, {}) - kv

    assert plan.ladder[0] == "fp32"
    assert left > plan.leave_bytes > plan.headroom_bytes >= SAFE_BYTES
    assert left - plan.first_squeeze_bytes - 100 * MIB < plan.headroom_bytes
    assert 150 * MIB <= plan.first_squeeze_bytes < plan.second_squeeze_bytes <= 900 * MIB


def test_the_smallest_variant_fits_under_the_whole_squeeze() -> None:
    plan = make_plan(SMOL, 4096 * MIB)
    smallest = SMOL.variants[-1]
    left = 4096 * MIB - loaded_bytes(smallest, {}) - plan.second_squeeze_bytes

    assert left > plan.headroom_bytes


def test_with_less_memory_the_demo_begins_with_a_smaller_variant() -> None:
    assert make_plan(SMOL, 900 * MIB).ladder == ("int8", "int4")


def test_too_little_memory_is_said_with_what_would_be_enough() -> None:
    with pytest.raises(TooSmallError, match=r"300 MiB of memory are available.*needs \d+ MiB"):
        make_plan(SMOL, 300 * MIB)


def test_variants_that_hold_the_same_memory_can_show_nothing() -> None:
    with pytest.raises(TooSmallError, match="hold the same memory"):
        make_plan(model(fp32=30 * MIB, int8=29 * MIB), 4096 * MIB)


def test_the_policy_is_one_that_the_daemon_takes(tmp_path: Path) -> None:
    plan = make_plan(SMOL, 23 * 1024 * MIB + 12345)
    (tmp_path / "own.yaml").write_text(policy_text(plan), encoding="utf-8")
    names = tuple(variant.name for variant in SMOL.variants)
    result = load_policy("own", tmp_path, DeviceVariants(names))
    policy = result.require()

    assert result.problems == ()
    assert policy.memory is not None
    assert policy.memory.headroom_bytes == plan.headroom_bytes
    assert policy.memory.leave_bytes == plan.leave_bytes
    assert policy.knobs.variants == plan.ladder


def test_a_context_that_is_shorter_than_the_demos_is_kept() -> None:
    assert make_plan(replace(SMOL, context_length=512), 4096 * MIB).context == 512
