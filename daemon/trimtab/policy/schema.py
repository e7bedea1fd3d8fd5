"""The policy language: every field with its type, default and meaning.

The JSON Schema for editors and the reference in `docs/policies.md` are generated from these
models. They take plain values (dicts, lists, scalars); YAML and files are elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from trimtab.policy.fields import (
    MAX_CONTEXT,
    Celsius,
    CornerName,
    Count,
    Duration,
    Name,
    Pace,
    Part,
    Placement,
    Ratio,
    Size,
    Speculation,
    Threads,
    Tokens,
    VariantName,
    written,
)
from trimtab.policy.rule_schema import Rule


class Slo(Part):
    """Latency objectives: which figure shall stay under which time."""

    ttft_p95: Duration | None = Field(
        None, description="From a request to its first token, for 95 of 100 requests."
    )
    tpot_p95: Duration | None = Field(
        None, description="Mean time for each further token, for 95 of 100 requests."
    )
    window: Duration = written("60s", description="Over how long the figures are taken.")


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

    memory: MemoryLimits = written(
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
        | Annotated[int, Field(ge=1, le=MAX_CONTEXT), Tag("<number>")],
        Discriminator(lambda found: "<word>" if isinstance(found, str) else "<number>"),
    ] = Field(
        "system_prompt",
        description="How much of the beginning stays: the system prompt, or tokens. "
        "It must be less than half of the context.",
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

    min: Pace = written("50%", description="Slowest pace, 10% at least.")
    max: Pace = written("100%", description="Fastest pace.")


class Knobs(Part):
    """Within what each knob may move."""

    variant: list[VariantName] | None = Field(
        None,
        min_length=1,
        description="Variants allowed, most precise first. Without it: all that the model has.",
    )
    context: ContextKnob = written({}, description="The context's bounds.")
    speculation: list[Speculation] = Field(
        ["off", "ngram"],
        min_length=1,
        description="Ways of drafting allowed: off, ngram, draft:VARIANT.",
    )
    kv_placement: list[Placement] = Field(
        ["memory"],
        min_length=1,
        description="Where KV caches may live: memory; disk, for idle conversations; disk_all, "
        "for running ones too (slow: the last rung before parking).",
    )
    threads: ThreadsKnob = written({}, description="The engine threads' bounds.")
    pace: PaceKnob = written({}, description="The pace's bounds.")


class Stability(Part):
    """How much the controller may move."""

    dwell: Duration = written(
        "30s", description="An operating point is kept at least so long before a step up."
    )
    cooldown: Duration = written("10s", description="Wait after a step before the next step up.")
    switches_per_hour: Annotated[int, Field(ge=1, le=3600)] = Field(
        20, description="Most changes of variant an hour; memory safety is exempt."
    )


class Handover(Part):
    """How streams cross to another worker."""

    down: Literal["kv", "replay"] = Field(
        "kv", description="On a step down: kv carries the cache over, replay prefills again."
    )
    up: Literal["kv", "replay"] = Field("kv", description="On a step up.")
    hold_max: Duration = written("60s", description="Longest that a stream may be held.")


class Admission(Part):
    """How many requests may wait and run."""

    queue: Count = Field(16, description="Requests that may wait; more are refused with 429.")
    max_wait: Duration = written("30s", description="Longest wait before a request is refused.")
    conversations: Annotated[int, Field(ge=1, le=1024)] = Field(
        4,
        description="Conversations that may run at once. More may be begun, and pause, where "
        "`kv.pool` bounds what they hold.",
    )
    priorities: dict[Name, Annotated[float, Field(gt=0, le=1000)]] = Field(
        {"interactive": 1.0, "background": 0.2}, description="Weight of each class of requests."
    )


class Kv(Part):
    """The budget of the KV cache."""

    pool: Size | None = Field(
        None,
        description="Most memory for KV, and for the context of one conversation. Without it: "
        "what the memory limit leaves.",
    )
    disk_quota: Size = written("1GiB", description="Most disk space for offloaded KV.")
    writes_per_day: Size = written(
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
    slo: Slo = written({}, description="Latency objectives.")
    limits: Limits = written({}, description="Hard limits.")
    floor: Floor = written({}, description="What it never goes below.")
    knobs: Knobs = written({}, description="Within what each knob may move.")
    rules: list[Rule] = Field([], max_length=100, description="What tightens knobs, and when.")
    drop_rules: list[str] = Field(
        [],
        max_length=100,
        description="Rules of the extended policy that don't hold here, by name.",
    )
    stability: Stability = written({}, description="How much the controller may move.")
    handover: Handover = written({}, description="How streams cross to another worker.")
    admission: Admission = written({}, description="How many requests may wait and run.")
    kv: Kv = written({}, description="The budget of the KV cache.")
    schedule: list[ScheduleItem] = Field(
        [], max_length=20, description="Other policies at other times."
    )
