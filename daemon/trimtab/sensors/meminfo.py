"""`/proc/meminfo`: what the kernel says about the machine's memory."""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024


@dataclass(frozen=True, slots=True)
class MemInfo:
    """The lines of `/proc/meminfo` that matter here, in bytes.

    Attributes:
        estimated: True if the kernel gave no MemAvailable (before 3.14) and it was worked out.
    """

    total_bytes: int
    free_bytes: int
    available_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int
    dirty_bytes: int
    estimated: bool = False


def field_bytes(text: bytes, name: bytes) -> int | None:
    """One line of a file in meminfo's form (``Name:   123 kB``), in bytes; None if it isn't there.

    Args:
        text: The file.
        name: The name with its colon.

    Raises:
        ValueError: If the line holds no number.
    """
    if text.startswith(name):
        start = len(name)
    else:
        start = text.find(b"\n" + name)
        if start < 0:
            return None
        start += 1 + len(name)
    end = text.find(b"\n", start)
    words = text[start : end if end >= 0 else None].split()
    if not words:
        raise ValueError(f"{name.decode()} has no number")
    value = int(words[0])
    return value * _KIB if len(words) > 1 else value


def parse_available(text: bytes) -> int | None:
    """MemAvailable alone, for the fast path; None on a kernel without it."""
    return field_bytes(text, b"MemAvailable:")


def parse_meminfo(text: bytes) -> MemInfo:
    """Parses `/proc/meminfo`.

    Without MemAvailable the kernel's own estimate is made of what is there: free pages, half of
    the file pages and half of the reclaimable slab.

    Raises:
        ValueError: If it isn't meminfo: total or free are missing, or a number is none.
    """
    total = field_bytes(text, b"MemTotal:")
    free = field_bytes(text, b"MemFree:")
    if not total or free is None:
        raise ValueError("MemTotal or MemFree is missing")

    def optional(name: bytes) -> int:
        return field_bytes(text, name) or 0

    available = parse_available(text)
    estimated = available is None
    if available is None:
        files = optional(b"Active(file):") + optional(b"Inactive(file):")
        available = free + files // 2 + optional(b"SReclaimable:") // 2
    return MemInfo(
        total_bytes=total,
        free_bytes=free,
        available_bytes=available,
        swap_total_bytes=optional(b"SwapTotal:"),
        swap_free_bytes=optional(b"SwapFree:"),
        dirty_bytes=optional(b"Dirty:") + optional(b"Writeback:"),
        estimated=estimated,
    )
