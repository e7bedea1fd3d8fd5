"""What each token id stands for in bytes, read from a model's ``tokenizer.json``.

A token of a byte-level tokenizer can be a part of a character, so text can only be put together
from bytes. The engine's own tokenizer answers with text and would give a replacement character
there.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import msgspec

from trimtab.errors import LoadError

_WORD_START: Final = "\u2581"  # how SentencePiece writes a space


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _TokenizerFile(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []
    decoder: dict[str, Any] | None = None


class Vocabulary:
    """Bytes of every token id.

    Kept as one block of memory: 49,000 tokens as Python objects would take ten times as much.

    Args:
        pieces: Text of each id as the tokenizer's file has it; ids without one are empty.
        byte_level: True for byte-level tokenizers, False for SentencePiece with byte fallback.
        added: Tokens that stand for themselves, by id.
        special: Ids that stand for no text at all.
    """

    def __init__(
        self, pieces: list[str], *, byte_level: bool, added: dict[int, str], special: frozenset[int]
    ) -> None:
        encoded = [piece.encode() for piece in pieces]
        self._ends = array("I", accumulate(map(len, encoded), initial=0))
        self._block = b"".join(encoded)
        self._byte_level = byte_level
        self._added = added
        self._special = special

    def __len__(self) -> int:
        """One more than the highest id that the tokenizer knows."""
        return max(len(self._ends) - 1, max(self._added, default=-1) + 1)

    @property
    def special(self) -> frozenset[int]:
        """Ids that stand for no text."""
        return self._special

    def special_id(self, text: str) -> int | None:
        """The id of the special token that is written so; None if there is none."""
        return next((token for token in self._special if self._added[token] == text), None)

    def text_bytes(self, token: int) -> bytes:
        """What the token adds to the text; nothing for special and unknown tokens."""
        return b"" if token in self._special else self.raw_bytes(token)

    def raw_bytes(self, token: int) -> bytes:
        """The token's bytes, those of special tokens too."""
        if token in self._added:
            return self._added_bytes(token)
        if not 0 <= token < len(self._ends) - 1:
            return b""
        piece = self._block[self._ends[token] : self._ends[token + 1]].decode()
        if self._byte_level:
            return _from_byte_level(piece)
        return _from_sentencepiece(piece)

    def _added_bytes(self, token: int) -> bytes:
        """Runs of spaces can be added tokens, which the decoder turns into spaces like others."""
        text = self._added[token]
        if self._byte_level or token in self._special:
            return text.encode()
        return text.replace(_WORD_START, " ").encode()

    def name(self, token: int) -> str:
        """The token as text for people, with a replacement character for a part of a character."""
        return self.raw_bytes(token).decode(errors="replace")


def parse_vocabulary(data: bytes, origin: str) -> Vocabulary:
    """Read a ``tokenizer.json``.

    Args:
        data: The file's content.
        origin: The file's name for error messages.

    Raises:
        LoadError: It is damaged, or of a kind whose tokens can't be turned into bytes.
    """
    try:
        file = msgspec.json.decode(data, type=_TokenizerFile)
    except msgspec.DecodeError as error:
        raise LoadError(
            f"{origin} is damaged: {error}",
            hint="`trimtab models verify` says which files differ from what was built",
            code="model_damaged",
        ) from error
    kinds = _decoder_kinds(file.decoder)
    byte_level = "ByteLevel" in kinds
    if not byte_level and not kinds & {"ByteFallback", "Metaspace", "Replace"}:
        found = ", ".join(sorted(kinds)) or "none"
        raise LoadError(
            f"{origin}: the decoder ({found}) is neither byte-level nor SentencePiece's",
            hint="use a model whose tokenizer is one of these two kinds",
            code="tokenizer_unsupported",
        )
    return Vocabulary(
        _pieces(file.model.vocab),
        byte_level=byte_level,
        added={token.id: token.content for token in file.added_tokens},
        special=frozenset(token.id for token in file.added_tokens if token.special),
    )


def _pieces(vocab: dict[str, int] | list[tuple[str, float]]) -> list[str]:
    if isinstance(vocab, list):
        return [piece for piece, _ in vocab]
    pieces = [""] * (max(vocab.values(), default=-1) + 1)
    for piece, token in vocab.items():
        pieces[token] = piece
    return pieces


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    kinds = {str(decoder.get("type"))}
    for part in decoder.get("decoders", ()):
        kinds |= _decoder_kinds(part)
    return kinds


@lru_cache(maxsize=1)
def _bytes_of_letters() -> dict[int, int]:
    """GPT-2's alphabet: bytes that print stand for themselves, the others for 256 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {256 + n: byte for n, byte in enumerate(others)}


def _from_byte_level(piece: str) -> bytes:
    letters = _bytes_of_letters()
    try:
        return bytes(letters[ord(letter)] for letter in piece)
    except KeyError:
        return piece.encode()  # an added word that was left in the ordinary vocabulary


def _from_sentencepiece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes((int(piece[3:5], 16),))
        except ValueError:
            return piece.encode()
    return piece.replace(_WORD_START, " ").encode()
