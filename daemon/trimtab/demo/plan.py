"""What the demo will do on this machine: the policy's memory limits, and how much to squeeze.

The limits follow from what is available now, so that a squeeze of a few hundred MB crosses them on
a machine of any size, and inside a memory cgroup too:

    available − controller − worker − one conversation's KV − slack  =  leave
    leave − band                                                     =  headroom

The worker of the best variant therefore starts with ``slack`` to spare, and gives way once another
process has taken ``slack + band``. Slack is what other processes on the machine may take meanwhile
without spoiling the show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.errors import TrimtabError
from trimtab.planner.predict import loaded_bytes

MIB: Final = 1024 * 1024
CONTEXT_TOKENS: Final = 1024
CONTROLLER_BYTES: Final = 64 * MIB
BAND_BYTES: Final = 64 * MIB
SLACK_MIN_BYTES: Final = 96 * MIB
SLACK_MAX_BYTES: Final = 256 * MIB
SLACK_SHARE: Final = 32
"""Slack grows with the machine: a larger one has more going on."""

SAFE_BYTES: Final = 192 * MIB
"""The squeeze never leaves the machine with less than this."""

STEP_BYTES: Final = 48 * MIB
"""Variants count as different if one gives back at least this much."""


class TooSmallError(TrimtabError):
    """There is nothing to show with this model on this machine."""

    code = "demo_impossible"


@dataclass(frozen=True, slots=True)
class Plan:
    """The demo on this machine.

    Attributes:
        model: The model's id.
        ladder: The variants that may run, best first.
        context: Tokens of a conversation.
        available_bytes: What was available before anything was started.
        headroom_bytes: The policy's memory limit.
        leave_bytes: What a step up must leave.
        first_squeeze_bytes: What should make the best variant give way.
        second_squeeze_bytes: What should make the next one give way too, in all.
    """

    model: str
    ladder: tuple[str, ...]
    context: int
    available_bytes: int
    headroom_bytes: int
    leave_bytes: int
    first_squeeze_bytes: int
    second_squeeze_bytes: int


def make_plan(model: ModelSpec, available_bytes: int) -> Plan:
    """The demo with the best variant that leaves room to be squeezed.

    Args:
        model: What is served.
        available_bytes: Memory that is available now.

    Raises:
        TooSmallError: The variants are too alike, or no two of them fit.
    """
    context = min(CONTEXT_TOKENS, model.context_length)
    ladder = shrinking(model.variants)
    if len(ladder) < 2:
        names = ", ".join(variant.name for variant in model.variants)
        raise TooSmallError(
            f"{model.model_id} can't show a step down under pressure: its variants ({names}) "
            f"hold the same memory to within {STEP_BYTES // MIB} MiB",
            hint="`trimtab models build smollm2-135m` makes a model whose variants differ.",
        )
    slack = min(SLACK_MAX_BYTES, max(SLACK_MIN_BYTES, available_bytes // SLACK_SHARE))
    for start in range(len(ladder) - 1):
        plan = _starting_with(model, ladder[start:], context, available_bytes, slack)
        if plan.headroom_bytes >= SAFE_BYTES:
            return plan
    needed = available_bytes + SAFE_BYTES - plan.headroom_bytes
    raise TooSmallError(
        f"{available_bytes // MIB} MiB of memory are available, which is too little to show "
        f"anything: the demo needs {needed // MIB} MiB for {ladder[-2].name} and a squeeze",
        hint="Close something, or give the demo's cgroup a larger limit.",
    )


def shrinking(variants: Sequence[VariantSpec]) -> tuple[VariantSpec, ...]:
    """The variants, best first, without those that hold no less than a better one."""
    ladder: list[VariantSpec] = []
    for variant in variants:
        if not ladder or _held(variant) <= _held(ladder[-1]) - STEP_BYTES:
            ladder.append(variant)
    return tuple(ladder)


def policy_text(plan: Plan) -> str:
    """The policy that the daemon runs under: short waits, since the audience has no hour."""
    variants = ", ".join(plan.ladder)
    return f"""\
# Made by `trimtab demo` for the memory that was available when it started.
version: 1
name: own
description: The demo. Memory holds, and the most precise variant that fits serves.
protect: [memory, accuracy]
sacrifice: latency
limits:
  memory: {{headroom: {plan.headroom_bytes}B, leave: {plan.leave_bytes}B}}
knobs:
  variant: [{variants}]
  context: {{min: {plan.context}, max: {plan.context}}}
  speculation: [off]
stability: {{dwell: 4s, cooldown: 1s, switches_per_hour: 100}}
admission: {{queue: 8, max_wait: 60s, conversations: 4}}
"""


def _held(variant: VariantSpec) -> int:
    return loaded_bytes(variant, {})


def _starting_with(
    model: ModelSpec, ladder: Sequence[VariantSpec], context: int, available: int, slack: int
) -> Plan:
    best, following = ladder[0], ladder[1]
    kv = best.kv_bytes_per_token * context
    leave = available - CONTROLLER_BYTES - _held(best) - kv - slack
    first = slack + BAND_BYTES
    return Plan(
        model=model.model_id,
        ladder=tuple(variant.name for variant in ladder),
        context=context,
        available_bytes=available,
        headroom_bytes=leave - BAND_BYTES,
        leave_bytes=leave,
        first_squeeze_bytes=first,
        second_squeeze_bytes=first + _held(best) - _held(following),
    )
