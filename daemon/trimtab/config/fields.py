"""Every key of the configuration as a flat list: for variables, `config show` and the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from trimtab.config.schema import Config, Section
from trimtab.domain.readings import Unit


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One key.

    Attributes:
        path: Dotted, as in the file.
        attribute: Dotted path of the attribute in `Config`.
        description: One sentence.
        default: The schema's default; None if there is none or it depends on the machine.
        is_path: A path, or several: ``~`` and relative paths are resolved.
        is_list: Several values, separated by colons in a variable.
        is_table: A table with names of the user's own; only the file can set it.
        is_optional: It can be left unset.
        unit: What it is written in; None for plain values.
    """

    path: str
    attribute: str
    description: str
    default: Any
    is_path: bool
    is_list: bool
    is_table: bool
    is_optional: bool = False
    unit: Unit | None = None

    @property
    def variable(self) -> str:
        """The environment variable that sets it; empty for tables."""
        return "" if self.is_table else "TRIMTAB_" + self.path.replace(".", "_").upper()


@cache
def fields() -> tuple[FieldSpec, ...]:
    """All keys, in the order of the schema."""
    return tuple(_walk(Config, "", ""))


@cache
def by_path() -> dict[str, FieldSpec]:
    """All keys by their path."""
    return {field.path: field for field in fields()}


def _walk(section: type[Section], prefix: str, attributes: str) -> Iterator[FieldSpec]:
    for name, info in section.model_fields.items():
        key = info.alias or name
        below = info.annotation
        if isinstance(below, type) and issubclass(below, Section):
            yield from _walk(below, f"{prefix}{key}.", f"{attributes}{name}.")
        else:
            yield _spec(f"{prefix}{key}", f"{attributes}{name}", info)


def _spec(path: str, attribute: str, info: FieldInfo) -> FieldSpec:
    kinds = _kinds(info.annotation)
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    return FieldSpec(
        path=path,
        attribute=attribute,
        description=info.description or "",
        default=default,
        is_path=Path in kinds,
        is_list=tuple in kinds,
        is_table=dict in kinds,
        is_optional=type(None) in kinds,
        unit=_unit(attribute),
    )


def _unit(attribute: str) -> Unit | None:
    """By the suffix of the attribute's name, as everywhere in trimtab."""
    if attribute.endswith("_s"):
        return Unit.SECONDS
    return Unit.BYTES if attribute.endswith("_bytes") else None


def _kinds(annotation: Any) -> set[Any]:
    """The plain types that an annotation is made of."""
    origin = get_origin(annotation)
    if origin is dict:
        return {dict}
    if origin in (Union, UnionType, tuple):
        own = {tuple} if origin is tuple else set()
        return own.union(*(_kinds(part) for part in get_args(annotation)))
    return {annotation}
