"""Whatever a file holds, loading it gives a policy or errors: no traceback, no endless time."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.policy.compile import DeviceVariants
from trimtab.policy.effective import effective_values, show_policy
from trimtab.policy.load import LoadResult, compile_text
from trimtab.policy.schema import PolicyFile
from trimtab.policy.shelf import policy_files, shipped_folder
from trimtab.signals.registry import SIGNALS

SHIPPED = [path.read_text() for path in policy_files(shipped_folder())]
NASTY = [
    *("~", "", "[]", "{}", "-1", "0", ".nan", "-.inf", "1e999", "9" * 25, "0x7fffffff", "true"),
    *("off", "22:30", '"', "'", "&a", "*a", "!!int", "<<", "%", "\t", "\u00e9", "\u202e", "1MiB"),
    *("1C", "1s", "1%", "5 s", "null", "int4", "memory.available", "{all: []}", "[[[[", "- ", ": "),
    *("?", "|", ">", "#", "---", "...", "@", "`", "\r", "\x85", "\\ud83d", "a" * 300),
]
MUTANTS = 250
DEVICE = DeviceVariants(("fp32", "int8", "int4_mixed", "int4"), {"int8": 0.9})
SLOWEST_S = 2.0


def _load(text: str | bytes) -> LoadResult:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    began = time.process_time()
    result = compile_text(raw, "fuzz.yaml", DEVICE)
    assert time.process_time() - began < SLOWEST_S
    assert (result.policy is None) == bool(result.errors)
    for problem in result.problems:
        assert problem.message
        assert problem.text()
    return result


def _mutated(text: str, dice: random.Random) -> str:
    """A shipped policy with a few things wrong."""
    for _ in range(dice.randint(1, 4)):
        lines = text.split("\n")
        where = dice.randrange(len(lines))
        place = dice.randrange(len(text) + 1)
        match dice.randrange(8):
            case 0:
                del lines[where]
                text = "\n".join(lines) or " "
            case 1:
                lines.insert(where, lines[dice.randrange(len(lines))])
                text = "\n".join(lines)
            case 2:
                text = text[:place] + dice.choice(NASTY) + text[place:]
            case 3:
                text = text[:place] + text[place + dice.randint(1, 9) :] or " "
            case 4:
                lines[where] = " " * dice.randrange(5) + lines[where]
                text = "\n".join(lines)
            case 5:
                name, colon, _ = lines[where].partition(":")
                lines[where] = f"{name}{colon} {dice.choice(NASTY)}"
                text = "\n".join(lines)
            case 6:
                words = text.split(" ")
                words[dice.randrange(len(words))] = dice.choice(NASTY)
                text = " ".join(words)
            case 7:
                text = text.replace(dice.choice("[]{}:,-"), dice.choice("[]{}:,- "), 1)
    return text


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_mutated_policies_are_loaded_or_refused(seed: int) -> None:
    dice = random.Random(seed)

    results = [_load(_mutated(dice.choice(SHIPPED), dice)) for _ in range(MUTANTS)]

    refused = sum(result.policy is None for result in results)
    assert 0.5 * MUTANTS < refused < MUTANTS


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_loaded_or_refused(raw: bytes) -> None:
    assert _load(raw).policy is None


_SCALARS = (
    st.sampled_from(NASTY)
    | st.sampled_from(list(SIGNALS)[:12])
    | st.integers(-5, 10_000)
    | st.floats()
    | st.booleans()
    | st.none()
)
_FIELDS = sorted(
    {"version", "when", "leave", "then", "all", "any", "not", "between", "signal", "above", "below"}
    | {"for", "at_most", "allow", "headroom", "enter", "cron", "policy", "max", "min", "window"}
    | set(PolicyFile.model_fields)
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=8))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_compiling_is_total(fields: dict[str, Any]) -> None:
    sound = {"version": 1, "name": "a", "protect": ["latency", "memory"]}

    _load(json.dumps({**sound, **fields}))
    _load(json.dumps({**fields, **sound}))


@given(
    headroom=st.integers(64, 4000),
    corner=st.permutations(["latency", "memory", "accuracy"]),
    context=st.integers(64, 4096),
    for_s=st.integers(1, 600),
    names=st.lists(st.sampled_from(["fp32", "int8", "int4"]), min_size=1, unique=True),
    name=st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_what_is_shown_of_a_policy_is_the_same_policy(
    headroom: int, corner: list[str], context: int, for_s: int, names: list[str], name: str
) -> None:
    result = _load(
        json.dumps(
            {
                "version": 1,
                "name": "a",
                "description": name,
                "protect": corner[:2],
                "limits": {"memory": {"headroom": f"{headroom}MiB"}},
                "knobs": {"variant": names, "context": {"min": context, "max": 8192}},
                "rules": [
                    {
                        "name": name,
                        "when": {"signal": "temperature.max", "above": "80C", "for": f"{for_s}s"},
                        "leave": {"below": "70C"},
                        "then": {"context": {"at_most": context + 1}},
                    }
                ],
            }
        )
    )
    assert result.policy is not None
    assert result.document is not None

    shown = show_policy(effective_values(result.policy, result.document))

    again = _load(shown)
    assert again.policy is not None
    assert replace(again.policy, revision="", rules=()) == replace(
        result.policy, revision="", rules=()
    )
    assert [one.then for one in again.policy.rules] == [one.then for one in result.policy.rules]
