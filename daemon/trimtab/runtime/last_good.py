"""What a start falls back on: the last good policy, whole in one file, and a person's choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from trimtab.domain.models import ModelSpec
from trimtab.policy.compile import device_variants
from trimtab.policy.effective import effective_values, show_policy
from trimtab.policy.load import LoadResult, compile_text
from trimtab.telemetry.state import read_state, write_state

FILE: Final = "last-good-policy.json"
CHOICE_FILE: Final = "chosen-policy.json"
VERSION: Final = 1


class _Saved(msgspec.Struct, frozen=True):
    """What is kept.

    Attributes:
        name: The policy's name.
        revision: Of the files that it was made of; what status goes on showing.
        text: The effective policy as YAML: needs no other file.
    """

    name: str
    revision: str
    text: str


def save_last_good(state: Path, result: LoadResult) -> None:
    """Keep a policy that has come in force.

    Raises:
        StateError: It can't be written.
    """
    policy, document = result.policy, result.document
    if policy is None or document is None:
        return
    text = show_policy(effective_values(policy, document))
    write_state(state / FILE, _Saved(policy.name, policy.revision, text), VERSION)


def load_last_good(state: Path, model: ModelSpec | None) -> LoadResult | None:
    """The policy that was kept; None if there is none that can be used on this device.

    Its revision is that of the files that it was made of.

    Raises:
        StateError: The file is damaged.
    """
    saved = read_state(state / FILE, _Saved, VERSION)
    if saved is None:
        return None
    result = compile_text(saved.text.encode(), str(state / FILE), device_variants(model))
    if result.policy is None:
        return None
    return replace(result, policy=replace(result.policy, revision=saved.revision))


class _Chosen(msgspec.Struct, frozen=True):
    """A choice that a person made while the daemon ran.

    Attributes:
        configured: The policy that the configuration named then: a choice ends when that changes.
        chosen: The policy to use instead.
    """

    configured: str
    chosen: str


def save_choice(state: Path, configured: str, chosen: str) -> None:
    """Keep which policy a person chose.

    Raises:
        StateError: It can't be written.
    """
    write_state(state / CHOICE_FILE, _Chosen(configured, chosen), VERSION)


def load_choice(state: Path, configured: str) -> str:
    """The policy that a person chose over the configured one; the configured one without that.

    Raises:
        StateError: The file is damaged.
    """
    choice = read_state(state / CHOICE_FILE, _Chosen, VERSION)
    if choice is None or choice.configured != configured:
        return configured
    return choice.chosen
