"""What came of the demo: the figures, and whether it showed what it promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trimtab.demo.stage import ChatState, Stage


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a demo.

    Attributes:
        model: The model's id.
        variants: The ladder that it ran on, best first.
        switches_down: Steps down that were seen.
        switches_up: Steps up that were seen.
        streams: Chats that were begun.
        streams_broken: Those that did not end as they should.
        streams_crossed: Those that more than one variant served.
        tokens: Tokens of all chats, by the daemon's count.
        squeeze_bytes: The most that the squeezing process held.
        seconds: How long it took.
        problems: What keeps it from being a success; empty if it is one.
        plot: The picture's path; None if none was made.
    """

    model: str
    variants: tuple[str, ...]
    switches_down: int
    switches_up: int
    streams: int
    streams_broken: int
    streams_crossed: int
    tokens: int
    squeeze_bytes: int
    seconds: float
    problems: tuple[str, ...]
    plot: str | None = None

    @property
    def passed(self) -> bool:
        """True if it stepped down, stepped up again, and no stream broke."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "passed": self.passed,
            "model": self.model,
            "variants": list(self.variants),
            "switches_down": self.switches_down,
            "switches_up": self.switches_up,
            "streams": self.streams,
            "streams_broken": self.streams_broken,
            "streams_crossed": self.streams_crossed,
            "tokens": self.tokens,
            "squeeze_mib": self.squeeze_bytes // 2**20,
            "seconds": round(self.seconds, 1),
            "problems": list(self.problems),
            "plot": self.plot,
        }


def judge(stage: Stage, seconds: float) -> Result:
    """The result of what is on the stage."""
    ended = [chat for chat in stage.chats if chat.state is not ChatState.WAITING]
    broken = [chat for chat in stage.chats if chat.state is not ChatState.DONE]
    return Result(
        model=stage.plan.model,
        variants=stage.plan.ladder,
        switches_down=stage.downs(),
        switches_up=ups_after_down(stage),
        streams=len(stage.chats),
        streams_broken=len(broken),
        streams_crossed=sum(len(chat.variants) > 1 for chat in ended),
        tokens=sum(chat.tokens for chat in stage.chats),
        squeeze_bytes=max((sample.squeeze_bytes for sample in stage.samples), default=0),
        seconds=seconds,
        problems=tuple(_problems(stage)),
    )


def ups_after_down(stage: Stage) -> int:
    """Steps up that came after a step down under pressure."""
    first_down_s = next((move.at_s for move in stage.moves if move.down), None)
    if first_down_s is None:
        return 0
    return sum(not move.down and move.at_s > first_down_s for move in stage.moves)


def pressed_down(stage: Stage) -> bool:
    """True if a step down happened while the squeeze held memory."""
    held_s = [sample.at_s for sample in stage.samples if sample.squeeze_bytes > 0]
    return any(
        move.down and held_s and held_s[0] <= move.at_s <= held_s[-1] + 30.0 for move in stage.moves
    )


def _problems(stage: Stage) -> list[str]:
    problems = []
    if not pressed_down(stage):
        problems.append("the model did not step down under pressure")
    elif ups_after_down(stage) == 0:
        problems.append("the model did not step up again; did another process take memory?")
    if not stage.chats:
        problems.append("no chat was begun")
    broken = [chat for chat in stage.chats if chat.state is not ChatState.DONE]
    return problems + [
        f"chat {one.number} broke: {one.problem or 'it never ended'}" for one in broken
    ]
