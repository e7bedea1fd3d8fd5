from __future__ import annotations

import pytest

from trimtab.worker.pace import Pacer, PieceSize, piece_of


@pytest.mark.parametrize(("rate_tps", "expected"), [(5000, 64), (130, 64), (20, 10), (1, 4)])
def test_pieces_are_whole_when_nobody_waits_unless_they_take_too_long(
    rate_tps: float, expected: int
) -> None:
    piece = PieceSize()
    for _ in range(60):
        piece.observe(32, 32 / rate_tps)

    assert piece.tokens(shared=False) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(("rate_tps", "expected"), [(200, 10), (400, 20), (5000, 64), (10, 4)])
def test_pieces_take_fifty_milliseconds_when_somebody_waits(rate_tps: float, expected: int) -> None:
    piece = PieceSize()
    for _ in range(60):
        piece.observe(32, 32 / rate_tps)

    assert piece.tokens(shared=True) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("most", [3, 4, 17, 64])
def test_no_token_is_left_over_to_be_computed_alone(most: int) -> None:
    for tokens in range(2, 300):
        left, pieces = tokens, []
        while left:
            pieces.append(piece_of(left, most))
            left -= pieces[-1]
        assert min(pieces) > 1
        assert max(pieces) <= most
        assert sum(pieces) == tokens


def test_the_engine_rests_in_proportion_to_its_run() -> None:
    pacer = Pacer()
    pacer.set(0.25)
    pacer.ran(0.1, now_s=5.0)

    assert pacer.rest_s(5.0) == pytest.approx(0.3)
    assert pacer.rest_s(5.2) == pytest.approx(0.1)
    assert pacer.rest_s(9.0) == 0


def test_two_runs_in_a_row_add_up() -> None:
    pacer = Pacer()
    pacer.set(0.5)
    pacer.ran(0.1, now_s=5.0)
    pacer.ran(0.1, now_s=5.1)

    assert pacer.rest_s(5.1) == pytest.approx(0.1)


@pytest.mark.parametrize(("asked", "rest_s"), [(0.0, 9.0), (float("nan"), 9.0), (7.0, 0.0)])
def test_the_share_stays_within_its_bounds(asked: float, rest_s: float) -> None:
    pacer = Pacer()
    pacer.set(asked)
    pacer.ran(1.0, now_s=0.0)

    assert pacer.rest_s(0.0) == pytest.approx(rest_s)


def test_full_speed_forgets_the_rest_that_was_due() -> None:
    pacer = Pacer()
    pacer.set(0.1)
    pacer.ran(1.0, now_s=0.0)
    pacer.set(1.0)

    assert pacer.rest_s(0.0) == 0
