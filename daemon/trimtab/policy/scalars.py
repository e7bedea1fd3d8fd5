"""What unquoted text means: YAML 1.2's core types. Pure."""

from __future__ import annotations

import json
import re
from typing import Final

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_INT: Final = re.compile(r"[-+]?[0-9]{1,40}", re.ASCII)
_OCTAL: Final = re.compile(r"0o[0-7]{1,40}", re.ASCII)
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{1,40}", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_INFINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)", re.ASCII)
_NAN: Final = frozenset({".nan", ".NaN", ".NAN"})
_SAFE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 _.%/°–×−-]|:(?=[^\s]))*")


def core_value(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar means under YAML 1.2's core schema."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float("-inf") if text.startswith("-") else float("inf")
    return float("nan") if text in _NAN else text


def written(value: str) -> str:
    """Text as a scalar that means the same text: in quotes where it would mean something else."""
    safe = _SAFE.fullmatch(value) and core_value(value) == value and value == value.strip()
    return value if safe else json.dumps(value, ensure_ascii=False)
