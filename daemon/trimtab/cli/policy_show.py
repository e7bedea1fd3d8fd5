"""What `trimtab policy show` shows: a policy from files, or the one that is in force."""

from __future__ import annotations

from typing import Any

import msgspec

from trimtab.api.client import PREFIX, connect
from trimtab.config.load import Loaded
from trimtab.errors import NotRunningError
from trimtab.policy.effective import EffectiveValue
from trimtab.runtime.policy_library import show_values


class ShownPolicy(msgspec.Struct, frozen=True):
    """A policy as it counts.

    Attributes:
        values: Of each field: path, text and origin.
        in_force: The running daemon goes by it.
        notes: What a reader should know besides, each a sentence.
    """

    name: str
    revision: str
    values: list[dict[str, Any]]
    in_force: bool = False
    notes: list[str] = []

    def effective(self) -> tuple[EffectiveValue, ...]:
        """The values as the policy package has them."""
        return tuple(
            EffectiveValue(tuple(one["path"]), one["text"], one["origin"]) for one in self.values
        )


def from_files(name: str, settings: Loaded, notes: tuple[str, ...] = ()) -> ShownPolicy:
    """A policy as its files have it.

    Args:
        name: Its name, or a file.
        settings: The configuration; names the policy folder.
        notes: What to say besides.

    Raises:
        PolicyError: It is bad or isn't there.
    """
    values = show_values(name, settings.config.policies, None)
    return ShownPolicy(**values, notes=list(notes))


def in_force(settings: Loaded) -> ShownPolicy:
    """The policy that the running daemon goes by, or the configured one if none runs.

    Raises:
        TrimtabError: A daemon runs that can't be asked.
        PolicyError: None runs, and the configured policy is bad or isn't there.
    """
    configured = settings.config.policy
    try:
        with connect(settings) as client:
            told = client.get(f"{PREFIX}/policy/values")
            view = client.get(f"{PREFIX}/policy")
    except NotRunningError:
        note = f"No daemon runs: this is {configured}, the policy that the configuration names."
        return from_files(configured, settings, (note,))
    return ShownPolicy(**told, in_force=True, notes=_notes(told, view, configured))


def _notes(told: dict[str, Any], view: dict[str, Any], configured: str) -> list[str]:
    notes = [f"In force: {told['name']}, revision {told['revision']}."]
    if view["stale"]:
        first = str(view["error"]).splitlines()[0]
        notes.append(f"Its file says otherwise and is bad ({first}), so the last good one holds.")
        notes.append(f"`trimtab policy check {view['name']}` tells what is wrong.")
    if told["name"] != configured:
        notes.append(
            f"The configuration names {configured}; a schedule or `trimtab policy use` chose "
            "this one."
        )
    return notes
