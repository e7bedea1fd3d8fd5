"""Token ids of a conversation that are kept for its next turn."""

from __future__ import annotations

import onnxruntime_genai as og
from hypothesis import example, given, settings
from hypothesis import strategies as st
from worker_peer import TINY

from trimtab.worker.continuation import keep_ids
from trimtab.worker.vocabulary import parse_vocabulary

_TOKENIZER = og.Tokenizer(str(TINY / "fp32"))
_TINY = parse_vocabulary((TINY / "fp32/tokenizer.json").read_bytes(), "tokenizer.json")
HEAD = "<|im_start|>user\nA river?<|im_end|>\n<|im_start|>assistant\n"
NEXT = "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"


def encode(text: str) -> list[int]:
    return [int(token) for token in _TOKENIZER.encode(text)]


def letters(text: str) -> list[int]:
    """Ids that say a text in another way: letter by letter."""
    return [token for letter in text for token in encode(letter)]


def kept(prompt: str, known: list[int]) -> list[int]:
    return keep_ids(encode(prompt), known, _TINY, encode)


def said(tokens: list[int]) -> str:
    return b"".join(map(_TINY.raw_bytes, tokens)).decode(errors="replace")


def test_an_answer_that_was_put_together_otherwise_keeps_its_ids() -> None:
    known = encode(HEAD) + letters("The river was cold.")
    prompt = kept(HEAD + "The river was cold." + NEXT, known)

    assert encode("The river was cold.") != letters("The river was cold.")
    assert prompt == known + encode(NEXT)


def test_an_answer_without_its_last_token_is_continued_where_it_ends() -> None:
    known = encode(HEAD) + letters("The river was col")

    assert kept(HEAD + "The river was cold." + NEXT, known) == known + encode("d." + NEXT)


def test_an_edited_question_keeps_the_answers_before_it() -> None:
    before = encode(HEAD) + letters("Cold water.") + encode(NEXT[: NEXT.index("And")])
    known = before + encode("And then?<|im_end|>\n<|im_start|>assistant\n") + letters("Snow.")
    edited = NEXT.replace("And then", "And why")
    prompt = kept(HEAD + "Cold water." + edited, known)

    assert prompt[: len(encode(HEAD) + letters("Cold water."))] == known[: len(encode(HEAD)) + 11]
    assert said(prompt) == HEAD + "Cold water." + edited


def test_an_answer_that_is_asked_for_again_ends_where_the_question_does() -> None:
    asked = encode(HEAD) + letters("Cold.") + encode(NEXT)

    assert kept(HEAD + "Cold." + NEXT, asked + letters("Snow.")) == asked


def test_an_answer_that_the_client_has_changed_is_tokenized_anew() -> None:
    known = encode(HEAD) + letters("The river was cold.")
    text = HEAD + "The river was warm." + NEXT

    assert kept(text, known) == encode(text)


def test_known_ids_that_end_within_a_character_are_kept_up_to_it() -> None:
    snowman = encode("☃")
    known = encode(HEAD) + letters("Snow ") + snowman[:-1]
    prompt = kept(HEAD + "Snow ☃" + NEXT, known)

    assert len(snowman) > 1
    assert said(prompt) == HEAD + "Snow ☃" + NEXT


def test_bytes_that_were_no_character_are_kept_as_what_they_were_shown_as() -> None:
    broken = encode("☃")[:1] + letters("a")
    known = encode(HEAD) + broken
    shown = said(broken)

    assert shown == "\ufffda"
    assert kept(HEAD + shown + NEXT, known) == known + encode(NEXT)


def test_a_tokenizer_that_writes_a_text_otherwise_behind_another_one_is_left_alone() -> None:
    known = encode(HEAD) + letters("Cold.")
    prompt = encode(HEAD + "Cold." + NEXT)

    assert keep_ids(prompt, known, _TINY, lambda text: encode(" " + text)) == prompt


@settings(max_examples=200, deadline=None)
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20),
    st.data(),
)
@example("a", "", None)
def test_the_text_is_never_another_one(answer: str, question: str, data: st.DataObject) -> None:
    text = HEAD + answer + NEXT.replace("And then?", question)
    known = encode(HEAD) + letters(answer)
    if data is not None:
        known = known[: data.draw(st.integers(0, len(known)))]
        known += data.draw(st.lists(st.integers(0, len(_TINY) - 1), max_size=4))

    assert said(kept(text, known)) == said(encode(text))
