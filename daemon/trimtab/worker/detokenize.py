"""From token ids to text, token by token, never half a character."""

from __future__ import annotations

import codecs

from trimtab.worker.vocabulary import Vocabulary


class Detokenizer:
    """Turns tokens into text as they come.

    Bytes of a character that isn't whole yet are held back; bytes that can't become one turn into
    U+FFFD at once. What is held back when the tokens end is half a character: it is never shown.
    The state depends on nothing but the tokens that were fed.

    Args:
        vocabulary: Bytes of each token.
        shown: Special tokens that are text all the same.
    """

    def __init__(self, vocabulary: Vocabulary, shown: frozenset[int] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The text that became certain with this token."""
        shown = token in self._shown
        read = self._vocabulary.raw_bytes if shown else self._vocabulary.text_bytes
        return self._decoder.decode(read(token))
