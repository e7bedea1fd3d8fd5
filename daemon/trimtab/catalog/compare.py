"""How far a variant's predictions are from the text, and from the best variant's predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

EARLY: Final = slice(32, 256)
LATE_FROM: Final = 512


class Reference:
    """The best variant's log-probabilities: written by it, read by the others.

    They are kept as float16 (tokens × vocabulary): half the disk, and an error in the mean KL far
    below what tells two variants apart.

    Args:
        path: The file; None if there is nothing to compare with.
        tokens: Rows.
        vocabulary: Columns.
        write: Whether this variant is the reference.
    """

    def __init__(self, path: Path | None, tokens: int, vocabulary: int, write: bool) -> None:
        self.writes = write
        self._rows: Any = None
        if path is not None:
            mode: Any = "w+" if write else "r"
            self._rows = np.memmap(path, np.float16, mode, shape=(tokens, vocabulary))

    def put(self, row: int, log_probs: np.ndarray[Any, Any]) -> None:
        """Keep the reference's rows."""
        if self._rows is not None:
            self._rows[row : row + len(log_probs)] = log_probs

    def get(self, row: int, count: int) -> np.ndarray[Any, Any] | None:
        """The reference's rows as float32 that sum to one; None if there is no reference."""
        if self._rows is None or self.writes:
            return None
        return log_softmax(np.asarray(self._rows[row : row + count], dtype=np.float32))

    def close(self) -> None:
        """Write what is pending."""
        if self._rows is not None and self.writes:
            self._rows.flush()


class Comparison:
    """Sums over a text: surprise at each token, and the divergence from the reference."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._nll: list[float] = []
        self._early: list[float] = []
        self._late: list[float] = []
        self._kl: list[float] = []
        self._same: list[bool] = []

    def add(
        self, row: int, position: int, logits: np.ndarray[Any, Any], following: np.ndarray[Any, Any]
    ) -> None:
        """Take in predictions.

        Args:
            row: Index of the first prediction in the whole text.
            position: Its index in the window that the model sees.
            logits: (predictions, vocabulary), float32.
            following: The tokens that really came, (predictions,).
        """
        if not len(following):
            return
        log_probs = log_softmax(logits)
        nll = -log_probs[np.arange(len(following)), following]
        self._nll += nll.tolist()
        for at, value in enumerate(nll.tolist(), start=position):
            if EARLY.start <= at < EARLY.stop:
                self._early.append(value)
            elif at >= LATE_FROM:
                self._late.append(value)
        if self._reference.writes:
            self._reference.put(row, log_probs)
        best = self._reference.get(row, len(following))
        if best is not None:
            self._kl += divergences(best, log_probs).tolist()
            self._same += (best.argmax(axis=1) == log_probs.argmax(axis=1)).tolist()

    def result(self) -> dict[str, float | None]:
        """Perplexity over all and over the late positions, mean KL in nats, top-1 agreement."""
        return {
            "perplexity": float(np.exp(np.mean(self._nll))),
            "perplexity_early": _exp_mean(self._early),
            "perplexity_late": _exp_mean(self._late),
            "mean_kl": float(np.mean(self._kl)) if self._kl else 0.0,
            "top1_agreement": float(np.mean(self._same)) if self._same else 1.0,
        }


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Logarithms of the probabilities, row by row, without overflow."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: np.ndarray[Any, Any] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def divergences(
    best: np.ndarray[Any, Any], log_probs: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """KL of each row from the best one's row, in nats; both are logarithms of probabilities."""
    kl = (np.exp(best) * (best - log_probs)).sum(axis=1)
    result: np.ndarray[Any, Any] = np.maximum(kl, 0.0)  # rounding may lead below
    return result


def _exp_mean(values: list[float]) -> float | None:
    return float(np.exp(np.mean(values))) if values else None
