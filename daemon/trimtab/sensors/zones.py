"""Thermal zones and their trip points as text from sysfs, and what of it can be believed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LOWEST_CELSIUS: Final = -40.0
HIGHEST_CELSIUS: Final = 150.0
LOWEST_TRIP_CELSIUS: Final = 30.0  # a trip point below is a placeholder (0, −274, 0.1)
_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9]+")
_DEGREES_AT_MOST: Final = 150  # raw values up to this are degrees or next to nothing


def parse_millidegrees(text: str, *, degrees: bool = False) -> float:
    """A temperature file's integer as degrees Celsius.

    Args:
        text: The file: an integer in millidegrees.
        degrees: True for a driver that is known to write whole degrees.

    Raises:
        ValueError: If it is no integer.
    """
    return float(int(text.strip())) if degrees else int(text.strip()) / 1000


def doubt(celsius: float) -> str:
    """Why a temperature can't be believed; empty if it can."""
    if celsius <= -273:
        return f"{celsius:.0f} °C is how a driver says that it has no value"
    if not LOWEST_CELSIUS <= celsius <= HIGHEST_CELSIUS:
        return f"{celsius:.1f} °C is outside {LOWEST_CELSIUS:.0f} to {HIGHEST_CELSIUS:.0f} °C"
    if 0 < celsius * 1000 <= _DEGREES_AT_MOST:
        return (
            f"{celsius * 1000:.0f} m°C looks like whole degrees; "
            "if it is, list the zone under degrees in a board profile"
        )
    return ""


def plausible_trip(celsius: float) -> bool:
    """Whether a trip point means anything."""
    return LOWEST_TRIP_CELSIUS <= celsius <= HIGHEST_CELSIUS


def slug(text: str) -> str:
    """A zone's type or a label as a part of a signal's name: ``CPU-therm`` → ``cpu_therm``."""
    return _NOT_IN_A_NAME.sub("_", text.strip().lower()).strip("_") or "unnamed"


@dataclass(frozen=True, slots=True)
class Trip:
    """A trip point.

    Attributes:
        kind: ``passive`` (the kernel slows down), ``hot``, ``critical`` (it shuts down), ``active``
            (a fan starts).
        celsius: At what temperature.
    """

    kind: str
    celsius: float


def lowest_trip(trips: tuple[Trip, ...]) -> Trip | None:
    """The first trip point that costs speed or the machine; fans don't count."""
    serious = [trip for trip in trips if trip.kind in {"passive", "hot", "critical"}]
    return min(serious, key=lambda trip: trip.celsius, default=None)
