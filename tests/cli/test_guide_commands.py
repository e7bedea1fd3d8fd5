"""The guides: their commands parse, their examples run, the codes that they name are raised."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from cli_gateway import run_command

from real_daemon import RealDaemon
from trimtab.cli.root import root
from trimtab.domain.readings import Quality
from trimtab.policy.load import load_policy
from trimtab.policy.problems import describe
from trimtab.sensors.source import Roots

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text()


def commands(text: str) -> Iterator[list[str]]:
    """The words after ``trimtab`` of each command line: indented, fenced, or alone in backticks."""
    lines = re.findall(r"^ {4}(.+)$", text, re.MULTILINE)
    for block in re.findall(r"^```(?:sh|)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines += block.splitlines()
    lines += re.findall(r"`((?:sudo )?trimtab [^`\n]+)`", text)
    for line in lines:
        found = re.match(r"(?:\$ )?(?:sudo )?(?:\S*/bin/)?trimtab (?=[a-z-]+(?:\s|=|$))(.+)", line)
        if found:
            words = shlex.split(re.split(r"\s[|>&]", found[1])[0], comments=True)
            yield [word for word in words if not word.startswith("[")]


def fault(words: list[str]) -> str:
    """What is wrong with a command line; empty if its commands and options are there."""
    command: click.Command = root
    context = click.Context(root, info_name="trimtab")
    known = options_of(root)
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if name.startswith("-"):
            if name not in known:
                return f"{command.name} has no option {name}"
            if known[name] and not value:
                next(rest, None)
        elif isinstance(command, click.Group):
            if word.isupper():
                return ""  # a placeholder for any
            inner = command.get_command(context, word)
            if inner is None:
                return f"{command.name} has no command {word}"
            command = inner
            context = click.Context(command, parent=context)
            known = options_of(command)
    return ""


def options_of(command: click.Command) -> dict[str, bool]:
    """Its options, and whether each takes a value."""
    taken: dict[str, bool] = {"--help": False, "-h": False}
    for one in command.params:
        if isinstance(one, click.Option):
            takes = not one.is_flag and not one.count
            taken |= dict.fromkeys((*one.opts, *one.secondary_opts), takes)
    return taken


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_command_line_has_commands_and_options_that_exist(path: Path) -> None:
    faults = {" ".join(words): fault(words) for words in commands(path.read_text())}

    assert {line: told for line, told in faults.items() if told} == {}


# What a person can type while a daemon runs, and that ends by itself within a moment.
QUICK = {
    "status", "why", "decisions", "points", "signals", "doctor", "pin", "unpin", "pause", "resume",
    "push", "reference", "config check", "config show", "config reference", "models list",
    "policy list", "policy show", "policy check", "policy diff", "policy schema",
    "policy use", "policy reload", "plan",
}  # fmt: skip
NAMES = {"pin", "push", "policy use"}  # of commands, in a sentence: they need an argument
FILES = ("config.json", ".gguf", ".yaml")  # of the reader's own


def quick_lines() -> list[str]:
    """The command lines of all documents that can be run as they are, each once."""
    found = {shlex.join(words): words for path in DOCS for words in commands(path.read_text())}
    return sorted(
        line
        for line, words in found.items()
        if {words[0], " ".join(words[:2])} & QUICK
        and not any(word.isupper() or word.endswith(FILES) for word in words)
        and line not in NAMES
    )


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    running = RealDaemon(tmp_path_factory.mktemp("guides")).start()
    yield running
    running.end()


@pytest.mark.parametrize("line", quick_lines())
def test_the_commands_of_the_guides_run(
    daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    for name, value in daemon.environ.items():
        if name.startswith("TRIMTAB_"):
            monkeypatch.setenv(name, value)
    words = shlex.split(line.replace("smollm2-135m", "tiny"))

    told = run_command(*words)

    assert told.code == ENDS.get(line, 0), told.err or told.out
    assert told.out


# With 1 where there is something to say, as `diff` does.
ENDS = {"policy diff balanced latency-first": 1}


def test_a_wrong_command_line_would_be_found() -> None:
    text = "    trimtab policy trial FILE --for 10m\n    trimtab status --chek\n    trimtab modls\n"
    told = [fault(words) for words in commands(text)]

    assert told == ["", "status has no option --chek", "root has no command modls"]


def test_every_code_that_troubleshooting_names_is_one_of_ours() -> None:
    source = "".join(path.read_text() for path in (ROOT / "daemon").rglob("*.py"))
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", TROUBLE)) - {"cached_tokens", "stale"}

    assert len(named) >= 8
    for code in named:
        assert f'"{code}"' in source, code


def test_every_path_that_extending_names_is_there() -> None:
    package = ROOT / "daemon" / "trimtab"
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?)`", EXTENDING):
        places = (ROOT / name, package / name)
        assert any(place.exists() for place in places), name


def test_the_rule_of_the_guide_compiles_without_a_word(tmp_path: Path) -> None:
    (policy,) = re.findall(r"^```yaml\n(.*?)^```$", EXTENDING, re.MULTILINE | re.DOTALL)
    path = tmp_path / "hot-cabinet.yaml"
    path.write_text(policy)

    assert describe(load_policy(path, tmp_path, device=None).problems) == ""


def test_the_sensor_of_the_guide_reads_what_it_says(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", EXTENDING, re.MULTILINE | re.DOTALL)
    made: dict[str, Any] = {"__name__": "guide"}
    exec(compile(code, "extending.md", "exec"), made)
    file = tmp_path / "sys" / "fs" / "file-nr"
    file.parent.mkdir(parents=True)
    file.write_text("1024\t0\t4096\n")
    sensor = made["OpenFilesSensor"](Roots(proc=tmp_path))

    (reading,) = sensor.read(5.0)
    sensor.close()

    assert (reading.signal, reading.value, reading.quality) == ("files.open", 0.25, Quality.GOOD)
