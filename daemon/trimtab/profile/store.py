"""Profiles in the state directory: one file a model, written after every measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from trimtab.domain.models import ModelSpec
from trimtab.domain.profile import Device, Measurement, Profile
from trimtab.errors import StateError
from trimtab.profile.here import engine_changes, foreign, variant_changes
from trimtab.telemetry.state import read_state, write_state

VERSION: Final = 1
FOLDER: Final = "profiles"


def profile_path(state: Path, model_id: str) -> Path:
    """Where a model's profile is kept."""
    return state / FOLDER / f"{model_id}.json"


def load_profile(state: Path, model_id: str) -> Profile | None:
    """The profile that is kept, whoever's it is; None if there is none.

    Raises:
        StateError: It is damaged, or a newer trimtab wrote it.
    """
    return read_state(profile_path(state, model_id), Profile, VERSION)


def save_profile(state: Path, profile: Profile) -> None:
    """Keep a profile.

    Raises:
        StateError: The disk is full, or the folder can't be written; the old one is still there.
    """
    path = profile_path(state, profile.model_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"{path.parent}: can't be made: {error.strerror}") from error
    write_state(path, profile, VERSION)


def usable(
    profile: Profile, model: ModelSpec, device: Device, versions: Mapping[str, str]
) -> tuple[Profile | None, tuple[str, ...]]:
    """What of a profile is still true here, and what isn't, in words.

    Another device's is of no use at all. Other versions of the engine make all of it stale; other
    files of a variant, all that was measured of that variant.

    Returns:
        The profile without what is stale (None if nothing is left), and the reasons.
    """
    reason = foreign(profile, device)
    if reason:
        return None, (reason,)
    engine = engine_changes(profile, versions)
    if engine:
        return None, engine
    changed = variant_changes(profile, model)
    good = {v.name for v in model.variants if v.name not in changed}
    return (
        replace(
            profile,
            variants={name: profile.variants[name] for name in good},
            measurements=tuple(m for m in profile.measurements if _about(m, good)),
            quality=tuple(q for q in profile.quality if q.variant in good),
        ),
        tuple(changed.values()),
    )


def with_measurement(profile: Profile, measured: Measurement) -> Profile:
    """The profile with one measurement more; one of the same thing is replaced."""
    kept = tuple(one for one in profile.measurements if one.key != measured.key)
    return replace(profile, measurements=(*kept, measured))


def merged(before: Measurement | None, now: Measurement) -> Measurement:
    """The samples of two measurements of the same thing together."""
    if before is None:
        return now
    return replace(
        now,
        values=(*before.values, *now.values),
        wait_ratios=(*before.wait_ratios, *now.wait_ratios),
        marks=tuple(dict.fromkeys((*before.marks, *now.marks))),
    )


def _about(measured: Measurement, good: set[str]) -> bool:
    """Whether all variants that a measurement is of are still what they were."""
    names = {measured.variant} if measured.variant else set()
    if measured.kind.value == "handover":
        names.add(measured.detail)
    return names <= good
