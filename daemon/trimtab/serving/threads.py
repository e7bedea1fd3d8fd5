"""Blocking work beside the loop, in threads: they can't be stopped, and use descriptors of ours.

A disk may hang for minutes, or for ever, and a thread with it. Work on KV disks has threads of its
own, so that nobody else's is taken.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

_DISK_THREADS: Final = ThreadPoolExecutor(4, "kv-disk")
_CLOSING: Final = ThreadPoolExecutor(1, "kv-close")


def on_disk(work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Begin work on a disk, for somebody who may not wait for its end."""
    return asyncio.get_running_loop().run_in_executor(_DISK_THREADS, partial(work, *args))


def close_on_disk(descriptor: int) -> None:
    """Close a file on a KV disk, soon.

    With its last descriptor an unnamed file gives its space back. A frozen ext4 puts that off; what
    other filesystems and disks that hang do then is not for the loop to find out.
    """
    _CLOSING.submit(os.close, descriptor)


async def in_time(
    running: asyncio.Future[T], patience_s: float, leave: Callable[[asyncio.Future[T]], None]
) -> bool:
    """Wait for work in a thread, but not for ever; a cancellation doesn't wait at all.

    Descriptors that the thread uses are to stay open until it has ended.

    Args:
        running: The work.
        patience_s: How long it may take.
        leave: Is given the work if it takes longer, or if nobody waits for it any more: it goes on.

    Returns:
        True if it is done.
    """
    done = False
    try:
        await asyncio.wait([running], timeout=patience_s)
        done = running.done()
    finally:
        if not done:
            leave(running)
    return done
