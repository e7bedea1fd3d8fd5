"""Rules in force, laid over a policy's own bounds: the tightest wins, and is named. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from trimtab.domain.knobs import Knob
from trimtab.policy.compiled import KnobBounds, Tightening
from trimtab.policy.evaluate import Verdict

T = TypeVar("T")
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class EffectiveBounds:
    """Within what the knobs may move now.

    Attributes:
        knobs: The bounds, never wider than the policy's own.
        tightened_by: For each knob that a rule has narrowed, the rules that made it as narrow as
            it is.
        conflicts: Demands that could not be met beside a stronger one, in words.
    """

    knobs: KnobBounds
    tightened_by: Mapping[Knob, tuple[str, ...]] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()


def combine(verdicts: Iterable[Verdict], bounds: KnobBounds) -> EffectiveBounds:
    """Narrow the policy's bounds by every rule that is in force.

    Where two demands leave nothing, which the compiler refuses for any two rules, the upper bound
    is kept rather than the lower one, and the earlier choice rather than the later one.
    """
    in_force = [verdict.rule for verdict in verdicts if verdict.in_force]
    if not in_force:
        return EffectiveBounds(bounds)
    narrowing = _Narrowing(bounds)
    for rule in in_force:
        narrowing.apply(rule.name, rule.then)
    return narrowing.result()


class _Narrowing:
    """The bounds while one rule after the other is laid over them."""

    def __init__(self, bounds: KnobBounds) -> None:
        self.bounds = bounds
        self.uppers: dict[Knob, list[str]] = {}
        self.lowers: dict[Knob, list[str]] = {}
        self.choices: dict[Knob, list[str]] = {}
        self.conflicts: list[str] = []

    def apply(self, name: str, then: Tightening) -> None:
        """Lay one rule's demands over the bounds."""
        bounds = self.bounds
        self.bounds = replace(
            bounds,
            variants=self._choose(Knob.VARIANT, name, bounds.variants, then.variants),
            speculation=self._choose(Knob.SPECULATION, name, bounds.speculation, then.speculation),
            kv_placement=self._choose(
                Knob.KV_PLACEMENT, name, bounds.kv_placement, then.kv_placement
            ),
            context_max=self._upper(Knob.CONTEXT, name, bounds.context_max, then.context_at_most),
            context_min=self._lower(Knob.CONTEXT, name, bounds.context_min, then.context_at_least),
            threads_max=self._open_upper(name, bounds.threads_max, then.threads_at_most),
            threads_min=self._lower(Knob.THREADS, name, bounds.threads_min, then.threads_at_least),
            pace_max_ratio=self._upper(
                Knob.PACE, name, bounds.pace_max_ratio, then.pace_at_most_ratio
            ),
            pace_min_ratio=self._lower(
                Knob.PACE, name, bounds.pace_min_ratio, then.pace_at_least_ratio
            ),
        )

    def result(self) -> EffectiveBounds:
        """The narrowed bounds, made consistent."""
        bounds = self.bounds
        for knob, least, most in (
            (Knob.CONTEXT, bounds.context_min, bounds.context_max),
            (Knob.THREADS, bounds.threads_min, bounds.threads_max),
            (Knob.PACE, bounds.pace_min_ratio, bounds.pace_max_ratio),
        ):
            if most is not None and least > most:
                losers = ", ".join(self.lowers.get(knob, ())) or "the policy's own bounds"
                self.conflicts.append(
                    f"{knob}: at least {least:g} ({losers}) gives way to {most:g}"
                )
        threads_max = bounds.threads_max
        bounds = replace(
            bounds,
            context_min=min(bounds.context_min, bounds.context_max),
            threads_min=(
                bounds.threads_min if threads_max is None else min(bounds.threads_min, threads_max)
            ),
            pace_min_ratio=min(bounds.pace_min_ratio, bounds.pace_max_ratio),
        )
        tightened: dict[Knob, tuple[str, ...]] = {}
        for knob in Knob:
            names = (
                self.choices.get(knob, []) + self.uppers.get(knob, []) + self.lowers.get(knob, [])
            )
            if names:
                tightened[knob] = tuple(dict.fromkeys(names))
        return EffectiveBounds(bounds, tightened, tuple(self.conflicts))

    def _choose(
        self, knob: Knob, name: str, now: tuple[T, ...], wanted: frozenset[T] | None
    ) -> tuple[T, ...]:
        """What both leave. No choice so far (an empty tuple) means that anything goes."""
        if wanted is None:
            return now
        left = (
            tuple(item for item in now if item in wanted) if now else tuple(sorted(wanted, key=str))
        )
        if not left:
            self.conflicts.append(f"{knob}: {name} would leave nothing, so it gives way")
            return now
        if left != now:
            self.choices.setdefault(knob, []).append(name)
        return left

    def _upper(self, knob: Knob, name: str, now: N, wanted: N | None) -> N:
        if wanted is None:
            return now
        if wanted < now:
            self.uppers[knob] = [name]
            return wanted
        if wanted == now and knob in self.uppers:
            self.uppers[knob].append(name)
        return now

    def _open_upper(self, name: str, now: int | None, wanted: int | None) -> int | None:
        """The upper bound of threads, which a policy may leave open."""
        if now is not None or wanted is None:
            return now if now is None else self._upper(Knob.THREADS, name, now, wanted)
        self.uppers[Knob.THREADS] = [name]
        return wanted

    def _lower(self, knob: Knob, name: str, now: N, wanted: N | None) -> N:
        if wanted is None:
            return now
        if wanted > now:
            self.lowers[knob] = [name]
            return wanted
        if wanted == now and knob in self.lowers:
            self.lowers[knob].append(name)
        return now
