"""What the daemon takes from a profile at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trimtab.domain.models import ModelSpec
from trimtab.errors import StateError
from trimtab.planner.device import DeviceModel
from trimtab.planner.device_fit import calibrate, fit
from trimtab.profile.here import this_device, versions
from trimtab.profile.store import load_profile, usable


@dataclass(frozen=True, slots=True)
class Known:
    """Figures of this device.

    Attributes:
        model: With measured speeds, load times and qualities where there are any.
        resident: Anonymous bytes of a worker just after loading, by variant.
        load_s: Load times, by variant.
        working: What a worker holds beyond `resident` once it serves, by variant.
        device: The model of this device; None if it wasn't measured.
        measured: Whether a profile of this device was found.
        reasons: Why something in the profile wasn't used, in words.
    """

    model: ModelSpec | None
    resident: Mapping[str, int] = field(default_factory=dict)
    load_s: Mapping[str, float] = field(default_factory=dict)
    working: Mapping[str, int] = field(default_factory=dict)
    device: DeviceModel | None = None
    measured: bool = False
    reasons: tuple[str, ...] = ()


def known_here(model: ModelSpec | None, state: Path, proc_root: Path, threads: int) -> Known:
    """Read the profile of a model, if there is one of this device. Never a reason not to start."""
    if model is None:
        return Known(None)
    model = _without_foreign_speeds(model, this_device(proc_root, "").cpu)
    try:
        kept = load_profile(state, model.model_id)
    except StateError as error:
        return Known(model, reasons=(error.message,))
    if kept is None:
        return Known(model)
    good, reasons = usable(kept, model, this_device(proc_root, kept.device.board), versions())
    if good is None:
        return Known(model, reasons=reasons)
    device = fit(good)
    return Known(
        calibrate(model, good, threads),
        {name: int(value) for name, value in device.resident.items()},
        dict(device.load_s),
        {name: int(device.working_bytes(name)) for name in device.in_use},
        device,
        measured=True,
        reasons=reasons,
    )


def _without_foreign_speeds(model: ModelSpec, cpu: str) -> ModelSpec:
    """The model without the speeds of variants that were built on another processor.

    First principles are nearer then: their error is the same for all variants, and observation
    takes it out within seconds.
    """
    variants = tuple(
        replace(one, decode_tps=None, prefill_tps=None)
        if one.proof_cpu and one.proof_cpu != cpu
        else one
        for one in model.variants
    )
    return replace(model, variants=variants)
