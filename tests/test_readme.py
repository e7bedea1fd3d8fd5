"""What the README says is true: its commands exist, its examples run, its links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from real_daemon import RealDaemon
from trimtab.policy.compile import DeviceVariants
from trimtab.policy.load import load_policy

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks() -> list[str]:
    """Indented blocks of code, without the indentation."""
    found = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", README, re.MULTILINE)
    return [textwrap.dedent(block).strip("\n") for block in found]


def block_with(words: str) -> str:
    return next(block for block in blocks() if words in block)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    running = RealDaemon(tmp_path_factory.mktemp("readme")).start()
    yield running
    running.end()


def test_the_make_targets_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b(?=`|$|\s{2,})", README, re.MULTILINE))

    assert {"demo", "test", "models"} <= named
    assert named <= targets


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]

    assert missing == []


def test_the_policy_compiles(tmp_path: Path) -> None:
    (tmp_path / "voice-assistant.yaml").write_text(block_with("protect: [latency, memory]"))
    result = load_policy(
        tmp_path / "voice-assistant.yaml",
        tmp_path,
        DeviceVariants(("fp32", "int8", "int4_mixed", "int4")),
    )

    assert result.problems == ()


def test_the_curl_command_gets_an_answer(daemon: RealDaemon) -> None:
    command = block_with("curl").replace("smollm2-135m", "tiny")
    command = command.replace("$XDG_RUNTIME_DIR/trimtab", str(daemon.sockets))
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=40, check=False
    )
    answer = json.loads(done.stdout)

    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["trimtab"]["variant"] in {"fp32", "int8", "int4"}


def test_the_official_client_works_as_it_is_shown(daemon: RealDaemon) -> None:
    code = block_with("import httpx, openai").replace("/run/trimtab", str(daemon.sockets))
    code += (
        "\nanswer = client.chat.completions.create(model='tiny', max_tokens=5,"
        " messages=[{'role': 'user', 'content': 'Name a river.'}])"
        "\nprint(answer.usage.completion_tokens)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=False
    )

    assert done.stdout.strip() == "5", done.stderr
