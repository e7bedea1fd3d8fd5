"""What was said in a conversation, as keys that tell whether another request goes on with it.

There is one key for each answer, of all messages up to it. Whoever sends those messages again, the
answer among them, goes on from there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

MOST_KEYS: Final = 64
"""Of the latest answers: whoever goes on further up has little to gain."""

MOST_MESSAGES: Final = 4096
"""A longer conversation isn't recognised: hashing it would hold up everybody."""

_ANSWERS: Final = "assistant"


def keys(messages: Sequence[Mapping[str, Any]], answer: str | None = None) -> tuple[str, ...]:
    """The keys of a conversation, that of its latest answer last.

    Args:
        messages: As clients send them.
        answer: What was answered to them; None if nothing was yet.
    """
    if len(messages) > MOST_MESSAGES:
        return ()
    said = [*messages] if answer is None else [*messages, {"role": _ANSWERS, "content": answer}]
    return tuple(_keys(said))[-MOST_KEYS:]


def _keys(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    so_far = hashlib.sha256()
    for message in messages:
        so_far.update(json.dumps(_plain(message), sort_keys=True, default=str).encode())
        if message.get("role") == _ANSWERS:
            yield so_far.hexdigest()


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what clients may write or leave out."""
    plain = {name: value for name, value in message.items() if value not in (None, "", [])}
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "".join(
            str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content
        )
    return plain
