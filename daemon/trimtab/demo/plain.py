"""The demo without a terminal: a line for each thing that happens, and a look now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trimtab.demo.stage import Chat, ChatState, Sample, Stage
from trimtab.telemetry.words import size

LOOK_S: Final = 5.0


class PlainScreen:
    """Prints lines.

    Args:
        say: Prints one.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._line = ""
        self._told = 0
        self._ended: set[int] = set()
        self._looked_s = -LOOK_S

    def draw(self, stage: Stage) -> None:
        """Print what is new."""
        if stage.line != self._line and not _is_progress(stage.line, self._line):
            self._print(stage, stage.line)
        self._line = stage.line
        for told in stage.told[self._told :]:
            self._print(stage, told.sentence)
        self._told = len(stage.told)
        for chat in stage.chats:
            if chat.ended_s is not None and chat.number not in self._ended:
                self._ended.add(chat.number)
                self._print(stage, chat_line(chat))
        if stage.last is not None and stage.now_s - self._looked_s >= LOOK_S:
            self._looked_s = stage.now_s
            self._print(stage, look_line(stage.last, stage.plan.headroom_bytes))

    def _print(self, stage: Stage, line: str) -> None:
        self._say(f"{stage.now_s:6.1f} s  {line}")


def chat_line(chat: Chat) -> str:
    """How a chat ended, in a line."""
    if chat.state is ChatState.BROKEN:
        return f"chat {chat.number} BROKE: {chat.problem}"
    by = " then ".join(chat.variants)
    return f"chat {chat.number} is complete: {chat.tokens} tokens by {by}"


def look_line(sample: Sample, headroom_bytes: int) -> str:
    """A look, in a line."""
    point = sample.variant or "nothing loaded"
    if sample.coming is not None and sample.coming != sample.variant:
        point += f", loading {sample.coming}"
    told = f"{point}, {sample.tokens_per_s:.0f} tokens/s"
    if sample.available_bytes is not None:
        above_bytes = sample.available_bytes - headroom_bytes
        side = "above" if above_bytes >= 0 else "under"
        told += f", {size(sample.available_bytes)} available, "
        told += f"{size(abs(above_bytes))} {side} the headroom"
    return told


def _is_progress(line: str, before: str) -> bool:
    """True if two lines differ in their numbers alone."""
    numbers = str.maketrans("", "", "0123456789")
    return line.translate(numbers) == before.translate(numbers)
