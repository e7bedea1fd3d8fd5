"""Structured log lines on stderr: JSON for machines, readable in a terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any, Final, TextIO

from trimtab.telemetry.plain_structlog import structlog


class LogFormat(StrEnum):
    """How a line looks."""

    AUTO = "auto"  # JSON under systemd, human otherwise
    JSON = "json"
    HUMAN = "human"


class LogLevel(StrEnum):
    """The least that is told."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_LEVELS: Final[dict[LogLevel, int]] = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}

# What journald understands at the start of a line, by level.
_PRIORITIES: Final[dict[str, str]] = {
    "debug": "<7>",
    "info": "<6>",
    "warning": "<4>",
    "error": "<3>",
    "critical": "<2>",
}

# Fields that hold what people wrote, or what opens doors: never in a log.
PRIVATE: Final = frozenset(
    {"authorization", "token", "messages", "prompt", "text", "content", "headers", "body"}
)


def get_logger(area: str) -> Any:
    """A logger whose lines carry their area: ``get_logger("api").info("listening", path=...)``."""
    return structlog.get_logger(area=area)


def under_journald(stream: TextIO) -> bool:
    """True if the stream is the one that systemd reads (JOURNAL_STREAM names its device:inode)."""
    told = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return told == f"{status.st_dev}:{status.st_ino}"


def configure(
    level: LogLevel = LogLevel.INFO,
    format_: LogFormat = LogFormat.AUTO,
    stream: TextIO | None = None,
) -> None:
    """Set up logging for the process; libraries' own warnings come out the same way.

    Args:
        level: The least that is told.
        format_: How lines look.
        stream: Where to; stderr by default.
    """
    target = stream or sys.stderr
    journald = under_journald(target)
    as_json = format_ is LogFormat.JSON or (format_ is LogFormat.AUTO and journald)
    processors: list[Any] = [
        structlog.processors.add_log_level,
        _hide_private,
        structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
    ]
    if as_json:
        processors += [structlog.processors.format_exc_info, _Json(with_priority=journald)]
    else:
        colours = target.isatty() and "NO_COLOR" not in os.environ
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=colours, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
            )
        )
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )
    _take_over_standard_logging(_LEVELS[level])


class _Json:
    """The last step for machines; under journald with the priority that it takes off again."""

    def __init__(self, *, with_priority: bool) -> None:
        self._render = structlog.processors.JSONRenderer()
        self._with_priority = with_priority

    def __call__(self, logger: object, name: str, event: MutableMapping[str, Any]) -> str:
        priority = _PRIORITIES.get(str(event.get("level")), "<6>") if self._with_priority else ""
        return f"{priority}{self._render(logger, name, event)!s}"


class _Forward(logging.Handler):
    """Lines of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(area=record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)


def _take_over_standard_logging(level: int) -> None:
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(max(level, logging.WARNING))


def _hide_private(
    logger: object,
    name: str,
    event: MutableMapping[str, Any],
) -> MutableMapping[str, Any]:
    for field in PRIVATE.intersection(event):
        event[field] = "[hidden]"
    return event
