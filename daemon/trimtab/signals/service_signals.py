"""The signals of serving: what requests feel, and what the KV cache holds."""

from __future__ import annotations

from typing import Final

from trimtab.domain.readings import Unit
from trimtab.signals.spec import SignalSpec, in_bytes, in_seconds, ratio

_HERE: Final = "Of the variant that serves now; starts afresh when it changes."
_CLIENT: Final = "requests, over the policy's slo window"
_ENGINE: Final = "the worker's own timing, over the policy's slo window"

LATENCY: Final = (
    in_seconds(
        "latency.ttft_p95",
        _CLIENT,
        "p95 of the time from a request's arrival to its first token (TTFT).",
        _HERE,
    ),
    in_seconds(
        "latency.tpot_p95",
        _CLIENT,
        "p95 of a request's mean time per token after the first (TPOT).",
        f"{_HERE} Requests that crossed a switch don't count.",
    ),
    in_seconds(
        "latency.itl_p95",
        _CLIENT,
        "p95 of the gaps between tokens (ITL).",
        f"{_HERE} At most 5 % too large. The pause of a switch isn't in it.",
    ),
    in_seconds(
        "latency.engine_ttft_p95",
        _ENGINE,
        "p95 of the computing until a request's first token, waiting left out.",
        _HERE,
    ),
    in_seconds(
        "latency.engine_tpot_p95",
        _ENGINE,
        "p95 of a request's mean computing per token after the first.",
        f"{_HERE} What latency.tpot_p95 has more is sharing, pauses and sending.",
    ),
    in_seconds("queue.wait_p95", _CLIENT, "p95 of the wait until a worker began.", _HERE),
    SignalSpec("queue.depth", Unit.COUNT, "requests", "Requests that wait for a worker."),
    in_seconds("queue.oldest", "requests", "How long the longest waiting request has waited."),
    SignalSpec("requests.running", Unit.COUNT, "requests", "Requests that a worker is busy with."),
    in_seconds(
        "requests.silent",
        "requests",
        "How long the quietest running stream has brought no token.",
        "Rises during a switch and for paused streams.",
    ),
    ratio(
        "requests.slo_met",
        _CLIENT,
        "Share of the requests that ended which met every objective of the policy.",
    ),
    SignalSpec(
        "throughput.tokens_per_s",
        Unit.TOKENS_PER_S,
        "requests, over 10 s",
        "Tokens a second, all streams together.",
        high=1e6,
    ),
    SignalSpec(
        "throughput.goodput",
        Unit.PER_S,
        _CLIENT,
        "Requests a second that met every objective of the policy.",
        high=1e6,
    ),
)

_POOL: Final = "the KV pool's ledger: blocks of its segments"

KV: Final = (
    in_bytes(
        "kv.leased",
        _POOL,
        "Memory that the KV cache of running conversations takes.",
        "Held by the daemon, whether a worker has it mapped or not.",
    ),
    in_bytes(
        "kv.idle",
        _POOL,
        "Memory that the KV cache of ended conversations takes, kept for their next turn.",
        "The first thing that is given back when memory is short.",
    ),
    in_bytes("kv.stored", "files in the state directory", "KV cache that lies on disk."),
)
