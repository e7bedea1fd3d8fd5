"""The facts that a figure is worth nothing without: which machine, which versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from trimtab import __version__
from trimtab.errors import TrimtabError
from trimtab.sensors.meminfo import parse_available

_PACKAGES: Final = ("onnxruntime", "onnxruntime-genai", "numpy", "uvicorn", "starlette")


def machine(proc_root: Path = Path("/proc")) -> dict[str, Any]:
    """This machine, and how busy it is: on a busy one only ratios say anything."""
    memory = parse_fields(_text(proc_root / "meminfo"))
    return {
        "cpu": parse_fields(_text(proc_root / "cpuinfo")).get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": _kilobytes(memory.get("MemTotal", "")) // 1024,
        "kernel": platform.release(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def available_bytes() -> int:
    """Memory that the kernel says is available on the whole machine.

    Raises:
        TrimtabError: The kernel doesn't say.
    """
    available = parse_available(Path("/proc/meminfo").read_bytes())
    if available is None:
        raise TrimtabError("this kernel doesn't say how much memory is available")
    return available


def versions() -> dict[str, str]:
    """What was measured, and with what."""
    found = {"trimtab": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def parse_fields(text: str) -> dict[str, str]:
    """The first value of each ``name : value`` of a file below /proc."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _kilobytes(text: str) -> int:
    number = text.split(" ")[0]
    return int(number) if number.isdecimal() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
