"""What the control routes take."""

from __future__ import annotations

from typing import Final

import msgspec

from trimtab.api.bodies import refuse
from trimtab.domain.knobs import Knob
from trimtab.domain.readings import Unit
from trimtab.policy.units import QuantityError, parse_quantity
from trimtab.serving.control import PushedSignal

MAX_PIN_S: Final = 30 * 86400.0


class PinBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs to fix, and for how long (``10m``, or seconds); unset: until they are unpinned."""

    knobs: dict[str, str | int | float]
    for_: str | float | None = msgspec.field(default=None, name="for")


class SignalBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value of one's own: ``{"name": "room", "value": 21.5, "unit": "celsius", "for": "1m"}``."""

    name: str
    value: float
    unit: str
    for_: str | float = msgspec.field(name="for")
    low: float | None = None
    high: float | None = None


class PolicyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy to use, by its name."""

    policy: str


class PolicyTextBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy as text that stands by itself."""

    text: str


class TrialBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate policy, as text that stands by itself, and how long to try it (``10m``)."""

    text: str
    for_: str | float = msgspec.field(default=600.0, name="for")


def trial_of(body: TrialBody) -> tuple[str, float]:
    """The text and the duration in seconds.

    Raises:
        RequestError: It is no duration.
    """
    return body.text, _duration_s(body.for_) or 0.0


def signal_of(body: SignalBody) -> PushedSignal:
    """The signal, its time to live in seconds.

    Raises:
        RequestError: An unknown unit, or no duration.
    """
    units = [unit.value for unit in Unit]
    if body.unit not in units:
        raise refuse("unit", f"There is no such unit; units are {', '.join(units)}.")
    for_s = _duration_s(body.for_) or 0.0
    return PushedSignal(body.name, body.value, body.unit, for_s, body.low, body.high)


def pin_of(body: PinBody) -> tuple[dict[str, str | int | float], float | None]:
    """The knobs and the duration in seconds.

    Raises:
        RequestError: No knob, a knob that doesn't exist, or no duration.
    """
    if not body.knobs:
        raise refuse("knobs", '\'knobs\' is empty; name at least one, such as {"variant": "int8"}.')
    known = [knob.value for knob in Knob]
    for name in body.knobs:
        if name not in known:
            raise refuse(
                f"knobs.{name[:32]}", f"There is no such knob; knobs are {', '.join(known)}."
            )
    return body.knobs, _duration_s(body.for_)


def _duration_s(told: str | float | None) -> float | None:
    if told is None:
        return None
    try:
        duration_s = told if isinstance(told, float) else parse_quantity(told, Unit.SECONDS)
    except QuantityError as error:
        raise refuse("for", error.message) from error
    if not 0 < duration_s <= MAX_PIN_S:
        raise refuse("for", "'for' is above 0 and at most 30 days.")
    return duration_s
