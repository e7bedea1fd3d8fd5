"""The language of scenario tests: a device, a timeline, and what is expected."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from trimtab.domain.readings import Unit
from trimtab.policy.fields import (
    Celsius,
    ClockTime,
    Duration,
    Pace,
    Part,
    Ratio,
    Size,
    Threads,
    Threshold,
    VariantName,
    quantity,
    text_schema,
    written,
)

Rate = Annotated[
    float,
    BeforeValidator(quantity(Unit.TOKENS_PER_S)),
    text_schema("token rate", "20tokens/s", number=True),
]
Bandwidth = Annotated[
    float, BeforeValidator(quantity(Unit.BYTES_PER_S)), text_schema("size per time", "25GB/s")
]
TokenCount = Annotated[int, Field(ge=1, le=10**7)]
SignalName = Annotated[str, Field(min_length=1, max_length=200)]
Times = Annotated[int, Field(ge=0, le=10**6)]

_word_or_mapping = Discriminator(lambda found: "<mapping>" if isinstance(found, dict) else "<word>")
_one_or_list = Discriminator(lambda found: "<list>" if isinstance(found, list) else "<one>")


class HeatFile(Part):
    """How the board warms: towards `full` under load at full pace, towards `rest` without."""

    rest: Celsius = Field(description="Where it ends up when idle.")
    full: Celsius = Field(description="Where it ends up under load at full pace.")
    time: Duration = Field(gt=0, description="Time constant.")


class DeviceFile(Part):
    """The device."""

    memory: Size = Field(gt=0, description="All of its memory.")
    others: Size = Field(description="What everything else on it holds.")
    bandwidth: Bandwidth = written("10GB/s", description="Memory bandwidth: scales all speeds.")
    threads: Threads = Field(1, description="Engine threads.")
    heat: HeatFile | None = Field(None, description="Without it there is no thermal sensor.")


class VariantFile(Part):
    """One variant; speeds are at 10GB/s of memory bandwidth."""

    memory: Size = Field(gt=0, description="What its weights hold.")
    quality: Ratio = Field(gt=0, description="exp(−mean KL to the best).")
    speed: Rate = Field(gt=0, description="Tokens generated a second.")
    prefill: Rate = Field(gt=0, description="Prompt tokens read a second.")
    load: Duration = Field(description="Time to load it.")


class CatalogFile(Part):
    """The model and its variants, most precise first."""

    context: TokenCount = Field(description="Most tokens that it was built for.")
    kv_per_token: Size = Field(gt=0, description="KV cache of one token.")
    variants: dict[VariantName, VariantFile] = Field(min_length=1, description="By name.")


class RequestFile(Part):
    """One request."""

    prompt: TokenCount = Field(description="Tokens of the prompt.")
    answer: TokenCount = Field(description="Tokens of the answer.")


class RequestsFile(RequestFile):
    """A request now, and another one each time."""

    every: Duration = Field(ge=1, description="Time between two requests.")


class RepeatFile(Part):
    """The same again."""

    every: Duration = Field(ge=1, description="Time from one to the next.")
    times: Annotated[int, Field(ge=2, le=10_000)] = Field(description="How often in all.")


class EventFile(Part):
    """What happens at one time. Several fields happen together."""

    at: Duration = Field(description="When, from the scenario's start.")
    over: Duration = Field(0.0, description="How long others and set take to arrive, evenly.")
    repeat: RepeatFile | None = Field(None, description="The same again, later.")
    others: Size | None = Field(None, description="What everything else holds from then on.")
    set: dict[SignalName, Threshold] = Field({}, description="Signals and their new values.")
    absent: list[SignalName] = Field([], description="Signals that can't be read any more.")
    requests: (
        Annotated[
            Annotated[Literal["none"], Tag("<word>")] | Annotated[RequestsFile, Tag("<mapping>")],
            _word_or_mapping,
        ]
        | None
    ) = Field(None, description="A stream of requests from then on, or none.")
    request: RequestFile | None = Field(None, description="One request.")
    crash: bool = Field(False, description="The serving worker dies.")
    fails: list[VariantName] | None = Field(None, description="Variants that don't load now.")
    pin: dict[str, str | int | float] | None = Field(None, description="Knobs that a person pins.")
    unpin: bool = Field(False, description="The pin is taken off.")
    policy: str | None = Field(None, description="Another policy comes in force.")


class BoundsFile(Part):
    """A number within bounds."""

    at_most: TokenCount | None = Field(None, description="Greatest.")
    at_least: TokenCount | None = Field(None, description="Least.")


class PaceBoundsFile(Part):
    """A pace within bounds."""

    at_most: Pace | None = Field(None, description="Fastest.")
    at_least: Pace | None = Field(None, description="Slowest.")


class SizeBoundsFile(Part):
    """A size within bounds."""

    at_most: Size | None = Field(None, description="Greatest.")
    at_least: Size | None = Field(None, description="Least.")


class StateFile(Part):
    """What may be said of one moment. Several fields hold together."""

    variant: (
        Annotated[
            Annotated[VariantName, Tag("<one>")]
            | Annotated[list[VariantName], Field(min_length=1), Tag("<list>")],
            _one_or_list,
        ]
        | None
    ) = Field(None, description="The variant that is loaded, or one of several.")
    context: (
        Annotated[
            Annotated[TokenCount, Tag("<word>")] | Annotated[BoundsFile, Tag("<mapping>")],
            _word_or_mapping,
        ]
        | None
    ) = Field(None, description="The context, or its bounds.")
    pace: (
        Annotated[
            Annotated[Pace, Tag("<word>")] | Annotated[PaceBoundsFile, Tag("<mapping>")],
            _word_or_mapping,
        ]
        | None
    ) = Field(None, description="The pace, or its bounds.")
    parked: bool | None = Field(None, description="Whether nothing is loaded.")
    rule: str | None = Field(None, description="A rule that is in force.")
    no_rule: str | None = Field(None, description="A rule that isn't in force.")
    available: SizeBoundsFile | None = Field(None, description="Available memory.")


class CountsFile(Part):
    """How often something happened."""

    switches: Times | None = Field(None, description="Changes of the loaded variant.")
    down: Times | None = Field(None, description="Decisions to step down.")
    up: Times | None = Field(None, description="Decisions to step up.")
    parked: Times | None = Field(None, description="Decisions to park.")
    refused: Times | None = Field(None, description="Requests that were refused.")
    answered: Times | None = Field(None, description="Requests that were answered whole.")


class ExpectFile(StateFile):
    """One expectation: a state with its time, a state that never is, or counts."""

    at: Duration | None = Field(None, description="The state holds at this moment.")
    by: Duration | None = Field(None, description="The state has come by this time, after `from`.")
    from_: Duration | None = Field(None, alias="from", description="Look from here on.")
    until: Duration | None = Field(None, description="Look up to here; the state holds throughout.")
    never: StateFile | None = Field(None, description="This state never is.")
    at_most: CountsFile | None = Field(None, description="No more of these.")
    at_least: CountsFile | None = Field(None, description="No fewer of these.")


class ScenarioItem(Part):
    """One scenario."""

    name: str = Field(min_length=1, max_length=200, description="A sentence.")
    device: DeviceFile | None = Field(None, description="Another device than the file's.")
    day: Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"] = Field(
        "mon", description="The day of the start, for schedules."
    )
    start: ClockTime = Field("12:00", description="Local time of the start.")
    for_: Duration = Field(alias="for", ge=1, le=7 * 86400, description="How long it runs.")
    timeline: list[EventFile] = Field([], description="What happens.")
    expect: list[ExpectFile] = Field(min_length=1, description="What is expected.")


class ScenarioFile(Part):
    """A file of scenarios for one policy."""

    version: Literal[1] = Field(description="The language's version.")
    policy: str | None = Field(None, description="Its name. Without it: from the file's name.")
    device: DeviceFile = Field(description="The device.")
    catalog: Annotated[
        Annotated[str, Tag("<word>")] | Annotated[CatalogFile, Tag("<mapping>")], _word_or_mapping
    ] = Field(description="The model: a name that trimtab knows, or its variants.")
    scenarios: list[ScenarioItem] = Field(min_length=1, description="The scenarios.")


def state_fields() -> tuple[str, ...]:
    """Names of what may be said of one moment."""
    return tuple(StateFile.model_fields)


def given(part: StateFile) -> dict[str, Any]:
    """What a state says, by field."""
    return {name: value for name in state_fields() if (value := getattr(part, name)) is not None}
