"""The simulated engine: one server that reads prompts and writes tokens for one request at a time.

Time is continuous and tokens are fractions until they are complete, so that nothing depends on a
step size. A paused request keeps what was done of it, as its KV stays in its segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from trimtab.simulate.ladder import Rung

CLOSE: Final = 1e-6
"""Tokens nearer to a whole number than this are whole: what rounding leaves is no token."""


@dataclass(slots=True)
class Work:
    """One request in the engine.

    Attributes:
        request: Names it.
        prompt_left: Tokens still to be read.
        output: Tokens that its answer will have; the controller doesn't know.
        written: Tokens of its answer so far, with a fraction.
        earned: Sum over its tokens of the quality of the variant that wrote them.
        first_s: When its prompt had been read; infinity before.
        prefill_s: Engine time on its prompt since it was last reported.
        decode_s: Engine time on its answer since it was last reported.
    """

    request: int
    prompt_left: float
    output: int
    written: float = 0.0
    earned: float = 0.0
    first_s: float = inf
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Engine:
    """Serves the request it is told to, at the speed of the variant that is loaded.

    Attributes:
        rung: What is loaded; None while nothing is.
        speed: Factor on both speeds: heat, contention, thrashing, pace.
        current: Whom it serves.
        look: Tokens after which the current request is to be reported.
        busy_s: Time spent working.
    """

    def __init__(self) -> None:
        self.rung: Rung | None = None
        self.speed = 1.0
        self.current: Work | None = None
        self.look = inf
        self.busy_s = 0.0
        self.now_s = 0.0

    def next_s(self) -> float:
        """When the current request reaches its next mark, if nothing changes."""
        work, rung = self.current, self.rung
        if work is None or rung is None or self.speed <= 0:
            return inf
        if work.prompt_left > 0:
            return self.now_s + work.prompt_left / (rung.prefill_tps * self.speed)
        mark = min(float(work.output), self.look) if self.look > work.written else work.output
        return self.now_s + (mark - work.written) / (rung.decode_tps * self.speed)

    def advance(self, to_s: float) -> None:
        """Work until then; the caller never steps over a mark."""
        elapsed_s = to_s - self.now_s
        self.now_s = to_s
        work, rung = self.current, self.rung
        if work is None or rung is None or elapsed_s <= 0:
            return
        self.busy_s += elapsed_s
        if work.prompt_left > 0:
            work.prefill_s += elapsed_s
            work.prompt_left -= elapsed_s * rung.prefill_tps * self.speed
            if work.prompt_left <= CLOSE:
                work.prompt_left = 0.0
                work.first_s = to_s
            return
        tokens = elapsed_s * rung.decode_tps * self.speed
        work.decode_s += elapsed_s
        work.written += tokens
        whole = round(work.written)
        if abs(work.written - whole) < CLOSE:
            work.written = float(whole)
        work.earned += tokens * rung.quality
