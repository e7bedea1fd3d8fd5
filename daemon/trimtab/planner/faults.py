"""Variants that fail: tried again at once, then left out for a time that doubles."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.domain.events import DraftFailed, WorkerLost
from trimtab.domain.knobs import PARKED, SPECULATION_NGRAM
from trimtab.planner.points import draft_of
from trimtab.planner.serving import with_rates
from trimtab.planner.state import Quarantine, State

BARREN_ALLOWED: Final = 5
"""Workers that die in a row, within the window, without having produced a token."""

BARREN_WINDOW_S: Final = 3600.0
"""Six loads of a big model from a worn card fit in; deaths of different weeks have no cause in
common."""

BACKOFF_S: Final = 0.5
"""Before the second try after a barren worker; twice as long before each further one."""

LOSSES_ALLOWED: Final = 60
"""Workers that die within the window, whatever they had produced."""

LOSS_WINDOW_S: Final = 60.0
QUARANTINE_S: Final = 60.0
QUARANTINE_MAX_S: Final = 3600.0


def lost(state: State, event: WorkerLost) -> State:
    """The serving worker is gone; too many losses in a short time quarantine its variant.

    What was to be set for it isn't waited for any more: it may hang on a disk.
    """
    losses = _with(state.losses.get(event.variant, ()), event.at_s, LOSS_WINDOW_S)
    barren_times: tuple[float, ...] = ()
    if not event.tokens:
        barren_times = _with(state.barren.get(event.variant, ()), event.at_s, BARREN_WINDOW_S)
    barren = len(barren_times)
    state = replace(
        state,
        barren={**state.barren, event.variant: barren_times},
        retry_s=event.at_s + (BACKOFF_S * 2 ** (barren - 2) if barren > 1 else 0.0),
        point=PARKED,
        waiting_for=state.waiting_for if state.running is not None else frozenset(),
        parked=False,
        lost_point=state.point if not state.point.parked else state.lost_point,
        losses={**state.losses, event.variant: losses},
    )
    if barren > BARREN_ALLOWED:
        reason = f"its worker died {barren} times before it had produced anything"
        return quarantined(state, event.variant, reason, event.at_s)
    if len(losses) > LOSSES_ALLOWED:
        reason = f"its worker died {len(losses)} times within {LOSS_WINDOW_S:.0f} s"
        return quarantined(state, event.variant, reason, event.at_s)
    return state


def quarantined(state: State, variant: str, reason: str, at_s: float) -> State:
    """Leave a variant out, twice as long as the last time."""
    entry = _longer(state.quarantine.get(variant), reason, at_s)
    return replace(
        state,
        quarantine={**state.quarantine, variant: entry},
        retry_s=at_s,  # the next best needs no rest
        losses={**state.losses, variant: ()},
        barren={**state.barren, variant: ()},
    )


def draft_failed(state: State, event: DraftFailed) -> State:
    """Leave a variant out as a draft, likewise; the target that it drafted for has n-grams left."""
    known = state.drafts_out.get(event.draft)
    entry = _longer(known, event.reason, event.at_s)
    state = replace(state, drafts_out={**state.drafts_out, event.draft: entry})
    if draft_of(state.point.speculation) != event.draft:
        return state
    point = replace(state.point, speculation=SPECULATION_NGRAM)
    return with_rates(replace(state, point=point, changed_s=event.at_s, better=None))


def _longer(before: Quarantine | None, reason: str, at_s: float) -> Quarantine:
    """The next quarantine: twice as long as the last one."""
    wait_s = QUARANTINE_S if before is None else min(2 * before.wait_s, QUARANTINE_MAX_S)
    return Quarantine(at_s + wait_s, wait_s, reason)


def _with(times: tuple[float, ...], at_s: float, window_s: float) -> tuple[float, ...]:
    """Those within the window, and this one."""
    return (*(time_s for time_s in times if at_s - time_s < window_s), at_s)
