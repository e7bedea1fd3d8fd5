"""The policy language: every field with its type, default and meaning.

The JSON Schema for editors and the reference in `docs/policies.md` are generated from these
models. They take plain values (dicts, lists, scalars); YAML and files are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from trimtab.domain.readings import Unit
from trimtab.policy.units import QuantityError, parse_quantity

MIN_PACE_RATIO: Final = 0.1
MIN_CONTEXT: Final = 64
MAX_CONTEXT: Final = 2**20
MAX_THREADS: Final = 256


def _quantity(unit: Unit) -> Callable[[object], float]:
    """A validator that reads one kind of quantity."""

    def parse(found: object) -> float:
        try:
            return parse_quantity(found, unit)
        except QuantityError as error:
            context = {"suggestion": error.suggestion, "text": error.message}
            raise PydanticCustomError("quantity", "{text}", context) from error

    return parse


def _text_schema(description: str, example: str, *, number: bool = False) -> WithJsonSchema:
    """What an editor is told about a quantity."""
    kind: object = ["string", "number"] if number else ["string", "integer"]
    return WithJsonSchema({"type": kind, "description": description, "examples": [example]})


Duration = Annotated[
    float, BeforeValidator(_quantity(Unit.SECONDS)), _text_schema("A time.", "30s")
]
Size = Annotated[float, BeforeValidator(_quantity(Unit.BYTES)), _text_schema("A size.", "512MiB")]
Celsius = Annotated[
    float, BeforeValidator(_quantity(Unit.CELSIUS)), _text_schema("A temperature.", "80C")
]
Ratio = Annotated[
    float,
    BeforeValidator(_quantity(Unit.RATIO)),
    _text_schema("A share, 0% to 100% or 0 to 1.", "25%", number=True),
]
Pace = Annotated[Ratio, Field(ge=MIN_PACE_RATIO, le=1)]
Tokens = Annotated[int, Field(ge=MIN_CONTEXT, le=MAX_CONTEXT)]
Threads = Annotated[int, Field(ge=1, le=MAX_THREADS)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$")]
VariantName = Annotated[str, Field(min_length=1, max_length=100)]
Speculation = Annotated[str, Field(pattern=r"^(off|ngram|draft:.{1,100})$")]
Placement = Literal["memory", "disk"]
CornerName = Literal["latency", "memory", "accuracy"]


def _one_value(found: object) -> object:
    """A threshold is one value; what it means depends on the signal, so it is read later."""
    if isinstance(found, (str, int, float)):
        return found
    text = "found a list or mapping; a threshold is one value, such as 512MiB, 80C or 10%"
    raise PydanticCustomError("quantity", "{text}", {"suggestion": "", "text": text})


Threshold = Annotated[
    str | int | float | bool,
    PlainValidator(_one_value),
    WithJsonSchema(
        {
            "type": ["string", "number", "boolean"],
            "description": "In the signal's unit.",
            "examples": ["512MiB", "80C", "10%"],
        }
    ),
]
ClockTime = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


class Part(BaseModel):
    """A mapping with a closed set of fields."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_default=True
    )


def _written(default: object, *, description: str) -> Any:
    """A field whose default is written as in a file (`60s`, `{}`) and validated like one."""
    return Field(default, description=description)


class Slo(Part):
    """Latency objectives: which figure shall stay under which time."""

    ttft_p95: Duration | None = Field(
        None, description="From a request to its first token, for 95 of 100 requests."
    )
    tpot_p95: Duration | None = Field(
        None, description="Mean time for each further token, for 95 of 100 requests."
    )
    window: Duration = _written("60s", description="Over how long the figures are taken.")


class MemoryLimits(Part):
    """How much memory stays free for everything else on the device."""

    headroom: Size = Field(
        description="Available memory stays above this; below it the point steps down at once."
    )
    leave: Size | None = Field(
        None,
        description="A step up must leave at least this. Without it: one and a half headrooms.",
    )


class TemperatureLimits(Part):
    """How hot the device may become."""

    enter: Celsius = Field(description="From here on the point steps down.")
    leave: Celsius | None = Field(
        None, description="Below this it may step up again. Without it: 6C under enter."
    )


class Limits(Part):
    """Hard limits, which come before every wish."""

    memory: MemoryLimits = _written(
        {"headroom": "256MiB"},
        description="The memory limit. There is always one.",
    )
    temperature: TemperatureLimits | None = Field(
        None, description="The temperature limit; none without it."
    )


class Floor(Part):
    """What the policy never goes below. When nothing above it fits, the daemon parks."""

    quality: Ratio = Field(
        0.0, description="Least quality of a variant: exp(−mean KL to the best variant)."
    )
    context: Tokens | None = Field(
        None, description="Least context in tokens. Without it: the context knob's min."
    )


class WindowShift(Part):
    """Past the end of the context, forget the middle and go on. Lossy."""

    shift: Literal[True] = Field(description="Always true; refusing is written 'window: refuse'.")
    keep: Annotated[
        Annotated[Literal["system_prompt"], Tag("<word>")]
        | Annotated[int, Field(ge=0, le=MAX_CONTEXT), Tag("<number>")],
        Discriminator(lambda found: "<word>" if isinstance(found, str) else "<number>"),
    ] = Field(
        "system_prompt",
        description="How much of the beginning stays: the system prompt, or tokens.",
    )


def _scalar_or_mapping(found: object) -> str:
    return "<mapping>" if isinstance(found, dict) else "<word>"


class ContextKnob(Part):
    """How long a conversation may become."""

    min: Tokens = Field(512, description="Least context, in tokens.")
    max: Tokens = Field(8192, description="Greatest context; the model's own limit holds as well.")
    window: Annotated[
        Annotated[Literal["refuse"], Tag("<word>")] | Annotated[WindowShift, Tag("<mapping>")],
        Discriminator(_scalar_or_mapping),
    ] = Field("refuse", description="At the end of the context: refuse, or shift (lossy).")


class ThreadsKnob(Part):
    """How many threads the engine may have."""

    min: Threads = Field(1, description="Fewest threads.")
    max: Threads | None = Field(None, description="Most threads. Without it: the device's cores.")


class PaceKnob(Part):
    """Which share of the time the engine may run."""

    min: Pace = _written("50%", description="Slowest pace, 10% at least.")
    max: Pace = _written("100%", description="Fastest pace.")


class Knobs(Part):
    """Within what each knob may move."""

    variant: list[VariantName] | None = Field(
        None,
        min_length=1,
        description="Variants allowed, most precise first. Without it: all that the model has.",
    )
    context: ContextKnob = _written({}, description="The context's bounds.")
    speculation: list[Speculation] = Field(
        ["off", "ngram"],
        min_length=1,
        description="Ways of drafting allowed: off, ngram, draft:VARIANT.",
    )
    kv_placement: list[Placement] = Field(
        ["memory"], min_length=1, description="Where the KV cache of idle conversations may live."
    )
    threads: ThreadsKnob = _written({}, description="The engine threads' bounds.")
    pace: PaceKnob = _written({}, description="The pace's bounds.")


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
    """Which placements of idle KV remain."""

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


class Stability(Part):
    """How much the controller may move."""

    dwell: Duration = _written(
        "30s", description="An operating point is kept at least so long before a step up."
    )
    cooldown: Duration = _written("10s", description="Wait after a step before the next step up.")
    switches_per_hour: Annotated[int, Field(ge=1, le=3600)] = Field(
        20, description="Most changes of variant an hour; memory safety is exempt."
    )


class Handover(Part):
    """How streams cross to another worker."""

    down: Literal["kv", "replay"] = Field(
        "kv", description="On a step down: kv carries the cache over, replay prefills again."
    )
    up: Literal["kv", "replay"] = Field("kv", description="On a step up.")
    hold_max: Duration = _written("60s", description="Longest that a stream may be held.")


class Admission(Part):
    """How many requests may wait and run."""

    queue: Count = Field(16, description="Requests that may wait; more are refused with 429.")
    max_wait: Duration = _written("30s", description="Longest wait before a request is refused.")
    conversations: Annotated[int, Field(ge=1, le=1024)] = Field(
        4, description="Conversations that may run at once."
    )
    priorities: dict[Name, Annotated[float, Field(gt=0, le=1000)]] = Field(
        {"interactive": 1.0, "background": 0.2}, description="Weight of each class of requests."
    )


class Kv(Part):
    """The budget of the KV cache."""

    pool: Size | None = Field(
        None, description="Most memory for KV. Without it: what the memory limit leaves."
    )
    disk_quota: Size = _written("1GiB", description="Most disk space for offloaded KV.")
    writes_per_day: Size = _written(
        "4GiB", description="Most bytes written to disk a day, for the flash's sake."
    )
    share: Literal["user", "all"] = Field(
        "user", description="Between whom a cached prefix may be shared."
    )


class ScheduleItem(Part):
    """Another policy for a while."""

    cron: str = Field(
        min_length=1, max_length=100, description="When it begins: minute hour day month weekday."
    )
    for_: Duration = Field(alias="for", description="For how long from then on.")
    policy: str = Field(min_length=1, max_length=100, description="The other policy's name.")
    timezone: str | None = Field(
        None, max_length=64, description="Such as Europe/Berlin. Without it: the device's own."
    )


class PolicyFile(Part):
    """One policy."""

    version: Literal[1] = Field(description="The language's version.")
    name: Name = Field(description="Its name; the file is called NAME.yaml.")
    extends: str | None = Field(
        None, max_length=100, description="The policy that this one builds on, by name."
    )
    description: str = Field("", max_length=1000, description="For whom it is.")
    protect: list[CornerName] = Field(
        description="The two corners that hold, most important first: latency, memory, accuracy."
    )
    sacrifice: CornerName | None = Field(None, description="The corner that gives: the third.")
    slo: Slo = _written({}, description="Latency objectives.")
    limits: Limits = _written({}, description="Hard limits.")
    floor: Floor = _written({}, description="What it never goes below.")
    knobs: Knobs = _written({}, description="Within what each knob may move.")
    rules: list[Rule] = Field([], max_length=100, description="What tightens knobs, and when.")
    drop_rules: list[str] = Field(
        [],
        max_length=100,
        description="Rules of the extended policy that don't hold here, by name.",
    )
    stability: Stability = _written({}, description="How much the controller may move.")
    handover: Handover = _written({}, description="How streams cross to another worker.")
    admission: Admission = _written({}, description="How many requests may wait and run.")
    kv: Kv = _written({}, description="The budget of the KV cache.")
    schedule: list[ScheduleItem] = Field(
        [], max_length=20, description="Other policies at other times."
    )


for _model in (AllTest, AnyTest, NotTest, Rule):
    _model.model_rebuild()
