"""What policies there are, what is in each, and what is wrong with a text: for people to see.

Everything in here reads files and compiles, so it blocks: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trimtab.errors import PolicyError
from trimtab.policy.compile import DeviceVariants
from trimtab.policy.compiled import Policy
from trimtab.policy.effective import EffectiveValue, effective_values
from trimtab.policy.load import compile_text, load_folder, load_policy
from trimtab.policy.problems import Problem
from trimtab.policy.shelf import shipped_folder, stem


def list_policies(folder: Path, device: DeviceVariants | None) -> list[dict[str, Any]]:
    """Every policy of the folder and every shipped one, those with errors as well."""
    rows: list[dict[str, Any]] = []
    for place in dict.fromkeys((folder, shipped_folder())):
        try:
            results = load_folder(place, device)
        except PolicyError:
            continue  # an empty or missing folder has none
        for path, result in results.items():
            policy = result.policy
            rows.append(
                {
                    "name": policy.name if policy else stem(path),
                    "revision": policy.revision if policy else None,
                    "description": policy.description if policy else "",
                    "file": str(path),
                    "shipped": place != folder,
                    "problems": problems_json(result.problems),
                }
            )
    return rows


def show_values(name: str, folder: Path, device: DeviceVariants | None) -> dict[str, Any]:
    """A policy as it counts, each value with where it comes from.

    Raises:
        PolicyError: It is bad or isn't there.
    """
    result = load_policy(name, folder, device)
    policy, document = result.require(), result.document
    assert document is not None
    return values_json(policy, effective_values(policy, document))


def values_json(policy: Policy, values: Iterable[EffectiveValue]) -> dict[str, Any]:
    """A policy's values for programs."""
    return {
        "name": policy.name,
        "revision": policy.revision,
        "values": [
            {"path": list(one.path), "text": one.text, "origin": one.origin} for one in values
        ],
    }


def check_text(text: str, device: DeviceVariants | None) -> dict[str, Any]:
    """What is wrong with a policy that stands by itself, on this device."""
    result = compile_text(text.encode("utf-8", "replace"), "policy", device)
    return {"sound": result.policy is not None, "problems": problems_json(result.problems)}


def problems_json(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Problems for programs."""
    return [asdict(problem) for problem in problems]


def as_name(name: str) -> str:
    """The name, if it is one: callers over a socket never name paths.

    Raises:
        PolicyError: It is a path.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        raise PolicyError(f"{name[:80]!r} is no name of a policy", hint="`trimtab policy list`")
    return name
