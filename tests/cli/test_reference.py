"""The command reference in the docs, and completion in real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_gateway import run_command

from trimtab.cli.reference import BEGIN, command_reference
from trimtab.cli.root import COMMANDS, root

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_reference_in_the_docs_is_current() -> None:
    written = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2]

    assert BEGIN + written.rstrip("\n") == command_reference(root), (
        "run `trimtab reference` and put it into docs/cli.md"
    )


def test_every_command_says_what_it_does() -> None:
    for name, (_, _, line) in COMMANDS.items():
        told = run_command(name, "--help")

        assert told.code == 0
        assert line.endswith(".")
        assert len(told.out.splitlines()) > 3


def test_a_command_that_doesnt_exist_is_wrong_usage() -> None:
    told = run_command("stauts")

    assert told.code == 2
    assert "stauts" in told.err


def test_bash_completes_with_the_printed_script() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    script = run_command("completion", "bash").out
    asked = (
        f'trimtab() {{ {sys.executable} -m trimtab "$@"; }}\n'
        f"{script.replace('env COMP_WORDS', 'COMP_WORDS')}\n"
        "COMP_WORDS=(trimtab stat); COMP_CWORD=1; _trimtab_completion trimtab\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    told = subprocess.run([bash, "-c", asked], capture_output=True, text=True, timeout=30)

    assert told.stdout.split() == ["status"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_have_a_script_too(shell: str) -> None:
    told = run_command("completion", shell)

    assert told.code == 0
    assert "_TRIMTAB_COMPLETE" in told.out
