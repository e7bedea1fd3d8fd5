"""Which variants a device should have: a ladder within memory, policy and sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies_for_tests import policy
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.policy.compiled import Floor, MemoryLimit
from trimtab.profile.recommend import memory_bytes, recommend

MIB = 2**20
ROOM = 4096 * MIB


def variant(name: str, mib: int, quality: float, tps: float) -> VariantSpec:
    return VariantSpec(
        name, name, "", mib * MIB, mib * MIB, 46080, quality, "same", 8192, 1.0, tps, 100.0
    )


MODEL = ModelSpec(
    "m",
    "m",
    "llama",
    8192,
    30,
    3,
    64,
    "",
    True,
    (
        variant("fp32", 2000, 1.0, 10.0),
        variant("int8", 600, 0.99, 30.0),
        variant("int4_mixed", 590, 0.85, 31.0),
        variant("int4", 300, 0.7, 50.0),
    ),
)


def taken(**changes: object) -> dict[str, str]:
    room = changes.pop("room", ROOM)
    assert isinstance(room, int)
    advice = recommend(MODEL, policy(**changes), room, frozenset())
    return {one.variant: one.why for one in advice if one.take}


def test_a_ladder_goes_from_the_best_that_fits_down_to_the_smallest() -> None:
    found = taken()

    assert list(found) == ["fp32", "int8", "int4"]
    assert "best that fits" in found["fp32"]
    assert "3.0 × as fast" in found["int8"]


def test_what_doesnt_fit_beside_the_headroom_is_left() -> None:
    found = taken(room=memory_bytes(MODEL.variants[1]) + 512 * MIB)

    assert list(found) == ["int8", "int4"]


def test_headroom_counts() -> None:
    room = memory_bytes(MODEL.variants[1]) + 100 * MIB

    assert "int8" in taken(room=room, memory=MemoryLimit(50 * MIB, 60 * MIB))
    assert "int8" not in taken(room=room, memory=MemoryLimit(200 * MIB, 300 * MIB))


def test_a_variant_that_is_hardly_smaller_and_not_as_good_is_left() -> None:
    advice = recommend(MODEL, policy(), ROOM, frozenset({"int8"}))

    mixed = next(one for one in advice if one.variant == "int4_mixed")
    assert not mixed.take
    assert "hardly smaller than int8" in mixed.why
    assert [one.variant for one in advice if one.here] == ["int8"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"floor": Floor(0.9, 256)}, "under the policy's floor"),
        ({"knobs": replace(policy().knobs, variants=("fp32", "int8"))}, "doesn't use it"),
    ],
)
def test_what_the_policy_excludes_is_left_with_the_reason(
    changes: dict[str, object], words: str
) -> None:
    advice = recommend(MODEL, policy(**changes), ROOM, frozenset())

    smallest = advice[-1]
    assert not smallest.take
    assert words in smallest.why


def test_where_nothing_fits_nothing_is_advised() -> None:
    assert taken(room=100 * MIB) == {}
