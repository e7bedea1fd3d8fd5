"""Pins that can't be carried out: refused at once, or told why they wait."""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.domain.knobs import Knob
from trimtab.errors import RequestError
from trimtab.planner.assess import in_quarantine, kept_out
from trimtab.planner.state import Quarantine, State
from trimtab.telemetry.words import seconds


def refuse_broken(state: State, knobs: Mapping[Knob, str | int | float], at_s: float) -> None:
    """Refuse to pin a variant that is left out for now, since it failed.

    Args:
        state: The core's.
        knobs: What is to be pinned.
        at_s: Now, in monotonic time.

    Raises:
        RequestError: It names the variant, why it failed and when it may be had again.
    """
    variant = knobs.get(Knob.VARIANT)
    entry = in_quarantine(state, variant, at_s)
    if entry is None:
        return
    serving = state.point.variant
    goes_on = "" if serving is None else f"; {serving} serves on"
    raise RequestError(
        f"{variant} can't be pinned now, since it failed ({entry.reason}); "
        f"{_again(entry, at_s)}{goes_on}",
        param=str(Knob.VARIANT),
        status=409,
        code="variant_quarantined",
        hint="`trimtab models verify` tells whether its files are whole; "
        "`trimtab points --all` shows what else can be had.",
    )


def pin_waits(state: State, at_s: float) -> str:
    """Why the pinned variant isn't to be had for now, in words; empty if nothing keeps it out."""
    entry = kept_out(state, at_s)
    return "" if entry is None else f"{_again(entry, at_s)}, since it failed ({entry.reason})"


def _again(entry: Quarantine, at_s: float) -> str:
    return f"it may be tried again in {seconds(entry.until_s - at_s)}"
