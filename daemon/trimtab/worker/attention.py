"""Which of the engine's attention kernels a graph runs with, and how much it reads at once for it.

onnxruntime's flash attention needs no memory for scores, and is the slower of its two ways where
one token is decoded: its loops are compiled for any processor. The other way keeps a row of scores
for each head and token that is read, and has a kernel for one token that is a third faster, as long
as nothing is multiplied (`trimtab.catalog.queries`). So graphs that are made for it run without
flash attention, and long conversations are read in pieces whose scores stay small.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from trimtab.domain.models import SCALED_QUERIES
from trimtab.flash_attention import flash_attention_off
from trimtab.worker.variant import VariantFacts

SCORES_BYTES: Final = 12 * 1024 * 1024
_MOST_SCORES_BYTES: Final = 32 * 1024 * 1024
_SHORTEST_PIECE: Final = 16
_SCORE_BYTES: Final = 4
_TAIL_BYTES: Final = 65536


class Attention:
    """How one graph's attention is computed.

    Args:
        facts: The variant.
        graph: The graph's file.
        context: Most tokens of a conversation.

    Attributes:
        keeps_scores: True if it runs without flash attention.
    """

    def __init__(self, facts: VariantFacts, graph: Path, context: int) -> None:
        self._token_bytes = facts.decoder.num_attention_heads * _SCORE_BYTES
        most = self._token_bytes * _SHORTEST_PIECE * context
        self.keeps_scores = most <= _MOST_SCORES_BYTES and _is_made_for_it(graph)

    def chosen(self) -> AbstractContextManager[None]:
        """While the session is made."""
        return flash_attention_off() if self.keeps_scores else nullcontext()

    def longest_piece(self, length: int, capacity: int) -> int | None:
        """Most tokens to read at once; None for any number.

        The engine takes room for scores with all positions of the KV cache, and writes those with
        the positions that are in use.

        Args:
            length: Tokens that are in the KV cache afterwards.
            capacity: Positions that it has.
        """
        if not self.keeps_scores:
            return None
        used = SCORES_BYTES // (self._token_bytes * max(length, 1))
        tokens = min(used, _MOST_SCORES_BYTES // (self._token_bytes * capacity))
        return max(_SHORTEST_PIECE, tokens // _SHORTEST_PIECE * _SHORTEST_PIECE)


def _is_made_for_it(graph: Path) -> bool:
    """Whether the graph is marked.

    The mark is looked for as bytes, since only the engine parses a graph, and where it stands: what
    an onnx file says of itself comes after the graph, which may have all weights in it.
    """
    try:
        with graph.open("rb") as file:
            file.seek(max(0, graph.stat().st_size - _TAIL_BYTES))
            return SCALED_QUERIES.encode() in file.read()
    except OSError:
        return False
