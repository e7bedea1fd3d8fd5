"""Sentences of decisions that the demo brings about."""

from __future__ import annotations

from trimtab.domain.decisions import Decision, Direction, Trigger
from trimtab.domain.knobs import OperatingPoint
from trimtab.telemetry.explain import headline

MIB = 2**20
FP32, INT8 = OperatingPoint("fp32", 1024), OperatingPoint("int8", 1024)


def decision(direction: Direction, trigger: Trigger, source: OperatingPoint) -> Decision:
    return Decision(
        id=1,
        at_s=1.0,
        direction=direction,
        trigger=trigger,
        source=source,
        target=INT8,
        predicted=None,
        runner_up=None,
        excluded=(),
        policy="own",
        revision="r",
    )


def test_sizes_near_each_other_stay_apart_on_a_large_machine() -> None:
    trigger = Trigger("memory.available", 21990 * MIB, 22100 * MIB)

    assert headline(decision(Direction.DOWN, trigger, FP32)) == (
        "Stepped down from fp32 to int8: 21.47 GiB of memory were available, "
        "under the limit of 21.58 GiB."
    )


def test_a_step_down_before_the_limit_is_reached_says_what_would_reach_it() -> None:
    text = "900 MiB are available, and a conversation would go under the limit of 880 MiB"
    trigger = Trigger("memory.available", 900 * MIB, 880 * MIB, text=text)

    assert headline(decision(Direction.DOWN, trigger, FP32)) == (
        f"Stepped down from fp32 to int8: {text}."
    )


def test_a_step_that_is_given_up_is_not_told_as_a_step() -> None:
    trigger = Trigger("memory.available", 480 * MIB, 512 * MIB)

    assert headline(decision(Direction.DOWN, trigger, INT8)).startswith(
        "Gave up the step under way and kept int8, 1024 tokens: "
    )
