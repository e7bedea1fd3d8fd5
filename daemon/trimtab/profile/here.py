"""Which device this is, with which software and which files: what a profile is valid for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from trimtab import __version__
from trimtab.catalog.processor import parse_cpu_name
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.profile import Device, Profile

_PACKAGES: Final = ("onnxruntime", "onnxruntime-genai")
MEMORY_TOLERANCE: Final = 0.02  # a kernel update reserves a little more or less


def parse_memory(text: str) -> int:
    """MemTotal of ``/proc/meminfo`` in bytes; 0 if it isn't there."""
    for line in text.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def this_device(proc_root: Path, board: str, machine_id: Path = Path("/etc/machine-id")) -> Device:
    """The device that we run on. What can't be read stays empty."""
    machine = _read(machine_id).strip()
    return Device(
        machine=hashlib.sha256(f"trimtab {machine}".encode()).hexdigest()[:16] if machine else "",
        cpu=parse_cpu_name(_read(proc_root / "cpuinfo")),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=parse_memory(_read(proc_root / "meminfo")),
        board=board,
    )


def versions() -> dict[str, str]:
    """Of everything that the figures depend on."""
    found = {"trimtab": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def signature(variant: VariantSpec) -> str:
    """A hash over the names and sizes of a variant's files: cheap, and it changes with a build."""
    try:
        files = [path for path in sorted(Path(variant.folder).iterdir()) if path.is_file()]
        parts = [f"{path.name} {path.stat().st_size}" for path in files]
    except OSError:
        return ""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def foreign(profile: Profile, device: Device) -> str:
    """Why a profile is another device's, in words; empty if it is this one's."""
    was = profile.device
    if was.machine and device.machine and was.machine != device.machine:
        return "it was measured on another machine"
    if was.cpu != device.cpu:
        return f"it was measured on {was.cpu}, and this is {device.cpu}"
    if was.cores != device.cores:
        return f"it was measured with {was.cores} cores, and there are {device.cores}"
    if abs(was.memory_bytes - device.memory_bytes) > MEMORY_TOLERANCE * was.memory_bytes:
        return "the memory of this machine has another size than when it was measured"
    return ""


def engine_changes(profile: Profile, now: Mapping[str, str]) -> tuple[str, ...]:
    """Which parts of the engine have other versions than when it was measured, in words."""
    return tuple(
        f"{name} is {now[name]} now, and was {profile.versions[name]}"
        for name in _PACKAGES
        if name in profile.versions and now.get(name, "") != profile.versions[name]
    )


def variant_changes(profile: Profile, model: ModelSpec) -> dict[str, str]:
    """What has become of the model's variants since then, in words, by name."""
    return {
        variant.name: f"the files of variant {variant.name} have changed"
        if variant.name in profile.variants
        else f"variant {variant.name} was never measured"
        for variant in model.variants
        if profile.variants.get(variant.name) != signature(variant)
    }


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
