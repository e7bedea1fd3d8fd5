"""What a shift of the window costs: a text goes on with and without it, and both are compared.

The text is read up to a full window. Then it goes on twice: with all that was read, and after a
shift as conversations get it (the first tokens stay, the older half of the rest is forgotten). How
far the second's predictions are from the first's is the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trimtab.catalog.compare import divergences, log_softmax
from trimtab.catalog.own_session import OwnSession
from trimtab.catalog.rotation import Rotation, refusal
from trimtab.domain.models import RopeSpec
from trimtab.domain.view import SINKS, View

WINDOW: Final = 1024
GOES_ON: Final = 256
PIECE: Final = 64

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


def shift_loss(request: dict[str, Any], ids: Ids) -> dict[str, float | str] | None:
    """Measure it over a text.

    Args:
        request: As `OwnSession` has it, with `graph`, `context` and `rope`.
        ids: The text's token ids.

    Returns:
        ``shift_mean_kl`` in nats a token, ``shift_perplexity`` and ``unshifted_perplexity`` of
        the same tokens, ``shift_by`` (``turned`` or ``read again``) and ``shift_window``; None
        where the text is too short or the graph can't be run here.
    """
    window = min(WINDOW, int(request["context"]) * 3 // 4, len(ids) * 3 // 4)
    goes_on = min(GOES_ON, window // 3)
    session = OwnSession(request, str(request["graph"]), window + goes_on)
    if session.unknown_inputs or goes_on < PIECE:
        return None
    rope = RopeSpec(**request["rope"]) if request.get("rope") else None
    first_buffer = next(iter(session.buffers.values()))
    turns = None if refusal(rope, first_buffer.dtype) else rope
    kl: list[float] = []
    surprise: dict[str, list[float]] = {"whole": [], "shifted": []}
    for start in range(0, len(ids) - window - goes_on + 1, window + goes_on):
        part = ids[start : start + window + goes_on]
        whole = _predictions(session, part, window)
        session.length = window
        _shift(session, part[:window], turns)
        shifted = _predictions(session, part, window, read=session.length)
        kl += divergences(whole, shifted).tolist()
        following = part[window + 1 :]
        for name, rows in (("whole", whole), ("shifted", shifted)):
            surprise[name] += (-rows[np.arange(len(following)), following]).tolist()
    return {
        "shift_mean_kl": float(np.mean(kl)),
        "shift_perplexity": float(np.exp(np.mean(surprise["shifted"]))),
        "unshifted_perplexity": float(np.exp(np.mean(surprise["whole"]))),
        "shift_by": "read again" if turns is None else "turned",
        "shift_window": float(window),
    }


def _predictions(session: OwnSession, part: Ids, window: int, read: int = 0) -> Rows:
    """Log-probabilities of what follows each token after the window; (tokens − 1, vocabulary)."""
    if not read:
        session.length = 0
        for piece in _pieces(part[:window]):
            session.read(piece)
    rows = [log_softmax(session.read(piece)) for piece in _pieces(part[window:])]
    return np.concatenate(rows)[:-1]


def _pieces(ids: Ids) -> Iterator[Ids]:
    return (ids[at : at + PIECE] for at in range(0, len(ids), PIECE))


def _shift(session: OwnSession, ids: Ids, rope: RopeSpec | None) -> None:
    """Forget the older half of what isn't kept."""
    view = View(SINKS).narrowed(len(ids), len(ids) + 1)
    if rope is None:
        session.length = view.keep
        for piece in _pieces(np.asarray(view.of(ids.tolist())[view.keep :], np.int64)):
            session.read(piece)
        return
    rotation = Rotation(rope, view.dropped)
    end = view.cached(len(ids))
    for name, buffer in session.buffers.items():
        rest = buffer[:, :, view.keep + view.dropped : len(ids)]
        turned = rotation.turn(rest) if name.endswith(".key") else rest.copy()
        buffer[:, :, view.keep : end] = turned
    session.length = end
