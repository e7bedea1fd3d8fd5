"""Tasks that nobody awaits: started here, so that one that ends badly is always reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def spawn(
    work: Coroutine[Any, Any, None], name: str, report: Callable[[str, BaseException], None]
) -> asyncio.Task[None]:
    """Start a task; ``report`` is called with its name if it ends with an exception."""
    task = asyncio.get_running_loop().create_task(work, name=name)

    def ended(done: asyncio.Task[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            report(name, error)

    task.add_done_callback(ended)
    return task
