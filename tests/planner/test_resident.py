"""What workers hold is told in one measure for all variants."""

from __future__ import annotations

from planner_world import LADDER, MIB

from policies_for_tests import policy
from trimtab.domain.knobs import OperatingPoint
from trimtab.planner import State
from trimtab.planner.assess import assess
from trimtab.planner.resident import estimates


def test_nothing_is_estimated_before_something_was_measured() -> None:
    assert estimates(LADDER, {}) == {}


def test_a_variant_that_was_never_loaded_is_told_in_the_measure_of_those_that_were() -> None:
    told = estimates(LADDER, {"fp32": 650 * MIB, "int8": 236 * MIB})

    assert told == {"fp32": 650 * MIB, "int8": 236 * MIB, "int4": 136 * MIB}


def test_what_was_measured_of_another_model_says_nothing() -> None:
    assert estimates(LADDER, {"q8": 100 * MIB}) == {}


def test_a_smaller_variant_is_predicted_to_hold_less_though_it_was_never_measured() -> None:
    here = State(model=LADDER, resident={"int8": 190 * MIB}, point=OperatingPoint("int8", 2048))
    judged = assess(here, policy(), policy().knobs, LADDER, 100.0)
    held = {one.point.variant: one.predicted.memory_bytes for one in judged}

    assert held == {"fp32": 590 * MIB, "int8": 190 * MIB, "int4": 90 * MIB}
