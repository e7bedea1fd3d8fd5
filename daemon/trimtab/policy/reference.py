"""The language's JSON Schema, and its reference for people: both made from the schema's models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from trimtab.domain.readings import Unit
from trimtab.policy.fields import Part
from trimtab.policy.schema import PolicyFile
from trimtab.policy.units import unit_example
from trimtab.signals.registry import DYNAMIC_PREFIXES, SIGNALS

_PARTLY_INHERITED: Final = ("MemoryLimits", "TemperatureLimits")

_PATTERNS: Final[dict[str, str]] = {
    r"^(off|ngram|draft:.{1,100})$": "`off`, `ngram` or `draft:VARIANT`",
    r"^([01]\d|2[0-3]):[0-5]\d$": "time of the day (`22:30`)",
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema that editors check and complete policies with.

    It is that of one file: what a policy must have, it may have from the one that it extends.
    """
    schema = PolicyFile.model_json_schema()
    schema.pop("title", None)
    for name in _PARTLY_INHERITED:
        schema["$defs"][name].pop("required", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "trimtab policy, version 1",
        **schema,
        "required": ["version", "name"],
        "anyOf": [{"required": ["protect"]}, {"required": ["extends"]}],
    }


def json_schema_text() -> str:
    """The JSON Schema as it is committed."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def reference() -> str:
    """Every field and every signal, as Markdown."""
    lines = [*tables("A policy", PolicyFile), "", "### Signals", "", *_signals()]
    return "\n".join(lines) + "\n"


def tables(title: str, part: type[Part]) -> list[str]:
    """A table for a language's top and one for each of its parts, as lines of Markdown."""
    schema = part.model_json_schema()
    lines = [f"### {title}", "", *_table(schema)]
    for name in _in_order(schema):
        inner = schema["$defs"][name]
        lines += ["", f"### {_heading(name)}", "", inner.get("description", "")]
        lines += ["", *_table(inner)]
    return lines


def _in_order(schema: dict[str, Any]) -> list[str]:
    """Names of the parts in the order in which a reader meets them."""
    found: dict[str, None] = {}

    def visit(part: dict[str, Any]) -> None:
        for field in part.get("properties", {}).values():
            for name in _references(field):
                if name not in found:
                    found[name] = None
                    visit(schema["$defs"][name])

    visit(schema)
    return list(found)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield str(value).rsplit("/", 1)[-1]
            elif key != "discriminator":
                yield from _references(value)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)


def _table(part: dict[str, Any]) -> Iterator[str]:
    yield "| field | value | default | meaning |"
    yield "|---|---|---|---|"
    required = set(part.get("required", ()))
    for name, field in part["properties"].items():
        default = "required" if name in required else _default(field)
        # Pydantic leaves a description out where it is that of the part itself.
        meaning = field.get("description") or "See there."
        yield f"| `{name}` | {_words(field)} | {default} | {meaning} |"


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if value == {} and "$ref" in field:
        return "its own defaults"
    if value is None or value in ([], {}, ""):
        return "–"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, str | int) and not isinstance(value, bool):
        return f"`{value}`"
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace('"', "")


def _words(field: dict[str, Any]) -> str:
    """A field's type in words."""
    if "$ref" in field:
        name = str(field["$ref"]).rsplit("/", 1)[-1]
        return f"[{_heading(name)}](#{_anchor(name)})"
    choices = field.get("anyOf") or field.get("oneOf")
    if choices:
        return " or ".join(
            dict.fromkeys(_words(one) for one in choices if one.get("type") != "null")
        )
    if "const" in field:
        return f"`{json.dumps(field['const'])}`".replace('"', "")
    if "enum" in field:
        return ", ".join(f"`{one}`" for one in field["enum"])
    if field.get("type") == "array":
        return f"list of: {_words(field['items'])}"
    if field.get("type") == "object":
        return f"mapping of names to: {_words(field.get('additionalProperties') or {})}"
    return _scalar_words(field)


def _scalar_words(field: dict[str, Any]) -> str:
    if "format" in field:
        examples = ", ".join(f"`{one}`" for one in field["examples"])
        return f"{field['format']} ({examples})"
    if field.get("pattern") in _PATTERNS:
        return _PATTERNS[field["pattern"]]
    kinds = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "`true` or `false`",
    }
    words = kinds.get(str(field.get("type")), "anything")
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f"{words}, {low} to {high}"
    return words


def _heading(name: str) -> str:
    """`MemoryLimits` becomes `Memory limits`; the classes' `File` at the end says nothing here."""
    short = name.removesuffix("File") or name
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in short)
    return words.strip().capitalize()


def _anchor(name: str) -> str:
    return _heading(name).lower().replace(" ", "-")


def _signals() -> Iterator[str]:
    yield "| signal | written like | meaning |"
    yield "|---|---|---|"
    for spec in SIGNALS.values():
        like = "is: true" if spec.unit is Unit.BOOL else unit_example(spec.unit)
        yield f"| `{spec.name}` | `{like}` | {spec.meaning} |"
    for prefix, unit in DYNAMIC_PREFIXES.items():
        like = f"`{unit_example(unit)}`" if unit is not None else "as its owner declares it"
        yield f"| `{prefix}…` | {like} | What this device or its owner adds. |"
