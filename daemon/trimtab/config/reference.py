"""The reference of all keys, made from the schema, so that it can't fall behind."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

from trimtab.config.fields import FieldSpec, fields
from trimtab.policy.units import format_quantity

BEGIN: Final = "<!-- reference: made by `trimtab config reference` -->"
END: Final = "<!-- end of reference -->"


def reference() -> str:
    """A table of keys for each section, in Markdown, between its two marks."""
    parts = [BEGIN]
    plain_first = sorted(fields(), key=lambda field: "." in field.path)
    for section, group in groupby(plain_first, key=lambda field: field.path.rpartition(".")[0]):
        parts += ["", f"### {f'[{section}]' if section else 'Top level'}", ""]
        parts += ["| Key | Default | Variable | Meaning |", "|---|---|---|---|"]
        parts += [_row(field) for field in group]
    return "\n".join([*parts, "", END])


def _row(field: FieldSpec) -> str:
    key = field.path.rpartition(".")[2]
    variable = f"`{field.variable}`" if field.variable else "only in the file"
    return f"| `{key}` | {_default(field)} | {variable} | {field.description} |"


def _default(field: FieldSpec) -> str:
    value: Any = field.default
    if field.is_table:
        return "empty"
    if value is None:
        return "unset" if field.is_optional else "by place"
    if field.path.endswith("_mode"):
        return f'`"{value:04o}"`'
    if field.unit:
        return f'`"{format_quantity(value, field.unit)}"`'
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, int | float) else f'`"{value}"`'
