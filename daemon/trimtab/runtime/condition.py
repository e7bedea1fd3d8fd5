"""The daemon's condition in a word: what readyz, systemd and people are told."""

from __future__ import annotations

from typing import Final

from trimtab.runtime.daemon import Daemon

NO_MODEL: Final = "there is no model; `trimtab models build smollm2-135m` makes one"


def condition(daemon: Daemon) -> tuple[str, str]:
    """One of ``ready``, ``loading``, ``parked``, ``no_model``, ``degraded`` and ``draining``.

    Returns:
        The word, and why it isn't ``ready``.
    """
    if daemon.draining:
        return "draining", "the daemon is shutting down"
    if daemon.gateway.model() is None:
        return "no_model", NO_MODEL
    worker = daemon.streams.active
    if worker is not None and daemon.supervisor.falters(worker):
        silent = f"said nothing for {daemon.supervisor.silent_s(worker):.0f} s"
        if daemon.streams.has_work(worker):
            return "degraded", f"the worker has work and has {silent}"
        return "degraded", f"the worker was asked something and has {silent}"
    if worker is not None:
        return "ready", ""
    if daemon.dispatcher.loading:
        return "loading", "a variant is being loaded"
    return "parked", daemon.gateway.why_not_loaded
