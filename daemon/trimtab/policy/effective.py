"""A policy as it counts: every value, written or default, with where it came from. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trimtab.policy.compiled import Policy
from trimtab.policy.document import Entry, Listing, Mapping, Node, PathParts, Scalar
from trimtab.policy.fields import Part
from trimtab.policy.scalars import written
from trimtab.policy.schema import PolicyFile
from trimtab.policy.units import exact_size
from trimtab.policy.validate import field_names, parts_of

_LEFT_OUT: Final = frozenset({"extends", "drop_rules"})


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One field's value.

    Attributes:
        path: Where it belongs.
        text: As YAML.
        origin: ``file:line``, ``default``, or ``follows from FIELD``.
    """

    path: PathParts
    text: str
    origin: str


def effective_values(policy: Policy, document: Mapping) -> tuple[EffectiveValue, ...]:
    """Every field of a policy that has a value, in the order of the reference.

    Rules come as ``("rules", NAME, FIELD)``, since a rule is known by its name.
    """
    return tuple(_values(PolicyFile, document, {}, (), _derived(policy)))


def show_policy(values: tuple[EffectiveValue, ...]) -> str:
    """The values as YAML that is a policy again, with the origin of each as a comment."""
    rows: list[tuple[str, str]] = []
    last: PathParts = ()
    for value in values:
        rows += _opened(last, value.path)
        rows.append((_line(value), value.origin))
        last = value.path
    width = min(max((len(text) for text, origin in rows if origin), default=0), 72)
    lines = [f"{text:<{width}}  # {origin}" if origin else text for text, origin in rows]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two policies; an empty side means that there is no value."""

    path: str
    before: str
    after: str


def differences(
    before: tuple[EffectiveValue, ...], after: tuple[EffectiveValue, ...]
) -> tuple[Change, ...]:
    """What counts differently in two policies, field by field; names aside."""
    mine = {_dotted(value.path): value.text for value in before}
    yours = {_dotted(value.path): value.text for value in after}
    paths = [path for path in dict.fromkeys((*mine, *yours)) if path not in {"name", "description"}]
    return tuple(
        Change(path, mine.get(path, ""), yours.get(path, ""))
        for path in paths
        if mine.get(path) != yours.get(path)
    )


def flow(node: Node) -> str:
    """A node on one line, as YAML that means the same."""
    match node:
        case Scalar():
            return written(node.value) if isinstance(node.value, str) else node.text
        case Listing():
            return f"[{', '.join(flow(item) for item in node.items)}]"
        case Mapping():
            fields = (f"{name}: {flow(entry.node)}" for name, entry in node.entries.items())
            return f"{{{', '.join(fields)}}}"


def _values(
    part: type[Part],
    node: Mapping | None,
    default: dict[str, Any],
    path: PathParts,
    derived: dict[PathParts, tuple[str, str]],
) -> Iterator[EffectiveValue]:
    """The values of one part: from the document, else from the defaults."""
    for name, attribute in field_names(part).items():
        here = (*path, name)
        if name in _LEFT_OUT:
            continue
        info = part.model_fields[attribute]
        entry = node.entries.get(name) if node is not None else None
        inner = parts_of(info.annotation)
        written_default = default.get(name, None if info.is_required() else info.default)
        if entry is not None and name == "rules":
            yield from _rules(entry.node)
        elif entry is not None and isinstance(entry.node, Mapping) and len(inner) == 1:
            yield from _values(inner[0], entry.node, {}, here, derived)
        elif entry is not None:
            yield EffectiveValue(here, flow(entry.node), _place(entry))
        elif isinstance(written_default, dict) and len(inner) == 1:
            yield from _values(inner[0], None, written_default, here, derived)
        elif here in derived:
            yield EffectiveValue(here, *derived[here])
        elif written_default not in (None, [], ""):
            yield EffectiveValue(here, _default_text(written_default), "default")


def _rules(node: Node) -> Iterator[EffectiveValue]:
    for rule in node.items if isinstance(node, Listing) else ():
        if not isinstance(rule, Mapping):
            continue
        name = flow(rule.entries["name"].node)
        for field, entry in rule.entries.items():
            yield EffectiveValue(("rules", name, field), flow(entry.node), _place(entry))


def _derived(policy: Policy) -> dict[PathParts, tuple[str, str]]:
    """Values that follow from others where a file doesn't give them."""
    found: dict[PathParts, tuple[str, str]] = {
        ("sacrifice",): (policy.sacrifice.value, "follows from protect"),
        ("floor", "context"): (str(policy.floor.context), "follows from knobs.context.min"),
    }
    if policy.memory is not None:
        found["limits", "memory", "leave"] = (
            exact_size(policy.memory.leave_bytes),
            "follows from headroom",
        )
    if policy.temperature is not None:
        found["limits", "temperature", "leave"] = (
            f"{policy.temperature.leave_celsius:.12g}C",
            "follows from enter",
        )
    return found


def _place(entry: Entry) -> str:
    at = entry.node.at if isinstance(entry.node, Scalar) else entry.name_at
    return f"{at.file}:{at.line}"


def _default_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_default_text(item) for item in value)}]"
    if isinstance(value, dict):
        fields = (f"{name}: {_default_text(item)}" for name, item in value.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _opened(last: PathParts, path: PathParts) -> list[tuple[str, str]]:
    """The lines that open the mappings between two values."""
    rows: list[tuple[str, str]] = []
    for depth in range(len(path) - 1):
        if last[: depth + 1] == path[: depth + 1]:
            continue
        if path[0] == "rules" and depth == 1:
            continue  # a rule is opened by its name
        rows.append((f"{'  ' * depth}{path[depth]}:", ""))
    return rows


def _line(value: EffectiveValue) -> str:
    depth = len(value.path) - 1
    name = value.path[-1]
    if value.path[0] == "rules" and depth == 2:
        return f"  {'- ' if name == 'name' else '  '}{name}: {value.text}"
    return f"{'  ' * depth}{name}: {value.text}"


def _dotted(path: PathParts) -> str:
    if path[0] == "rules" and len(path) == 3:
        return f"rules[{path[1]}].{path[2]}"
    return ".".join(str(step) for step in path)
