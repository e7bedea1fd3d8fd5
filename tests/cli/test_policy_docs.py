"""Every example of docs/policies.md does what the text says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trimtab.policy.load import load_policy
from trimtab.policy.problems import describe
from trimtab.policy.reference import reference, tables
from trimtab.policy.shelf import shipped_folder
from trimtab.simulate.scenario import load_scenarios, run_scenario
from trimtab.simulate.scenario_schema import ScenarioFile

DOCS = Path(__file__).parents[2] / "docs" / "policies.md"
HEAD = "version: 1\nname: part\nprotect: [latency, memory]\n"


@dataclass(frozen=True)
class Example:
    """One block of code."""

    line: int
    kind: str
    text: str


def _examples() -> list[Example]:
    text = DOCS.read_text()
    found = re.finditer(r"^```(.+?)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Example(text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in found]


def _of(kind: str) -> Any:
    chosen = [one for one in _examples() if one.kind == kind]
    return pytest.mark.parametrize("example", chosen, ids=[f"line {one.line}" for one in chosen])


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    kinds = {one.kind for one in _examples()}

    assert kinds == {"yaml policy", "yaml part", "yaml bad", "yaml scenario", "text", "sh"}


@_of("yaml policy")
def test_a_whole_policy_compiles_without_a_word(example: Example, tmp_path: Path) -> None:
    name = re.search(r"^name: (\S+)", example.text, re.MULTILINE)
    assert name is not None
    path = tmp_path / f"{name[1]}.yaml"
    path.write_text(example.text)

    assert describe(load_policy(path, tmp_path, device=None).problems) == ""


@_of("yaml part")
def test_a_part_fits_into_a_policy(example: Example, tmp_path: Path) -> None:
    path = tmp_path / "part.yaml"
    path.write_text(HEAD + example.text)

    assert describe(load_policy(path, tmp_path, device=None).problems) == ""


def test_the_errors_are_those_that_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bad,) = [one for one in _examples() if one.kind == "yaml bad"]
    (text,) = [one for one in _examples() if one.kind == "text"]
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(bad.text)

    assert describe(load_policy("bad.yaml", tmp_path, device=None).problems) == (text.text.strip())


@_of("yaml scenario")
def test_a_scenario_passes(example: Example, tmp_path: Path) -> None:
    path = tmp_path / "kitchen.test.yaml"
    path.write_text(example.text)

    for scenario in load_scenarios(path, shipped_folder()):
        assert run_scenario(scenario).passed


@_of("sh")
def test_a_command_ends_well(
    example: Example,
    trimtab: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIMTAB_POLICIES", str(shipped_folder()))
    monkeypatch.chdir(tmp_path)
    first = next(one for one in _examples() if one.kind == "yaml policy")
    Path("first.yaml").write_text(first.text)

    for line in example.text.splitlines():
        program, *arguments = line.split()
        told = trimtab(*arguments)
        differs = arguments[:2] == ["policy", "diff"]
        assert program == "trimtab"
        assert told.code == (1 if differs else 0), told


def test_the_reference_is_current() -> None:
    scenarios = "\n".join(tables("A file of scenarios", ScenarioFile))

    assert DOCS.read_text().endswith(f"{scenarios}\n\n{reference()}")


def test_every_shipped_policy_is_named_in_the_guide() -> None:
    text = DOCS.read_text()

    for path in shipped_folder().glob("*.yaml"):
        if not path.name.endswith(".test.yaml"):
            assert f"`{path.stem}`" in text
