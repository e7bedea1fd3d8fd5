"""A variant's chat template, as text: the engine applies it, we look at what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

TEMPLATE: Final = "chat_template.jinja"
CONFIG: Final = "tokenizer_config.json"


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _Config(msgspec.Struct):
    chat_template: Any = None


def read_template(folder: Path) -> str:
    """The chat template of a variant's folder; empty if it has none that can be read.

    Older folders have it within ``tokenizer_config.json``, some of them several by name.
    """
    try:
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    try:
        return parse_config((folder / CONFIG).read_bytes())
    except OSError:
        return ""


def parse_config(data: bytes) -> str:
    """The template in the content of a ``tokenizer_config.json``; of several the default one."""
    try:
        found = msgspec.json.decode(data, type=_Config).chat_template
        if isinstance(found, str):
            return found
        named = msgspec.convert(found or [], list[_NamedTemplate])
    except msgspec.MsgspecError:
        return ""
    return next((one.template for one in named if one.name == "default"), "")
