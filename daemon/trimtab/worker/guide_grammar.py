"""From what an answer must look like to a grammar in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trimtab.domain.tools import SHAPES, ToolFormat, ToolShape
from trimtab.errors import EngineError
from trimtab.workers.protocol import Guide, Tool

# Where JSON allows any amount of white space, a small model can go on with it for ever: one space,
# or a line break with an indentation, is what people and models write; and models write calls in
# one line.
_WHITE_SPACE: Final = r"( |\n[ ]{0,24}|\n\t{0,8})"
_WHITE_SPACE_OF_CALLS: Final = " "
# Text that is certain isn't put in tokens for the model: it knows better how it would write it.
_OPTIONS: Final = '%llguidance {"no_forcing": true}'
_ANY_TEXT: Final = r"/(.|\n)*/"
_NO_BRACE_FIRST: Final = r"/([^{](.|\n)*)?/"


class GuideError(EngineError):
    """A form can't be enforced; the fault is the request's.

    Args:
        message: Why.
        field: The field that has it, as the client calls it.
    """

    code = "schema_unsupported"

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


def answer_schema(guide: Guide) -> str:
    """The answer's schema, as JSON text, with how its JSON may be laid out."""
    return _with_options(guide.schema, {"whitespace_pattern": _WHITE_SPACE})


def arguments_schema(tool: Tool) -> str:
    """The schema of a tool's arguments, as JSON text, with how far it binds."""
    options: dict[str, Any] = {"whitespace_pattern": _WHITE_SPACE_OF_CALLS}
    return _with_options(tool.schema, options if tool.strict else options | {"lenient": True})


def _with_options(schema: str, options: dict[str, Any]) -> str:
    return json.dumps(msgspec.json.decode(schema) | {"x-guidance": options})


def grammar(guide: Guide, special: Mapping[str, int]) -> str:
    """The whole grammar of an answer.

    Args:
        guide: What is wanted.
        special: Token ids of the markers that are tokens of their own here.
    """
    rules = [f"answer: %json {answer_schema(guide)}"] if guide.schema else []
    beginning = _Calls(guide, special).rules() if guide.tools else ["start: answer"]
    return "\n".join([_OPTIONS, *beginning, *rules])


class _Calls:
    """The rules of an answer that may have calls, or must."""

    def __init__(self, guide: Guide, special: Mapping[str, int]) -> None:
        self._guide = guide
        self._special = special
        self._shape: ToolShape = SHAPES[ToolFormat(guide.tool_format)]
        markers = "|".join(re.escape(marker) for marker in self._shape.markers)
        self._markers = re.compile(f"({markers})")

    def rules(self) -> list[str]:
        shape = self._shape
        lead = self._lead()
        most = self._guide.calls_most if shape.between is not None else 1
        more = f"({self._terms(shape.between or '')} call){{0,{most - 1}}}" if most > 1 else ""
        rules = [f"rest: call {more} {self._terms(shape.last)}", *self._call_rules()]
        if self._guide.calls_least:
            return [f"start: {lead} rest", *rules]
        return [*self._beginning(lead), *rules]

    def _lead(self) -> str:
        """What calls begin with; told from an answer that is JSON too, where there may be one."""
        shape, first = self._shape, self._terms(self._shape.first)
        told_apart = bool(shape.trigger) or not self._guide.schema
        if shape.prelude in self._special:
            prelude = self._terms(shape.prelude)
            return f"({prelude})? {first}" if told_apart else f"{prelude} {first}"
        if not told_apart:
            raise GuideError(
                "this model's calls of tools can't be told from an answer that is JSON; "
                "ask for one or the other",
                self._guide.field,
            )
        return first

    def _beginning(self, lead: str) -> list[str]:
        """Calls or text, text before calls where the format has a mark for where they begin."""
        shape = self._shape
        if self._guide.schema:
            return [f"start: answer | {lead} rest"]
        if not shape.trigger:
            return [f"start: TEXT | {lead} rest", f"TEXT: {_NO_BRACE_FIRST}"]
        if shape.trigger in self._special:
            return [f"start: TEXT | TEXT {lead} rest", f"TEXT: {_ANY_TEXT}"]
        begun = self._terms(shape.first.removeprefix(shape.trigger))
        return [
            f"start: TEXT | lead {begun} rest",
            f"lead[lazy]: TEXT {json.dumps(shape.trigger)}",
            f"TEXT: {_ANY_TEXT}",
        ]

    def _call_rules(self) -> list[str]:
        names = range(len(self._guide.tools))
        rules = ["call: " + " | ".join(f"call_{number}" for number in names)]
        for number, tool in enumerate(self._guide.tools):
            head, tail = self._terms(self._shape.head(tool.name)), self._terms(self._shape.tail)
            rules.append(f"call_{number}: {head} arguments_{number} {tail}")
            rules.append(f"arguments_{number}: %json {arguments_schema(tool)}")
        return rules

    def _terms(self, text: str) -> str:
        """Literal text as terms, its markers as tokens where they are tokens of their own."""
        parts = [part for part in self._markers.split(text) if part]
        return " ".join(
            f"<[{self._special[part]}]>" if part in self._special else json.dumps(part)
            for part in parts
        )
