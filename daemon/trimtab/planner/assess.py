"""Every operating point with its prediction, and whether it may be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from math import inf
from typing import Final, NamedTuple

from trimtab.domain.decisions import Prediction
from trimtab.domain.knobs import Knob, KvPlacement, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.planner.foresight import needed_s, trend_bytes_s
from trimtab.planner.frame import Inputs, Line, frame
from trimtab.planner.points import draft_of
from trimtab.planner.predict import Basis, Facts, Situation, beside_bytes, predict_from
from trimtab.planner.relief import idle_bytes, resting
from trimtab.planner.resident import estimates
from trimtab.planner.state import Pin, Quarantine, State
from trimtab.policy.compiled import KnobBounds, Policy

MIB: Final = 1024 * 1024


class Fit(IntEnum):
    """How a point stands to the memory limit, best first."""

    ROOMY = 0  # a whole conversation fits, and the leave threshold is kept, unwritten KV off
    KEPT = 1  # a whole conversation fits, and the headroom is kept
    NOW = 2  # the headroom is kept with what is cached now, not with a whole conversation
    OVER = 3  # it isn't


class Assessed(NamedTuple):
    """One point, judged. A tuple, since there are hundreds on each tick.

    Attributes:
        point: The point.
        fit: How it stands to the memory limit.
        rank: Smaller is better, among points that may be taken.
        reason: Why it is out; empty if it is in as far as anything but memory goes.
        basis: What its prediction comes from.
        here: What that starts from.
    """

    point: OperatingPoint
    fit: Fit
    rank: tuple[float, ...]
    reason: str
    basis: Basis
    here: Situation

    @property
    def predicted(self) -> Prediction:
        """What it would hold and do; worked out when somebody asks, as few do."""
        return predict_from(self.basis, self.point.context, self.point.pace_ratio, self.here)


def mib(size_bytes: float) -> str:
    """A size for people."""
    return f"{size_bytes / MIB:.0f} MiB"


class Room(NamedTuple):
    """How much KV a whole conversation may have on one variant, for each fit.

    Attributes:
        roomy_bytes: At most so much: the leave threshold is kept.
        kept_bytes: At most so much: the headroom is kept.
        otherwise: The fit beyond.
    """

    roomy_bytes: float
    kept_bytes: float
    otherwise: Fit

    def fit(self, kv_bytes: int) -> Fit:
        """Which side of the limits a point falls on whose context holds so much."""
        if kv_bytes <= self.roomy_bytes:
            return Fit.ROOMY
        return Fit.KEPT if kv_bytes <= self.kept_bytes else self.otherwise


def room(known: Basis, policy: Policy, here: Situation, margin_bytes: float) -> Room:
    """The room that a variant would have.

    Args:
        known: What its points have in common.
        policy: In force.
        here: What is available, held and cached now.
        margin_bytes: What others will take until the step is done, and what the prediction may be
            wrong by. It counts for a whole conversation, not for what is cached now: where nothing
            else is left, a point that may fit is better than none.
    """
    limit, available = policy.memory, here.available_bytes
    if limit is None:
        return Room(inf, inf, Fit.ROOMY)
    if available is None:
        return Room(-1.0, inf, Fit.KEPT)
    cached = known.kv_bytes_per_token * here.kv_tokens
    loaded = available + here.held_bytes - known.loaded_bytes
    # What is unwritten counts for a step up alone: with it off here too, running conversations that
    # have just gone to disk as the last rung would be followed by parking, before they are written.
    kept = loaded - margin_bytes - limit.headroom_bytes
    roomy = loaded - margin_bytes - limit.leave_bytes - here.unwritten_bytes
    fits_now = loaded - cached >= limit.headroom_bytes
    return Room(
        roomy if roomy >= cached else -1.0,
        kept if kept >= cached else -1.0,
        Fit.NOW if fits_now else Fit.OVER,
    )


def situation(state: State) -> Situation:
    """What predictions start from, at the last tick."""
    available = state.snapshot.value("memory.available") if state.snapshot is not None else None
    return Situation(
        available_bytes=None if available is None else int(available) + idle_bytes(state),
        held_bytes=state.demand.worker_bytes or 0,
        kv_tokens=state.demand.kv_tokens,
        speeds=state.queue.speeds,
        unwritten_bytes=state.demand.unwritten_bytes,
    )


def facts(state: State) -> Facts:
    """What was measured on this device so far."""
    return Facts(state.resident, state.doubt, state.working, state.device)


def assess(
    state: State, policy: Policy, bounds: KnobBounds, model: ModelSpec, at_s: float
) -> tuple[Assessed, ...]:
    """All points of the model, judged for now."""
    here = situation(state)
    horizon_s = needed_s(max(state.load_s.values(), default=None))
    others = state.fill_bytes_s * horizon_s
    judged: list[Assessed] = []
    trend = trend_bytes_s(state.falls_bytes_s) * horizon_s
    loaded = _loaded(state, model)
    for line in frame(_inputs(state, policy, bounds, model, at_s)):
        known = line.basis
        if line.variant == state.point.variant:
            known, joins = loaded.of(line, here)
            margin = others + known.draft_doubt_bytes if joins else trend
        else:
            margin = others + known.doubt_bytes
        space = room(known, policy, here, margin)
        judged += [
            Assessed(
                point, space.fit(known.kv_bytes_per_token * point.context), rank, why, known, here
            )
            for point, rank, why in line.places
        ]
    return tuple(judged)


class _Loaded(NamedTuple):
    """What is loaded now, and what another draft makes of it.

    Attributes:
        threads: Engine threads.
        draft: The variant that drafts; None where none does.
        draft_bytes: What it holds.
        seen: False right after a change: what was last seen to be held is the worker's before.
    """

    threads: int
    draft: str | None
    draft_bytes: int
    seen: bool

    def of(self, line: Line, here: Situation) -> tuple[Basis, bool]:
        """What a line of the same variant holds, and whether a draft joins the worker for it."""
        if line.draft == self.draft:
            return (_as_it_is(line.basis, here, 0) if self.seen else line.basis), False
        if not self.seen or line.places[0].point.threads != self.threads:
            return line.basis, line.draft is not None
        more_bytes = line.basis.draft_bytes - self.draft_bytes
        return _as_it_is(line.basis, here, more_bytes), line.draft is not None


def _loaded(state: State, model: ModelSpec) -> _Loaded:
    draft = model.variant(draft_of(state.point.speculation) or "")
    held = 0 if draft is None else beside_bytes(draft, estimates(model, state.resident))
    seen = state.snapshot is not None and state.snapshot.at_s > state.changed_s
    name = None if draft is None else draft.name
    return _Loaded(state.point.threads, name, held, seen)


def _as_it_is(known: Basis, here: Situation, more_bytes: int) -> Basis:
    """What is loaded holds what it is seen to hold: staying gives nothing of it back.

    Args:
        known: What was predicted.
        here: What is held now.
        more_bytes: What a draft that joins will hold, less what one that leaves gives back.
    """
    held = here.held_bytes - known.kv_bytes_per_token * here.kv_tokens + more_bytes
    if held == known.loaded_bytes and not known.doubt_bytes:
        return known
    if held <= 0:
        return known
    return replace(
        known, loaded_bytes=held, doubt_bytes=known.draft_doubt_bytes if more_bytes > 0 else 0
    )


def _inputs(
    state: State, policy: Policy, bounds: KnobBounds, model: ModelSpec, at_s: float
) -> Inputs:
    return Inputs(
        model=model,
        policy=policy,
        bounds=bounds,
        threads=state.threads,
        heat_level=state.heat.level,
        resting=resting(state, at_s),
        kv_placement=_placement(state),
        pinned=pinned_knobs(state, at_s),
        quarantine=_in_force(state.quarantine, at_s),
        drafts_out=_in_force(state.drafts_out, at_s),
        facts=facts(state),
        seen=state.queue.speeds.in_steps([one.name for one in model.variants]),
    )


def _in_force(known: Mapping[str, Quarantine], at_s: float) -> Mapping[str, str]:
    """What is left out at this time, and why."""
    return {name: entry.reason for name, entry in known.items() if at_s < entry.until_s}


def _placement(state: State) -> KvPlacement:
    """Where KV is now. It stays there while nothing is loaded: no worker moves it.

    What runs next says so too, as no point but one that was lost knows it then.
    """
    if not state.point.parked:
        return state.point.kv_placement
    if state.lost_point is not None:
        return state.lost_point.kv_placement
    return KvPlacement.DISK_ALL if state.demand.filed_bytes else KvPlacement.MEMORY


def pinned_knobs(state: State, at_s: float) -> Mapping[Knob, str | int | float]:
    """What is pinned at this time and can be had: nothing while its variant is in quarantine.

    The other knobs were meant for that variant, and wait with it.
    """
    pin = standing_pin(state, at_s)
    return {} if pin is None or kept_out(state, at_s) is not None else pin.knobs


def standing_pin(state: State, at_s: float) -> Pin | None:
    """The pin, until it is taken off or its time is over."""
    pin = state.pin
    return None if pin is None or (pin.until_s is not None and at_s >= pin.until_s) else pin


def kept_out(state: State, at_s: float) -> Quarantine | None:
    """The quarantine that keeps the pinned variant from being served; None if there is none."""
    pin = standing_pin(state, at_s)
    return None if pin is None else in_quarantine(state, pin.knobs.get(Knob.VARIANT), at_s)


def in_quarantine(
    state: State, variant: str | int | float | None, at_s: float
) -> Quarantine | None:
    """The quarantine that a variant is in at this time; None if it is in none."""
    entry = None if variant is None else state.quarantine.get(str(variant))
    return entry if entry is not None and at_s < entry.until_s else None
