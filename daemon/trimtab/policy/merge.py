"""`extends`: one document laid over another. Pure; every value keeps the place it came from."""

from __future__ import annotations

from typing import Final

from trimtab.policy.document import Entry, Listing, Mapping, Node, Scalar, plain
from trimtab.policy.problems import Problem, Severity, nearest

NOT_INHERITED: Final = frozenset({"version", "name", "extends", "description", "schedule"})
"""Fields that belong to one file alone."""

_LIKE_ONE_VALUE: Final = frozenset({"when", "leave", "then", "priorities"})
"""Mappings that are taken whole: half of a condition is no condition."""


def merge(base: Mapping, own: Mapping) -> tuple[Mapping, list[Problem]]:
    """Lay ``own`` over ``base``.

    Mappings are merged field by field, lists and values are replaced. Rules are merged by name: a
    rule of the same name replaces the base's in its place, others follow, and `drop_rules` takes
    rules of the base away. An explicit `null` takes a value of the base away.

    Returns:
        The merged document and the problems (names in `drop_rules` that the base doesn't have).
    """
    inherited = {name: e for name, e in base.entries.items() if name not in NOT_INHERITED}
    inherited.pop("drop_rules", None)
    problems: list[Problem] = []
    rules = inherited.get("rules")
    if rules is not None:
        merged_rules, problems = _merge_rules(rules, own)
        inherited["rules"] = merged_rules
    merged = _overlay(Mapping(inherited, own.at), _without_rules(own) if rules else own)
    return merged, problems


def tidy(document: Mapping) -> tuple[Mapping, list[Problem]]:
    """Take out explicit nulls, and report fields where nothing stands at all."""
    problems: list[Problem] = []
    tidied = _tidy(document, problems, ())
    assert isinstance(tidied, Mapping)
    return tidied, problems


def _overlay(base: Mapping, own: Mapping) -> Mapping:
    entries = dict(base.entries)
    for name, entry in own.entries.items():
        earlier = entries.get(name)
        both = (
            earlier is not None
            and isinstance(earlier.node, Mapping)
            and isinstance(entry.node, Mapping)
        )
        if both and name not in _LIKE_ONE_VALUE:
            assert earlier is not None
            assert isinstance(earlier.node, Mapping)
            assert isinstance(entry.node, Mapping)
            entries[name] = Entry(entry.name_at, _overlay(earlier.node, entry.node))
        else:
            entries[name] = entry
    return Mapping(entries, own.at)


def _without_rules(own: Mapping) -> Mapping:
    rest = {name: entry for name, entry in own.entries.items() if name != "rules"}
    return Mapping(rest, own.at)


def _merge_rules(base: Entry, own: Mapping) -> tuple[Entry, list[Problem]]:
    """The base's rules, some replaced or dropped, followed by the own ones."""
    if not isinstance(base.node, Listing):
        return own.entries.get("rules", base), []
    mine = own.entries.get("rules")
    if mine is not None and not isinstance(mine.node, Listing):
        return mine, []
    own_rules = _numbered(mine.node) if mine is not None and isinstance(mine.node, Listing) else []
    base_rules = _numbered(base.node)
    dropped, problems = _dropped(own, [_rule_name(rule) for _, rule in base_rules])
    by_name = {_rule_name(rule): (number, rule) for number, rule in own_rules}
    base_names = {_rule_name(rule) for _, rule in base_rules} - {""}
    kept = [
        by_name.get(_rule_name(rule), (number, rule)) if _rule_name(rule) else (number, rule)
        for number, rule in base_rules
        if _rule_name(rule) not in dropped
    ]
    kept += [
        (number, rule)
        for number, rule in own_rules
        if _rule_name(rule) not in base_names or _rule_name(rule) in dropped
    ]
    entry = mine or base
    listing = Listing(
        tuple(rule for _, rule in kept), entry.node.at, tuple(number for number, _ in kept)
    )
    return Entry(entry.name_at, listing), problems


def _numbered(rules: Listing) -> list[tuple[int, Node]]:
    return [(rules.number(index), rule) for index, rule in enumerate(rules.items)]


def _dropped(own: Mapping, known: list[str]) -> tuple[set[str], list[Problem]]:
    entry = own.entries.get("drop_rules")
    if entry is None or not isinstance(entry.node, Listing):
        return set(), []
    problems: list[Problem] = []
    dropped: set[str] = set()
    for index, item in enumerate(entry.node.items):
        name = plain(item)
        if isinstance(name, str) and name in known:
            dropped.add(name)
        elif isinstance(name, str):
            at = item.at
            message = f"the extended policy has no rule {name!r}"
            hint = nearest(name, known)
            path = f"drop_rules[{index}]"
            problems.append(
                Problem(Severity.ERROR, at.file, at.line, at.column, path, message, hint)
            )
    return dropped, problems


def _rule_name(rule: Node) -> str:
    if not isinstance(rule, Mapping) or "name" not in rule.entries:
        return ""
    name = plain(rule.entries["name"].node)
    return name if isinstance(name, str) else ""


def _tidy(node: Node, problems: list[Problem], path: tuple[str, ...]) -> Node:
    if isinstance(node, Listing):
        items = tuple(_tidy(item, problems, (*path, "[]")) for item in node.items)
        return Listing(items, node.at, node.numbers)
    if not isinstance(node, Mapping):
        return node
    entries: dict[str, Entry] = {}
    for name, entry in node.entries.items():
        inner = entry.node
        if isinstance(inner, Scalar) and inner.value is None:
            if inner.text == "":
                problems.append(_nothing(name, entry, path))
            continue
        entries[name] = Entry(entry.name_at, _tidy(inner, problems, (*path, name)))
    return Mapping(entries, node.at)


def _nothing(name: str, entry: Entry, path: tuple[str, ...]) -> Problem:
    at = entry.name_at
    where = ".".join((*path, name)).replace(".[]", "[]")
    message = "nothing stands here; give a value, or leave the field out"
    return Problem(Severity.ERROR, at.file, at.line, at.column, where, message)
