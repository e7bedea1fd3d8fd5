"""Each trimtab command in docs/install.md and docs/operating.md is one that there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from trimtab.cli.root import root

DOCS = Path(__file__).parent.parent.parent / "docs"
PROJECT = DOCS.parent


def commands() -> list[str]:
    """Commands of code blocks and of running text, without their remarks."""
    found = []
    for page in ("install.md", "operating.md"):
        text = (DOCS / page).read_text()
        lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
        lines += re.findall(r"`([^`]+)`", text)
        for line in lines:
            words = re.sub(r"\s+#.*", "", line)
            match = re.match(r"(?:sudo )?(?:/opt/trimtab/bin/)?trimtab( [a-z-].*)$", words)
            if match:
                found.append(match[1].strip())
    return sorted(set(found))


def test_the_pages_have_commands() -> None:
    assert "install-service --remove --purge" in commands()
    assert "pin variant=int8 --for 10m" in commands()


@pytest.mark.parametrize("line", commands())
def test_each_command_and_option_exists(line: str) -> None:
    words = shlex.split(line)
    command: click.Command = root
    context = click.Context(root)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name!r}"
        command = found
    arguments = ["x" if word.isupper() else word for word in words]

    command.make_parser(click.Context(command)).parse_args(list(arguments))


@pytest.mark.parametrize("page", ["install.md", "operating.md"])
def test_each_file_that_a_page_names_is_there(page: str) -> None:
    text = (DOCS / page).read_text()
    examples = re.findall(r"\b([a-z-]+\.conf)`? ?", text)
    links = re.findall(r"\]\(([a-z-]+\.md)\)", text)

    assert examples
    assert all((PROJECT / "systemd" / "examples" / name).is_file() for name in examples)
    assert all((DOCS / name).is_file() for name in links)
