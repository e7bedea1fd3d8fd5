"""How many idle conversations are kept, and whose: nobody pushes others' out."""

from __future__ import annotations

from test_pool import leased

from trimtab.serving.pool import IDLE_MAX, Pool

USED = 20


def talks(pool: Pool, user: int, numbers: range) -> None:
    """So many short conversations of a user, each of its own tokens and of its own second."""
    for number in numbers:
        tokens = [user, number, *range(USED - 2)]
        pool.retire(leased(pool, tokens, user), tokens, float(number))


def kept(pool: Pool, user: int, numbers: range) -> list[int]:
    """Which of them can still be gone on with."""
    prompts = {number: [user, number, *range(USED)] for number in numbers}
    return [
        number
        for number, prompt in prompts.items()
        if pool.find(prompt, "f", user, everyone=False) is not None
    ]


def test_many_short_conversations_push_out_nobody_elses() -> None:
    pool = Pool()
    talks(pool, 2, range(3))
    talks(pool, 1, range(100, 200))
    theirs, own = kept(pool, 2, range(3)), kept(pool, 1, range(100, 200))
    pool.close()

    assert theirs == [0, 1, 2]
    assert own == list(range(200 - (IDLE_MAX - 3), 200))  # the oldest of them have gone


def test_two_who_have_many_get_half_each_in_the_end() -> None:
    pool = Pool()
    talks(pool, 1, range(IDLE_MAX))
    talks(pool, 2, range(100, 200))
    counts = [len(kept(pool, 1, range(IDLE_MAX))), len(kept(pool, 2, range(100, 200)))]
    pool.close()

    assert counts == [IDLE_MAX // 2, IDLE_MAX // 2]
