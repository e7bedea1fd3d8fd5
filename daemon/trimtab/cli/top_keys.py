"""Keys as they are pressed, without Enter; the terminal is as before afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from enum import StrEnum
from types import FrameType, TracebackType
from typing import Any, Final

_LONGEST: Final = 64
_VSUSP_OFF: Final = b"\x00"
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Key(StrEnum):
    """What a key asks for."""

    QUIT = "quit"
    PAUSE = "pause"
    TRIANGLE = "triangle"
    OLDER = "older"
    NEWER = "newer"
    PAGE_OLDER = "page_older"
    PAGE_NEWER = "page_newer"
    NEWEST = "newest"


_SEQUENCES: Final[dict[bytes, Key]] = {
    b"\x1b[A": Key.NEWER,
    b"\x1bOA": Key.NEWER,
    b"\x1b[B": Key.OLDER,
    b"\x1bOB": Key.OLDER,
    b"\x1b[5~": Key.PAGE_NEWER,
    b"\x1b[6~": Key.PAGE_OLDER,
    b"\x1b[H": Key.NEWEST,
    b"\x1b[1~": Key.NEWEST,
}
_LETTERS: Final[dict[bytes, Key]] = {
    b"q": Key.QUIT,
    b"Q": Key.QUIT,
    b"\x04": Key.QUIT,
    b"p": Key.PAUSE,
    b" ": Key.PAUSE,
    b"t": Key.TRIANGLE,
    b"j": Key.OLDER,
    b"k": Key.NEWER,
    b"g": Key.NEWEST,
}


def keys_in(typed: bytes) -> list[Key]:
    """The keys in what a terminal sent; what means nothing here is left out."""
    found: list[Key] = []
    at = 0
    while at < len(typed):
        sequence = next((one for one in _SEQUENCES if typed.startswith(one, at)), None)
        if sequence is not None:
            found.append(_SEQUENCES[sequence])
            at += len(sequence)
        elif typed[at : at + 1] == b"\x1b":
            at = _after_sequence(typed, at + 1)
        else:
            key = _LETTERS.get(typed[at : at + 1])
            found += [key] if key is not None else []
            at += 1
    return found


def _after_sequence(typed: bytes, at: int) -> int:
    """Where an escape sequence ends, so that its letters aren't taken for keys."""
    if typed[at : at + 1] not in {b"[", b"O"}:
        return at
    at += 1
    while at < len(typed) and not 0x40 <= typed[at] <= 0x7E:
        at += 1
    return at + 1


class Keyboard:
    """Waits for keys, for a change of the window's size, and for a nudge from another thread.

    Without a terminal on standard input there are no keys, and the rest works all the same.
    Must be used from the main thread, since it handles signals.
    """

    def __init__(self) -> None:
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._mode: list[Any] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._awake, self._nudge = -1, -1

    def __enter__(self) -> Keyboard:
        self._awake, self._nudge = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._resized)
        for number in _ENDING:
            self._before[number] = signal.signal(number, _end)
        if self._input is not None:
            self._mode = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
            mode = termios.tcgetattr(self._input)
            mode[6][termios.VSUSP] = _VSUSP_OFF  # stopped, it would leave its screen behind
            termios.tcsetattr(self._input, termios.TCSADRAIN, mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._input is not None and self._mode is not None:
            with contextlib.suppress(termios.error):  # the terminal may be gone
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._mode)
        for number, before in self._before.items():
            signal.signal(number, before)
        nudge, self._nudge = self._nudge, -1
        os.close(nudge)
        os.close(self._awake)

    def nudge(self) -> None:
        """Make `wait` return now; from any thread."""
        if self._nudge >= 0:
            with contextlib.suppress(OSError):  # full or just closed: nobody has to be woken
                os.write(self._nudge, b"\0")

    def wait(self, timeout_s: float) -> list[Key]:
        """Keys that were pressed; none if it was something else, or nothing for this long."""
        sources = [self._awake] if self._input is None else [self._awake, self._input]
        ready, _, _ = select.select(sources, [], [], timeout_s)
        if self._awake in ready:
            os.read(self._awake, _LONGEST)
        if self._input is None or self._input not in ready:
            return []
        try:
            typed = os.read(self._input, _LONGEST)
        except OSError:  # the terminal is gone
            typed = b""
        return keys_in(typed) if typed else [Key.QUIT]

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self.nudge()


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
