"""What a text that is too short says of a variant's quality, and what it doesn't."""

from __future__ import annotations

from trimtab.cli.profile_tables import perplexity_text
from trimtab.domain.profile import TaskQuality
from trimtab.profile.intervals import Block
from trimtab.profile.quality import Scores, task_quality


def scored(*surprise: float) -> TaskQuality:
    blocks = [Block(tokens=100, nll=100 * one, kl=1.0, same=90) for one in surprise]
    return task_quality(Scores("chat", blocks, 0, 0))


def test_a_perplexity_is_never_said_to_be_under_one() -> None:
    assert scored(1.0, 3.0).perplexity_low == 1.0


def test_two_short_texts_give_a_mean_and_say_that_they_are_too_little() -> None:
    assert perplexity_text(scored(1.0, 3.0)) == "7.39 (too little text)"


def test_enough_text_gives_an_interval() -> None:
    text = perplexity_text(scored(1.9, 2.0, 2.1, 2.0, 1.9, 2.1, 2.0, 2.0))

    assert text.startswith("7.39 [")
