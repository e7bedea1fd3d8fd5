"""The core's values as plain JSON and back, exactly: what a recording is made of.

msgspec takes dataclasses apart but can't tell the members of a union of them from each other when
it puts them together, so each is written with its class's name. Only classes of the core can be
named: a recording is data, and never chooses what is constructed beyond that table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from types import ModuleType
from typing import Any, Final

from trimtab.domain import actions, decisions, events, knobs, models, readings, scheduling
from trimtab.errors import StateError
from trimtab.planner import controller, device, requests, state
from trimtab.policy import compiled, evaluate

_MODULES: Final = (
    actions,
    decisions,
    events,
    knobs,
    models,
    readings,
    scheduling,
    compiled,
    evaluate,
    state,
    device,
    requests,
    controller,
)
_CLASS: Final = "@"
_KINDS: Final = "@tuple", "@set", "@map", "@enum", "@float"
_SPECIAL: Final = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def _classes(modules: tuple[ModuleType, ...]) -> dict[str, type]:
    """All dataclasses and enums that these modules use, by name."""
    found: dict[str, type] = {}
    for module in modules:
        for value in vars(module).values():
            if _is_value(value):
                found[value.__name__] = value
    return found


def _is_value(found: object) -> bool:
    return (
        isinstance(found, type)
        and found.__module__.startswith("trimtab.")
        and (dataclasses.is_dataclass(found) or issubclass(found, Enum))
    )


_NAMED: Final = _classes(_MODULES)


def to_plain(value: Any) -> Any:
    """A core value as what JSON can hold.

    Raises:
        TypeError: If it holds something that isn't the core's.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return {"@enum": type(value).__name__, "value": value.value}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"@float": str(value)}
    if isinstance(value, str | int):
        return value
    if isinstance(value, tuple | list):
        return {"@tuple": [to_plain(item) for item in value]}
    if isinstance(value, frozenset | set):
        return {"@set": [to_plain(item) for item in sorted(value, key=repr)]}
    if isinstance(value, Mapping):
        return {"@map": [[to_plain(key), to_plain(item)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) and type(value).__name__ in _NAMED:
        fields = {
            field.name: to_plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.init
        }
        return {_CLASS: type(value).__name__, **fields}
    raise TypeError(f"{type(value).__name__} is no value of the core's")


def from_plain(plain: Any) -> Any:
    """The core value that `to_plain` made this of.

    Raises:
        StateError: If it wasn't made so, or by a version whose values had other fields.
    """
    try:
        return _build(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"a recorded value can't be read: {error}",
            hint="It may come from another version of trimtab.",
        ) from error


def _build(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    if _CLASS in plain:
        made = _NAMED[plain[_CLASS]]
        return made(**{name: _build(item) for name, item in plain.items() if name != _CLASS})
    kind = next(kind for kind in _KINDS if kind in plain)
    content = plain[kind]
    match kind:
        case "@tuple":
            return tuple(_build(item) for item in content)
        case "@set":
            return frozenset(_build(item) for item in content)
        case "@map":
            return {_build(key): _build(item) for key, item in content}
        case "@enum":
            return _NAMED[content](plain["value"])
        case _:
            return _SPECIAL[content]
