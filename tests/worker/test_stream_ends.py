"""Tokens that end an answer."""

from __future__ import annotations

import pytest
from worker_peer import TINY

from trimtab.worker.speculation import Experience
from trimtab.worker.stream import EndReason, Language, Stream
from trimtab.worker.tokenizer import Tokenizer
from trimtab.worker.variant import read_variant
from trimtab.workers.protocol import Start

FACTS = read_variant(TINY / "fp32")
VOCABULARY = Tokenizer(FACTS).vocabulary
WORD, END = [token for token in range(len(VOCABULARY)) if VOCABULARY.text_bytes(token).isalpha()][
    :2
]
LANGUAGE = Language(VOCABULARY, FACTS.vocabulary, frozenset({END}))  # it is a word like any other


def ended(shown: frozenset[int] = frozenset(), *, ignore_eos: bool = False) -> tuple[str, str]:
    """The text of an answer of two tokens, of which the second ends it, and why it is over."""
    start = Start(stream=1, prompt=[1, 2], max_tokens=9, ignore_eos=ignore_eos)
    stream = Stream(start, LANGUAGE, Experience(), shown=shown)
    text = stream._take(WORD) + stream._take(END)
    reason = stream.ended or EndReason.CANCELLED
    return text + stream.finished(reason).text, reason.value


def test_an_end_that_is_not_marked_as_special_is_no_text_either() -> None:
    word = VOCABULARY.text_bytes(WORD).decode()

    assert VOCABULARY.text_bytes(END)
    assert ended() == (word, "stop")


@pytest.mark.parametrize("how", ["shown", "ignored"])
def test_one_that_is_wanted_is_text(how: str) -> None:
    both = (VOCABULARY.text_bytes(WORD) + VOCABULARY.text_bytes(END)).decode()

    text, _ = ended(frozenset({END})) if how == "shown" else ended(ignore_eos=True)

    assert text == both
