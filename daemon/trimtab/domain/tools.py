"""How models write calls of tools: the formats of the common chat templates.

A template shows a model its tools and teaches it a way of calling them, which nothing but the
template's text tells us. The grammar that holds calls to that way (`worker.guide_grammar`) and the
reader that finds them in the answer (`api.tool_reader`) both go by the same `ToolShape`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_NAME: Final = "NAME"
_USES_TOOLS: Final = re.compile(r"\btools\b")


class ToolFormat(StrEnum):
    """Whose way of calling tools a model was taught."""

    HERMES = "hermes"  # Hermes, Qwen 2.5 and 3, SmolLM3
    LLAMA = "llama"  # Llama 3.1 to 3.3
    MISTRAL = "mistral"  # a list of calls behind one marker
    MISTRAL_ARGS = "mistral_args"  # since 2025: a marker, a name and arguments for each call


@dataclass(frozen=True, slots=True)
class ToolShape:
    """The text around calls.

    An answer with two calls reads
    ``first + head(a) + ARGUMENTS + tail + between + head(b) + ARGUMENTS + tail + last``.

    Attributes:
        first: Begins the calls.
        before_arguments: What stands before a call's arguments, with ``NAME`` for the tool's.
        tail: Ends a call.
        between: Stands between calls; None where an answer can have only one.
        last: Ends the calls.
        trigger: Where it comes in an answer, calls begin: the beginning of ``first``. Empty where
            calls can only begin the answer.
        prelude: May stand before ``first`` at the beginning of the answer.
        markers: Parts of the above that are tokens of their own in some vocabularies.
        id_length: Characters that templates of this format want in a call's id; 0 for any.
    """

    first: str
    before_arguments: str
    tail: str
    between: str | None
    last: str
    trigger: str = ""
    prelude: str = ""
    markers: tuple[str, ...] = ()
    id_length: int = 0

    def head(self, name: str) -> str:
        """What stands before the arguments of a call of that tool."""
        return self.before_arguments.replace(_NAME, name)


SHAPES: Final[dict[ToolFormat, ToolShape]] = {
    ToolFormat.HERMES: ToolShape(
        first="<tool_call>\n",
        before_arguments='{"name": "NAME", "arguments": ',
        tail="}",
        between="\n</tool_call>\n<tool_call>\n",
        last="\n</tool_call>",
        trigger="<tool_call>",
        markers=("<tool_call>", "</tool_call>"),
    ),
    ToolFormat.LLAMA: ToolShape(
        first="",
        before_arguments='{"name": "NAME", "parameters": ',
        tail="}",
        between=None,  # the templates refuse a history with several calls in one answer
        last="",
        prelude="<|python_tag|>",
        markers=("<|python_tag|>",),
    ),
    ToolFormat.MISTRAL: ToolShape(
        first="[TOOL_CALLS] [",
        before_arguments='{"name": "NAME", "arguments": ',
        tail="}",
        between=", ",
        last="]",
        trigger="[TOOL_CALLS]",
        markers=("[TOOL_CALLS]",),
        id_length=9,
    ),
    ToolFormat.MISTRAL_ARGS: ToolShape(
        first="[TOOL_CALLS]",
        before_arguments="NAME[ARGS]",
        tail="",
        between="[TOOL_CALLS]",
        last="",
        trigger="[TOOL_CALLS]",
        markers=("[TOOL_CALLS]", "[ARGS]"),
        id_length=9,
    ),
}


def tool_format_of(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; None if it takes no tools, or in a way of its own.

    Args:
        template: The template's text.
    """
    if not _USES_TOOLS.search(template):
        return None
    if "[TOOL_CALLS]" in template:
        if "[CALL_ID]" in template:
            return None
        return ToolFormat.MISTRAL_ARGS if "[ARGS]" in template else ToolFormat.MISTRAL
    if "<tool_call>" in template:
        own = "<function=" in template or "<arg_key>" in template
        return None if own else ToolFormat.HERMES
    if '"parameters"' in template and ("ipython" in template or "<|python_tag|>" in template):
        return ToolFormat.LLAMA
    return None
