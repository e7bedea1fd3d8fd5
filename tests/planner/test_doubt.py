"""How far memory predictions are trusted, and what that does to the choice."""

from __future__ import annotations

import pytest
from planner_world import LADDER, MIB, World

from policies_for_tests import policy
from trimtab.planner.doubt import CAUTION, PRIOR_RATIO, Doubt
from trimtab.planner.predict import loaded_bytes

FP32_BYTES = loaded_bytes(LADDER.variants[0], {})
CONVERSATION_BYTES = 32 * MIB  # of the smallest context
LEAVE_BYTES = 768 * MIB


def test_without_data_the_margin_is_wide() -> None:
    assert Doubt().margin_ratio("fp32", measured=False) == pytest.approx(CAUTION * PRIOR_RATIO)


def test_first_loads_that_were_predicted_well_narrow_the_margin_of_what_was_never_loaded() -> None:
    margins = [Doubt().margin_ratio("fp32", measured=False)]
    doubt = Doubt()
    for _ in range(4):
        doubt = doubt.first(100.0, 101.0)
        margins.append(doubt.margin_ratio("fp32", measured=False))

    assert margins == sorted(margins, reverse=True)
    assert margins[-1] < 0.65 * margins[0]


def test_a_first_load_that_was_predicted_badly_widens_it() -> None:
    doubt = Doubt().first(100.0, 130.0)

    assert doubt.margin_ratio("fp32", measured=False) > 2 * CAUTION * PRIOR_RATIO


def test_what_was_loaded_here_is_doubted_only_as_far_as_its_loads_differ() -> None:
    steady = Doubt().again("int8", 100.0, 100.0)
    shaky = Doubt().again("int8", 100.0, 120.0)

    assert steady.margin_ratio("int8", measured=True) == 0
    assert shaky.margin_ratio("int8", measured=True) > 0.1
    assert shaky.margin_ratio("fp32", measured=True) == 0


def climbing(spare_bytes: int) -> World:
    """int8 has been loaded and fp32 hasn't; so much more is there than fp32 should need."""
    world = World(policy(), free_bytes=1000 * MIB).start()
    world.free_bytes = FP32_BYTES + CONVERSATION_BYTES + LEAVE_BYTES + spare_bytes
    return world.run(120)


def test_a_step_up_to_a_variant_that_was_never_loaded_needs_room_for_the_doubt() -> None:
    doubted_bytes = FP32_BYTES * climbing(0).state.doubt.margin_ratio("fp32", measured=False)

    assert doubted_bytes > 50 * MIB
    assert climbing(int(doubted_bytes) - 2 * MIB).point.variant == "int8"
    assert climbing(int(doubted_bytes) + 2 * MIB).point.variant == "fp32"


def test_once_it_was_loaded_the_prediction_is_trusted() -> None:
    world = World(policy()).start()  # fp32 is loaded, and measured
    world.free_bytes = 1000 * MIB
    world.run(10)
    world.free_bytes = FP32_BYTES + CONVERSATION_BYTES + LEAVE_BYTES + 2 * MIB
    world.run(120)

    assert world.point.variant == "fp32"


def test_the_doubt_is_no_reason_to_park_while_something_may_fit() -> None:
    world = World(policy())
    world.free_bytes = 512 * MIB + loaded_bytes(LADDER.variants[2], {}) + MIB
    world.start()

    assert world.point.variant == "int4"


def test_the_record_says_how_much_more_it_may_be() -> None:
    world = World(policy(), free_bytes=1000 * MIB).start()

    predicted = world.decisions[0].predicted
    assert predicted is not None
    assert predicted.doubt_bytes == pytest.approx(predicted.memory_bytes * 0.1, rel=0.01)
