"""Warnings of drafts that can't pay, and of rules that take the last rung away."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_files import MINIMAL, rule

from trimtab.policy.compile import DeviceVariants
from trimtab.policy.load import LoadResult, load_policy
from trimtab.policy.problems import Severity

MIB = 1024 * 1024
SIZES = {"fp32": 500 * MIB, "int8": 150 * MIB, "int8_again": 150 * MIB, "int4": 90 * MIB}


def checked(folder: Path, text: str, kinds: dict[str, str] | None = None) -> LoadResult:
    """A policy, checked against a device with these variants."""
    path = folder / "minimal.yaml"
    path.write_text(text)
    known = kinds or dict.fromkeys(SIZES, "a")
    return load_policy(path, folder, DeviceVariants(tuple(SIZES), {}, known, SIZES))


def drafting(variants: str, draft: str) -> str:
    return (
        MINIMAL + f"knobs:\n  variant: [{variants}]\n  speculation: [off, ngram, 'draft:{draft}']\n"
    )


@pytest.mark.parametrize(
    ("variants", "draft", "way_out"),
    [
        ("int8, int4", "int8", "draft:int4"),
        ("int8, int8_again", "int8_again", "ngram"),  # as large as the other is too large
        ("int4", "int4", "ngram"),
    ],
)
def test_a_draft_that_is_no_smaller_than_any_variant_is_a_warning(
    tmp_path: Path, variants: str, draft: str, way_out: str
) -> None:
    result = checked(tmp_path, drafting(variants, draft))

    assert result.policy is not None
    (problem,) = result.problems
    shown = f"{SIZES[draft] // MIB}MiB"
    assert problem.severity is Severity.WARNING
    assert (problem.file, problem.line) == (str(tmp_path / "minimal.yaml"), 6)
    assert problem.path == "knobs.speculation[2]"
    assert problem.message == (
        f"{draft} never drafts: none of {variants} is larger than its {shown}"
    )
    assert problem.suggestion == way_out


def test_what_has_another_kind_of_kv_cache_is_no_reason_for_a_large_draft(tmp_path: Path) -> None:
    kinds = {"fp32": "b", "int8": "a", "int8_again": "a", "int4": "a"}
    result = checked(tmp_path, drafting("fp32, int8, int4", "int8"), kinds)
    sizes = [one for one in result.problems if "larger" in one.message]

    assert [one.message for one in sizes] == [
        "int8 never drafts: none of int8, int4 is larger than its 150MiB"
    ]


def test_a_draft_that_is_smaller_than_one_variant_is_none(tmp_path: Path) -> None:
    useful = checked(tmp_path, drafting("fp32, int8, int4", "int8"))
    useless = checked(tmp_path, drafting("int8, int4", "int8"))

    assert not useful.problems
    assert useless.problems


STALLS = "{signal: memory.psi.full_avg10, above: 5%, for: 5s}"
WELL = "{below: 1%, for: 60s}"


def placing(listed: str, demanded: str) -> str:
    text = rule(STALLS, WELL, f"{{kv_placement: {demanded}}}", name="memory stalls")
    return text + f"knobs: {{kv_placement: [{listed}]}}\n"


@pytest.mark.parametrize(
    ("demanded", "way_out"),
    [
        ("disk", "{allow: [disk, disk_all]}"),
        ("{allow: [memory, disk]}", "{allow: [memory, disk, disk_all]}"),
    ],
)
def test_a_rule_that_takes_the_last_rung_away_is_a_warning(
    tmp_path: Path, demanded: str, way_out: str
) -> None:
    result = checked(tmp_path, placing("memory, disk, disk_all", demanded))

    assert result.policy is not None
    (problem,) = result.problems
    assert problem.severity is Severity.WARNING
    assert (problem.file, problem.line) == (str(tmp_path / "minimal.yaml"), 7)
    assert problem.path == "rules[0].then.kv_placement"
    assert problem.message.startswith("this takes disk_all away, which knobs.kv_placement has")
    assert problem.suggestion == way_out


def test_a_rule_that_keeps_it_or_means_to_write_nothing_is_none(tmp_path: Path) -> None:
    takes = checked(tmp_path, placing("memory, disk, disk_all", "disk"))
    others = [
        checked(tmp_path, placing("memory, disk, disk_all", "{allow: [disk, disk_all]}")),
        checked(tmp_path, placing("memory, disk, disk_all", "memory")),
        checked(tmp_path, placing("memory, disk", "disk")),
    ]

    assert takes.problems
    assert [one.problems for one in others] == [()] * 3
