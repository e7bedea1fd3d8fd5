"""Log lines: JSON for machines, readable for people, and nothing private in either."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from trimtab.telemetry.log import LogFormat, LogLevel, configure, get_logger


@pytest.fixture
def lines() -> Iterator[StringIO]:
    yield StringIO()
    configure()


def test_json_lines_have_level_time_area_and_fields(lines: StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.JSON, lines)
    get_logger("api").info("listening", path="/run/x")

    told = json.loads(lines.getvalue())
    assert told["event"] == "listening"
    assert told["level"] == "info"
    assert told["area"] == "api"
    assert told["path"] == "/run/x"
    assert told["timestamp"].endswith("Z")


def test_what_is_below_the_level_isnt_told(lines: StringIO) -> None:
    configure(LogLevel.WARNING, LogFormat.JSON, lines)
    get_logger("api").info("quiet")

    assert lines.getvalue() == ""


@pytest.mark.parametrize("format_", [LogFormat.JSON, LogFormat.HUMAN])
def test_text_and_secrets_never_reach_a_line(lines: StringIO, format_: LogFormat) -> None:
    configure(LogLevel.INFO, format_, lines)
    get_logger("api").info("request", messages=["my secret"], authorization="Bearer my secret")

    assert "my secret" not in lines.getvalue()
    assert "[hidden]" in lines.getvalue()


def test_libraries_lines_come_out_the_same_way(lines: StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.JSON, lines)
    logging.getLogger("uvicorn.error").error("broke: %s", "x")
    logging.getLogger("apscheduler").info("too chatty")

    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(line["event"], line["area"]) for line in told] == [("broke: x", "uvicorn.error")]


def test_under_journald_lines_are_json_with_a_priority(tmp_path: Path) -> None:
    program = (
        "from trimtab.telemetry.log import configure, get_logger\n"
        "configure(); get_logger('api').warning('careful')\n"
    )
    with (tmp_path / "journal").open("w") as journal:
        status = os.fstat(journal.fileno())
        environ = os.environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        subprocess.run([sys.executable, "-c", program], stderr=journal, env=environ, check=True)

    line = (tmp_path / "journal").read_text()
    assert line.startswith('<4>{"')
    assert json.loads(line[3:])["event"] == "careful"


def test_logging_doesnt_bring_rich_into_the_daemon() -> None:
    program = (
        "import sys, trimtab.telemetry.log\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('rich', 'pygments')])\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert told.stdout.strip() == "[]"
