"""A prompt that goes on with a conversation keeps the token ids that the conversation has.

The tokenizer writes a text in one way, a model in any: from the first piece of an answer that the
model put together otherwise, the ids of the next turn's prompt would be others, and nothing of the
KV cache behind it could serve.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from trimtab.domain.prefix import common_prefix
from trimtab.worker.vocabulary import Vocabulary


def keep_ids(
    prompt: list[int],
    known: list[int],
    vocabulary: Vocabulary,
    encode: Callable[[str], Sequence[int]],
) -> list[int]:
    """The prompt with the ids of what it goes on with, as far as their text is the same.

    The rest is tokenized for itself. So that this is the same as in one piece, it begins with a
    special token or, if all the known ids fit, where their last whole character ends; and the text
    of the whole is compared.

    Args:
        prompt: All its token ids, as the tokenizer writes them.
        known: Token ids of a conversation that it probably goes on with.
        vocabulary: What they stand for.
        encode: Token ids of a text, special tokens included.

    Returns:
        The prompt as it is where the known ids are no use.
    """
    same = common_prefix(prompt, known)
    if same == len(known) or same == len(prompt):
        return prompt
    begin = next((at for at in range(same, -1, -1) if known[at] in vocabulary.special), 0)
    text = _text(prompt[begin:], vocabulary)
    kept, length = _as_far_as(text, known[begin:], vocabulary)
    if begin + kept <= same:
        return prompt
    tail = encode(text[length:]) if length < len(text) else ()
    if _text(tail, vocabulary) != text[length:]:
        return prompt  # a tokenizer that writes a text otherwise behind another one
    return [*known[: begin + kept], *tail]


def _text(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    """What they say, special tokens too, as clients get it."""
    return b"".join(map(vocabulary.raw_bytes, tokens)).decode(errors="replace")


def _as_far_as(text: str, known: Sequence[int], vocabulary: Vocabulary) -> tuple[int, int]:
    """How many of the known ids a text begins with, and how many characters of it they are."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    special = whole = (0, 0)
    at = 0
    for number, token in enumerate(known):
        if token in vocabulary.special and whole[0] == number:
            special = whole
        piece = decoder.decode(vocabulary.raw_bytes(token))
        if not text.startswith(piece, at):
            return special
        at += len(piece)
        if not decoder.getstate()[0]:
            whole = (number + 1, at)
        if at == len(text):
            break
    return whole
