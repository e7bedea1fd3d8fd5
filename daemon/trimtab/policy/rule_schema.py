"""The language of rules: conditions on signals, and what they demand of knobs."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import Discriminator, Field, Tag

from trimtab.policy.fields import (
    ClockTime,
    Duration,
    Pace,
    Part,
    Placement,
    Speculation,
    Threads,
    Threshold,
    Tokens,
    VariantName,
)


class SignalTest(Part):
    """One signal against one threshold. Exactly one comparison."""

    signal: str | None = Field(
        None, description="The signal's name. In a leave it may be left out: then it is the when's."
    )
    above: Threshold | None = Field(None, description="True while the value is greater.")
    below: Threshold | None = Field(None, description="True while the value is smaller.")
    is_: Annotated[bool, Field(strict=True)] | None = Field(
        None, alias="is", description="For signals that are true or false."
    )
    rising_faster_than: Threshold | None = Field(
        None, description="True while the value grows faster than this per time."
    )
    falling_faster_than: Threshold | None = Field(
        None, description="True while the value shrinks faster than this per time."
    )
    over: Duration | None = Field(
        None, description="Over how long a trend is taken. Without it: 10s."
    )
    for_: Duration = Field(
        0.0, alias="for", description="How long it must have held without a break."
    )


class AllTest(Part):
    """True if every part is."""

    all: list[ConditionTest] = Field(min_length=1, description="The parts.")


class AnyTest(Part):
    """True if some part is."""

    any: list[ConditionTest] = Field(min_length=1, description="The parts.")


class NotTest(Part):
    """True if the part is false."""

    not_: ConditionTest = Field(alias="not", description="The part.")


class BetweenTest(Part):
    """True between two times of the day, local time; the span may cross midnight."""

    between: list[ClockTime] = Field(
        min_length=2, max_length=2, description="From and until, such as [22:00, 06:00]."
    )


_KINDS: Final = ("all", "any", "not", "between")


def _condition_kind(found: object) -> str | None:
    """Which kind of condition a mapping is; None if it is no mapping at all."""
    if isinstance(found, Part):
        return next(
            (kind for kind in _KINDS if type(found).__name__.lower().startswith(kind)), "signal"
        )
    if not isinstance(found, dict):
        return None
    return next((kind for kind in _KINDS if kind in found), "signal")


ConditionTest: TypeAlias = Annotated[
    Annotated[AllTest, Tag("<all>")]
    | Annotated[AnyTest, Tag("<any>")]
    | Annotated[NotTest, Tag("<not>")]
    | Annotated[BetweenTest, Tag("<between>")]
    | Annotated[SignalTest, Tag("<signal>")],
    Discriminator(
        lambda found: f"<{kind}>" if (kind := _condition_kind(found)) else None,
        custom_error_type="condition",
        custom_error_message="a condition is a mapping with one of signal, all, any, not, between",
    ),
]


class VariantBounds(Part):
    """Which variants remain. at_most and at_least go by the order of knobs.variant."""

    allow: list[VariantName] | None = Field(None, min_length=1, description="Only these.")
    at_most: VariantName | None = Field(None, description="This one or a less precise one.")
    at_least: VariantName | None = Field(None, description="This one or a more precise one.")


class TokenBounds(Part):
    """Which contexts remain."""

    at_most: Tokens | None = Field(None, description="Greatest, in tokens.")
    at_least: Tokens | None = Field(None, description="Least, in tokens.")


class ThreadBounds(Part):
    """Which thread counts remain."""

    at_most: Threads | None = Field(None, description="Most threads.")
    at_least: Threads | None = Field(None, description="Fewest threads.")


class PaceBounds(Part):
    """Which paces remain."""

    at_most: Pace | None = Field(None, description="Fastest.")
    at_least: Pace | None = Field(None, description="Slowest.")


class AllowSpeculation(Part):
    """Which ways of drafting remain."""

    allow: list[Speculation] = Field(min_length=1, description="Only these.")


class AllowPlacement(Part):
    """Which placements of KV remain."""

    allow: list[Placement] = Field(min_length=1, description="Only these.")


_exact_or_bounds = Discriminator(lambda found: "<bounds>" if isinstance(found, dict) else "<exact>")


class Then(Part):
    """What a rule demands of the knobs while it is in force. Rules tighten, they never loosen."""

    variant: (
        Annotated[
            Annotated[VariantName, Tag("<exact>")] | Annotated[VariantBounds, Tag("<bounds>")],
            _exact_or_bounds,
        ]
        | None
    ) = Field(None, description="One variant, or allow, at_most, at_least.")
    context: (
        Annotated[
            Annotated[Tokens, Tag("<exact>")] | Annotated[TokenBounds, Tag("<bounds>")],
            _exact_or_bounds,
        ]
        | None
    ) = Field(None, description="Tokens, or at_most, at_least.")
    speculation: (
        Annotated[
            Annotated[Speculation, Tag("<exact>")] | Annotated[AllowSpeculation, Tag("<bounds>")],
            _exact_or_bounds,
        ]
        | None
    ) = Field(None, description="One way of drafting, or allow.")
    kv_placement: (
        Annotated[
            Annotated[Placement, Tag("<exact>")] | Annotated[AllowPlacement, Tag("<bounds>")],
            _exact_or_bounds,
        ]
        | None
    ) = Field(None, description="memory or disk, or allow.")
    threads: (
        Annotated[
            Annotated[Threads, Tag("<exact>")] | Annotated[ThreadBounds, Tag("<bounds>")],
            _exact_or_bounds,
        ]
        | None
    ) = Field(None, description="Threads, or at_most, at_least.")
    pace: (
        Annotated[
            Annotated[Pace, Tag("<exact>")] | Annotated[PaceBounds, Tag("<bounds>")],
            _exact_or_bounds,
        ]
        | None
    ) = Field(None, description="A share of time, or at_most, at_least.")


class Rule(Part):
    """When something holds, tighten knobs until it is over."""

    name: str = Field(
        min_length=1, max_length=120, description="A sentence; it stands in decisions and logs."
    )
    when: ConditionTest = Field(description="What brings the rule in force.")
    leave: ConditionTest | None = Field(
        None, description="What ends it. Needed wherever when looks at a signal."
    )
    then: Then = Field(description="What it demands.")


for _model in (AllTest, AnyTest, NotTest, Rule):
    _model.model_rebuild()
