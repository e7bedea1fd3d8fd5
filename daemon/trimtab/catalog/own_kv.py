"""Checks that the second graph gives the first one's logits, bit for bit, on KV buffers of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from trimtab.catalog.compare import divergences, log_softmax
from trimtab.catalog.own_session import OwnSession
from trimtab.flash_attention import flash_attention_off

STEP: Final = 16
POSITIONS: Final = 256
MOST_KL: Final = 0.05
"""Between two ways to round: int4 has some thousandths, a wrong graph has more than one."""


def indices_are_exact(request: dict[str, Any], ids: np.ndarray[Any, Any]) -> bool:
    """Run a prompt in two pieces and some single tokens through both graphs.

    With the same kernels the bits are the same. The second graph is also run without flash
    attention, as a worker runs one that is made for it, and predicts nearly the same.

    The first piece asks for all rows, the second for none but its last, then one token at a time.

    Args:
        request: As `OwnSession` has it, with `graph` and `indices_graph`.
        ids: Token ids, at least 64 of them.
    """
    half = len(ids) // 2
    pieces = [(ids[:half], None), (ids[half:-STEP], [len(ids) - STEP - half - 1])]
    pieces += [(ids[at : at + 1], [0]) for at in range(len(ids) - STEP, len(ids))]
    original = list(_run(request, str(request["graph"]), pieces, False))
    second = str(request["indices_graph"])
    edited = _run(request, second, pieces, True)
    if not all(_same(a, b) for a, b in zip(original, edited, strict=True)):
        return False
    with flash_attention_off():
        as_served = list(_run(request, second, pieces, True))
    return _mean_kl(np.concatenate(original), np.concatenate(as_served)) <= MOST_KL


def logits_of(
    request: dict[str, Any], ids: np.ndarray[Any, Any], piece: int
) -> np.ndarray[Any, Any]:
    """Logits (tokens, vocabulary) of the builder's own graph.

    Args:
        request: As above.
        ids: Token ids, no more than the buffers hold.
        piece: Tokens that are read at once.
    """
    pieces = [(ids[at : at + piece], None) for at in range(0, len(ids), piece)]
    return np.concatenate(list(_run(request, str(request["graph"]), pieces, False)))


def _mean_kl(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    """Mean KL divergence of predictions, from logits (tokens, vocabulary)."""
    return float(divergences(log_softmax(ours), log_softmax(theirs)).mean())


def _same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _run(
    request: dict[str, Any],
    graph: str,
    pieces: Iterable[tuple[np.ndarray[Any, Any], list[int] | None]],
    indices: bool,
) -> Iterator[np.ndarray[Any, Any]]:
    """The rows that each piece asks for."""
    session = OwnSession(request, graph, POSITIONS)
    for piece, rows in pieces:
        wanted = list(range(len(piece))) if rows is None else rows
        logits = session.read(piece, wanted if indices else None)
        yield logits if indices else logits[wanted]
