"""Staying small: libraries without what they bring along for others, and freed memory given back.

The daemon is to stay small, and some libraries import servers, process pools and tables that it
never uses. While such a library is imported, those modules are out of reach, or empty ones stand in
for them; afterwards everything is as it was, and whoever wants the real ones gets them.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

_MISSING: Final = object()


def import_lean(
    library: str,
    *,
    absent: Sequence[str] = (),
    unused: Sequence[str] = (),
    again: Sequence[str] = (),
) -> ModuleType:
    """Import a library; one that has been imported already stays as it is.

    Args:
        library: The module.
        absent: Modules that it is to take for not installed.
        unused: Modules that it imports and of which nothing is called here: whatever it takes out
            of them is an empty class.
        again: Modules that keep something of the empty ones, to be imported afresh by the next who
            wants them.
    """
    if (present := sys.modules.get(library)) is not None:
        return present
    stand_ins: dict[str, Any] = dict.fromkeys(absent)
    stand_ins |= {name: _StandIn(name) for name in unused if name not in sys.modules}
    spoilt = [name for name in again if name not in sys.modules]
    with _in_place(stand_ins):
        module = importlib.import_module(library)
    for name in spoilt:
        sys.modules.pop(name, None)
    return module


def lean_daemon() -> None:
    """Import what the daemon uses, before anything imports it whole: 2 MB less."""
    import_lean(
        "apscheduler.schedulers.asyncio", unused=("multiprocessing", "concurrent.futures.process")
    )
    import_lean(
        "prometheus_client",
        unused=("gzip", "http.server", "socketserver", "urllib.request", "wsgiref.simple_server"),
    )
    import_lean("starlette.applications", unused=("html.entities",), again=("html",))


def give_back_free_memory() -> None:
    """Have the C library return what has been freed; where it can't (musl), nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class _StandIn(ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def _in_place(stand_ins: dict[str, Any]) -> Iterator[None]:
    before = {name: sys.modules.get(name, _MISSING) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is _MISSING:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module  # type: ignore[assignment]
