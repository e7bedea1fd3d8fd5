from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trimtab.worker.stop import StopScanner


def scan(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    scanner = StopScanner(stops)
    shown = ""
    for piece in pieces:
        cut = scanner.feed(piece)
        shown += cut.text
        if cut.stopped:
            return shown, True
    return shown + scanner.rest(), False


def test_a_stop_string_in_one_piece_ends_the_text_before_it() -> None:
    shown, stopped = scan(["END"], ["one ENDless"])

    assert (shown, stopped) == ("one ", True)


def test_a_stop_string_over_several_pieces_is_never_shown() -> None:
    scanner = StopScanner(["\n\nUser:"])
    cuts = [scanner.feed(piece) for piece in ("Yes.", "\n", "\nUs", "er", ": and")]

    assert "".join(cut.text for cut in cuts) == "Yes."
    assert [cut.stopped for cut in cuts] == [False, False, False, False, True]


def test_text_that_only_looks_like_a_beginning_is_shown_as_soon_as_that_is_clear() -> None:
    scanner = StopScanner(["abc"])

    assert scanner.feed("xab").text == "x"
    assert scanner.feed("d").text == "abd"


def test_what_is_held_back_belongs_to_the_answer_when_it_ends_otherwise() -> None:
    scanner = StopScanner(["abc"])
    scanner.feed("xab")

    assert scanner.rest() == "ab"


def test_the_stop_string_that_begins_first_wins() -> None:
    shown, stopped = scan(["later", "a l"], ["a later"])

    assert (shown, stopped) == ("", True)


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopScanner([]).feed("text").text == "text"


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_pieces_give_what_the_whole_text_gives(stops: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    shown, stopped = scan(stops, pieces)
    found = [whole.find(stop) for stop in stops if stop in whole]

    assert stopped == bool(found)
    if stopped:
        assert not any(stop in shown for stop in stops)
        assert whole.startswith(shown)
        assert any(whole[len(shown) :].startswith(stop) for stop in stops)
    else:
        assert shown == whole
