"""Variants that fail: tried again at once, then left out for a time that doubles.

Only what the worker itself refuses to load is left out at the first failure. A worker that dies,
while it serves or while it loads, may have been killed by anybody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.domain.events import ActionEnded, DraftFailed, WorkerLost
from trimtab.domain.knobs import PARKED, SPECULATION_NGRAM
from trimtab.planner.points import draft_of
from trimtab.planner.serving import with_rates
from trimtab.planner.state import Quarantine, State

BARREN_ALLOWED: Final = 5
"""Workers that die in a row, within the window, without having produced a token.

Those that die while they load, or load for too long, are among them.
"""

BARREN_WINDOW_S: Final = 3600.0
"""Six loads of a big model from a worn card fit in; deaths of different weeks have no cause in
common."""

LOADING_ALLOWED_S: Final = 20.0
"""Spent on loads in a row that came to nothing: streams that are held need another variant soon."""

BACKOFF_S: Final = 0.5
"""Before the second try after a barren worker; twice as long before each further one."""

LOSSES_ALLOWED: Final = 60
"""Workers that die within the window, whatever they had produced."""

LOSS_WINDOW_S: Final = 60.0
QUARANTINE_S: Final = 60.0
QUARANTINE_MAX_S: Final = 3600.0
TRIES_WHILE_HELD: Final = 4
"""Tries of a variant in quarantine within the time that a stream may be held, where there is no
other way to go on: the first comes while three quarters of it are left."""


def lost(state: State, event: WorkerLost) -> State:
    """The serving worker is gone; too many losses in a short time quarantine its variant.

    What was to be set for it isn't waited for any more: it may hang on a disk.
    """
    losses = _with(state.losses.get(event.variant, ()), event.at_s, LOSS_WINDOW_S)
    state = replace(
        _counted(state, event.variant, event.at_s, barren=not event.tokens),
        point=PARKED,
        waiting_for=state.waiting_for if state.running is not None else frozenset(),
        parked=False,
        lost_point=state.point if not state.point.parked else state.lost_point,
        losses={**state.losses, event.variant: losses},
    )
    barren = len(state.barren[event.variant])
    if barren > BARREN_ALLOWED:
        reason = f"its worker died {barren} times before it had produced anything"
        return quarantined(state, event.variant, reason, event.at_s)
    if len(losses) > LOSSES_ALLOWED:
        reason = f"its worker died {len(losses)} times within {LOSS_WINDOW_S:.0f} s"
        return quarantined(state, event.variant, reason, event.at_s)
    return state


def not_loaded(state: State, variant: str, event: ActionEnded) -> State:
    """A variant didn't load.

    What its worker refuses is left out at once. Where the worker died or was late, the variant is
    tried again like one whose serving worker died, as long as that takes little time; but for one
    that was tried in spite of its quarantine.
    """
    if not event.lost or _left_out(state, variant, event.at_s):
        return quarantined(state, variant, event.reason, event.at_s)
    state = _counted(state, variant, event.at_s, barren=True)
    barren = len(state.barren[variant])
    if barren * event.took_s > LOADING_ALLOWED_S:
        reason = f"loading takes long and comes to nothing; the last: {event.reason}"
        return quarantined(state, variant, reason, event.at_s)
    if barren > BARREN_ALLOWED:
        reason = f"{barren} of its workers in a row have produced nothing; the last: {event.reason}"
        return quarantined(state, variant, reason, event.at_s)
    return state


def loaded(state: State, variant: str, at_s: float) -> State:
    """A variant has loaded: a quarantine that it was tried in spite of is over."""
    if not _left_out(state, variant, at_s):
        return state
    entry = replace(state.quarantine[variant], until_s=at_s)
    return replace(state, quarantine={**state.quarantine, variant: entry})


def worth_another_try(state: State, hold_max_s: float, at_s: float) -> frozenset[str]:
    """Variants in quarantine that may be tried all the same, where streams end otherwise.

    Args:
        state: With their quarantines.
        hold_max_s: How long a stream may be held.
        at_s: Now.
    """
    rest_s = hold_max_s / TRIES_WHILE_HELD
    return frozenset(
        [
            name
            for name, entry in state.quarantine.items()
            if entry.since_s + rest_s <= at_s < entry.until_s
        ]
    )


def quarantined(state: State, variant: str, reason: str, at_s: float) -> State:
    """Leave a variant out, twice as long as the last time.

    As long as the last time, if that isn't over: it was tried in spite of it.
    """
    known = state.quarantine.get(variant)
    if known is not None and at_s < known.until_s:
        entry = Quarantine(at_s + known.wait_s, known.wait_s, reason)
    else:
        entry = _longer(known, reason, at_s)
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


def _left_out(state: State, variant: str, at_s: float) -> bool:
    entry = state.quarantine.get(variant)
    return entry is not None and at_s < entry.until_s


def _counted(state: State, variant: str, at_s: float, *, barren: bool) -> State:
    """One more worker of a variant is gone; the next one waits the longer, the more were barren."""
    times = _with(state.barren.get(variant, ()), at_s, BARREN_WINDOW_S) if barren else ()
    count = len(times)
    return replace(
        state,
        barren={**state.barren, variant: times},
        retry_s=at_s + (BACKOFF_S * 2 ** (count - 2) if count > 1 else 0.0),
    )


def _with(times: tuple[float, ...], at_s: float, window_s: float) -> tuple[float, ...]:
    """Those within the window, and this one."""
    return (*(time_s for time_s in times if at_s - time_s < window_s), at_s)
