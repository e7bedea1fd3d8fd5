"""Text that comes in pieces, when some strings in it mean something: how much must wait."""

from __future__ import annotations

from collections.abc import Collection


def held_back(text: str, wanted: Collection[str]) -> int:
    """Length of the longest end of ``text`` with which one of the wanted strings begins.

    That much may turn out to be one of them, and nobody can be shown it yet.

    Args:
        text: What has come, without a whole one of them in it.
        wanted: The strings.
    """
    longest = max(map(len, wanted), default=0)
    for length in range(min(len(text), longest - 1), 0, -1):
        tail = text[-length:]
        if any(one.startswith(tail) for one in wanted):
            return length
    return 0
