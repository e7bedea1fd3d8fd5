"""Temperatures: thermal zones by type, and hwmon sensors by chip and label.

Numbers of zones and chips move between boots and several zones share one type, so both are found
by what they say that they are, at each look, and the hottest of those with one name counts. psutil
isn't used: it divides wrongly on some drivers and takes their sentinels for temperatures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from trimtab.domain.readings import Quality, Reading
from trimtab.sensors.board import Board, matches
from trimtab.sensors.source import Files, Roots, explain
from trimtab.sensors.zones import (
    Trip,
    doubt,
    lowest_trip,
    parse_millidegrees,
    plausible_trip,
    slug,
)
from trimtab.signals.estimators import OutlierFilter, StuckDetector

_MOST_ZONES: Final = 256
_MOST_TRIPS: Final = 16
_TRIPS_EVERY_S: Final = 60.0
_JUMP_CELSIUS: Final = 12.0
_JUMP_CELSIUS_PER_S: Final = 8.0
_STUCK_AFTER_S: Final = 60.0
_STUCK_SAMPLES: Final = 30
_STUCK_ABOVE_CELSIUS: Final = 25.0  # only a zone that is this much hotter than the median misleads


@dataclass(slots=True)
class _Probe:
    """What is remembered of one zone or sensor between looks.

    Args:
        kind: The type it had; another one means that the numbers have moved.
    """

    kind: str
    outliers: OutlierFilter = field(
        default_factory=lambda: OutlierFilter(_JUMP_CELSIUS, _JUMP_CELSIUS_PER_S)
    )
    stuck: StuckDetector = field(
        default_factory=lambda: StuckDetector(_STUCK_AFTER_S, _STUCK_SAMPLES)
    )
    trips: tuple[Trip, ...] = ()
    trips_s: float = float("-inf")


@dataclass(slots=True)
class _Sample:
    """One zone or sensor at one look."""

    name: str  # a zone's type, or chip/label
    signal: str
    celsius: float | None
    quality: Quality = Quality.GOOD
    reason: str = ""
    trips: tuple[Trip, ...] = ()
    stuck: bool = False
    used: bool = False


class ThermalSensor:
    """All temperatures of the machine, and the one that matters.

    Args:
        roots: Where `/proc` and `/sys` are.
        board: Which zones mean what.
    """

    signals = ("temperature.max", "temperature.headroom")
    period_s = 1.0

    def __init__(self, roots: Roots, board: Board) -> None:
        self._zones = f"{roots.sys}/class/thermal"
        self._chips = f"{roots.sys}/class/hwmon"
        self._board = board
        self._probes: dict[str, _Probe] = {}

    def read(self, at_s: float, files: Files) -> list[Reading]:
        """Every zone by name, the hottest that counts, and its distance to its trip point."""
        zones = [name for name in files.entries(self._zones) if name.startswith("thermal_zone")]
        chips = [name for name in files.entries(self._chips) if name.startswith("hwmon")]
        probes: dict[str, _Probe] = {}
        samples = [self._zone(zone, at_s, files, probes) for zone in zones[:_MOST_ZONES]]
        for chip in chips[:_MOST_ZONES]:
            samples += self._chip(chip, at_s, files, probes)
        self._probes = probes  # what is gone is forgotten
        _doubt_stuck(samples)
        left_out = max(0, len(zones) - _MOST_ZONES)
        return [*_by_signal(samples, at_s), *self._hottest(samples, left_out, at_s)]

    def _probe(self, path: str, kind: str, probes: dict[str, _Probe]) -> _Probe:
        probe = self._probes.get(path)
        if probe is None or probe.kind != kind:
            probe = _Probe(kind)
        probes[path] = probe
        return probe

    def _zone(self, zone: str, at_s: float, files: Files, probes: dict[str, _Probe]) -> _Sample:
        folder = f"{self._zones}/{zone}"
        try:
            kind = files.read(f"{folder}/type").strip()
        except OSError as error:
            quality, reason = explain(error)
            return _Sample("", f"temperature.zone.{slug(zone)}", None, quality, reason)
        probe = self._probe(folder, kind, probes)
        sample = _Sample(kind, f"temperature.zone.{slug(kind)}", None)
        sample.used = self._board.zones.used(kind)
        if self._board.zones.ignored(kind):
            sample.quality, sample.reason = Quality.SUSPECT, "on the board profile's deny-list"
        self._measure(sample, probe, f"{folder}/temp", at_s, files)
        if at_s - probe.trips_s >= _TRIPS_EVERY_S:
            probe.trips, probe.trips_s = _zone_trips(folder, files), at_s
        sample.trips = probe.trips
        return sample

    def _chip(
        self, chip: str, at_s: float, files: Files, probes: dict[str, _Probe]
    ) -> Iterable[_Sample]:
        folder = f"{self._chips}/{chip}"
        try:
            name = files.read(f"{folder}/name").strip()
        except OSError:
            return  # gone, or an old kernel's device without a name: nothing to choose it by
        for entry in files.entries(folder):
            if not (entry.startswith("temp") and entry.endswith("_input")):
                continue
            base = f"{folder}/{entry[: -len('_input')]}"
            full = f"{name}/{_label(base, entry, files)}"
            probe = self._probe(base, full, probes)
            sample = _Sample(
                full, f"temperature.hwmon.{slug(name)}.{slug(full[len(name) :])}", None
            )
            sample.used = self._board.sensors.used(full)
            if self._board.sensors.ignored(full):
                sample.quality, sample.reason = Quality.SUSPECT, "on the board profile's deny-list"
            if _says(f"{base}_fault", files) == "1":
                sample.quality, sample.reason = Quality.FAILED, "the driver reports a fault"
            else:
                self._measure(sample, probe, f"{folder}/{entry}", at_s, files)
            if at_s - probe.trips_s >= _TRIPS_EVERY_S:
                probe.trips, probe.trips_s = _chip_trips(base, files), at_s
            sample.trips = probe.trips
            yield sample

    def _measure(
        self, sample: _Sample, probe: _Probe, path: str, at_s: float, files: Files
    ) -> None:
        """Reads a temperature and judges it."""
        try:
            celsius = parse_millidegrees(
                files.read(path), degrees=matches(sample.name, self._board.degrees)
            )
        except (OSError, ValueError) as error:
            sample.quality, sample.reason = explain(error)
            return
        sample.celsius = celsius
        if reason := doubt(celsius):
            sample.quality, sample.reason = Quality.SUSPECT, reason
            return
        if not probe.outliers.add(at_s, celsius) and sample.quality is Quality.GOOD:
            sample.quality = Quality.SUSPECT
            sample.reason = "a jump that the next reading has to confirm"
        sample.stuck = probe.stuck.add(at_s, celsius)

    def _hottest(self, samples: list[_Sample], left_out: int, at_s: float) -> list[Reading]:
        """`temperature.max` and `temperature.headroom`."""
        chosen = [sample for sample in samples if sample.used]
        if not chosen:
            chosen = [sample for sample in samples if not self._ignored(sample)]
        if not chosen:
            return []
        good = [s for s in chosen if s.quality is Quality.GOOD and s.celsius is not None]
        if not good:
            worst = chosen[0]
            return [
                Reading(signal, None, at_s, worst.quality, f"{worst.name}: {worst.reason}")
                for signal in self.signals
            ]
        hottest = max(good, key=lambda sample: sample.celsius or 0.0)
        reason = f"{hottest.name}, hottest of {len(good)}"
        if left_out:
            reason += f"; {left_out} more zones than can be read"
        if len(good) < len(chosen):
            reason += f"; {len(chosen) - len(good)} can't be trusted"
        return [
            Reading("temperature.max", hottest.celsius, at_s, Quality.GOOD, reason),
            self._headroom(good, at_s),
        ]

    def _ignored(self, sample: _Sample) -> bool:
        selection = (
            self._board.sensors
            if sample.signal.startswith("temperature.hwmon.")
            else self._board.zones
        )
        return not sample.name or selection.ignored(sample.name)

    def _headroom(self, good: list[_Sample], at_s: float) -> Reading:
        """The least distance of a zone to its first serious trip point."""
        found = []
        for sample in good:
            trip = lowest_trip((*sample.trips, *self._board.trips))
            if trip is not None and sample.celsius is not None:
                text = f"{sample.name}: {trip.kind} trip at {trip.celsius:g} °C"
                found.append((trip.celsius - sample.celsius, text))
        if not found:
            reason = "no zone has a plausible trip point"
            return Reading("temperature.headroom", None, at_s, Quality.ABSENT, reason)
        headroom, text = min(found)
        return Reading("temperature.headroom", headroom, at_s, Quality.GOOD, text)


def _zone_trips(folder: str, files: Files) -> tuple[Trip, ...]:
    """The plausible trip points of a zone."""
    trips = []
    for number in range(_MOST_TRIPS):
        try:
            kind = files.read(f"{folder}/trip_point_{number}_type").strip()
            celsius = parse_millidegrees(files.read(f"{folder}/trip_point_{number}_temp"))
        except FileNotFoundError:
            break
        except (OSError, ValueError):
            continue
        if plausible_trip(celsius):
            trips.append(Trip(kind, celsius))
    return tuple(trips)


def _chip_trips(base: str, files: Files) -> tuple[Trip, ...]:
    """A hwmon sensor's limits as trip points."""
    trips = []
    for suffix, kind in (("max", "hot"), ("crit", "critical")):
        try:
            celsius = parse_millidegrees(_says(f"{base}_{suffix}", files))
        except ValueError:
            continue
        if plausible_trip(celsius):
            trips.append(Trip(kind, celsius))
    return tuple(trips)


def _says(path: str, files: Files) -> str:
    """The file's text; empty if it can't be read, which these optional files mostly can't."""
    try:
        return files.read(path).strip()
    except OSError:
        return ""


def _label(base: str, entry: str, files: Files) -> str:
    return _says(f"{base}_label", files) or entry.removesuffix("_input")


def _doubt_stuck(samples: list[_Sample]) -> None:
    """Marks zones that never move and are far hotter than the rest: not measured, a constant."""
    known = sorted(s.celsius for s in samples if s.celsius is not None and not s.stuck)
    if not known:
        return
    median = known[len(known) // 2]
    for sample in samples:
        if sample.stuck and (sample.celsius or 0.0) >= median + _STUCK_ABOVE_CELSIUS:
            sample.quality = Quality.SUSPECT
            sample.reason = "hasn't moved for a minute, and is far hotter than the other zones"


def _by_signal(samples: list[_Sample], at_s: float) -> list[Reading]:
    """One reading for each name: the hottest good one of those that share it, else any."""
    best: dict[str, _Sample] = {}
    for sample in samples:
        other = best.get(sample.signal)
        if other is None or _rank(sample) > _rank(other):
            best[sample.signal] = sample
    return [Reading(signal, s.celsius, at_s, s.quality, s.reason) for signal, s in best.items()]


def _rank(sample: _Sample) -> tuple[bool, float]:
    return (
        sample.quality is Quality.GOOD,
        sample.celsius if sample.celsius is not None else float("-inf"),
    )
