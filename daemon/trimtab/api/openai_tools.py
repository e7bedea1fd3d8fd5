"""OpenAI's ``response_format`` and ``tools``, and what the engine is told of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from trimtab.api.bodies import plain_json, refuse
from trimtab.api.guide_bodies import ANY_OBJECT, TOOLS_MAX, Schemas
from trimtab.workers.protocol import Guide, Tool

CALLS_MOST: Final = 16  # a model that can't find an end would go on until its context is full
_FORMAT_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema with a name. ``strict`` changes nothing: the answer always follows the schema."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: JsonSchema


ResponseFormat: TypeAlias = TextFormat | JsonObjectFormat | JsonSchemaFormat


class FunctionDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool: a function."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of one of the functions."""

    name: str


class NamedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one tool that is to be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedChoice


class CalledFunction(msgspec.Struct, frozen=True):
    """A function with its arguments, JSON text."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct, frozen=True):
    """A call that an earlier answer made."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True)
class WantedSchema:
    """A schema that an answer is to follow, and the field in which the client has it."""

    field: str
    schema: dict[str, Any]


def tools_for_template(tools: list[ToolDefinition]) -> list[dict[str, Any]]:
    """Tools as chat templates show them to the model.

    Raises:
        RequestError: A number in one of them is beyond 64 bits.
    """
    shown = [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or ANY_OBJECT | {"properties": {}},
            },
        }
        for tool in tools
    ]
    plain_json("tools", shown)
    return shown


def calls_for_template(param: str, calls: list[ToolCall]) -> list[dict[str, Any]]:
    """Earlier calls as chat templates write them: their arguments are values, not text.

    Raises:
        RequestError: Arguments aren't a JSON object.
    """
    shown = []
    for number, call in enumerate(calls):
        where = f"{param}[{number}].function.arguments"
        try:
            arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise refuse(where, f"{where!r} isn't a JSON object: {error}.") from error
        plain_json(where, arguments)
        function = {"name": call.function.name, "arguments": arguments}
        shown.append({"id": call.id or "", "type": call.type, "function": function})
    return shown


def guide_of(
    wanted: WantedSchema | None,
    tools: list[ToolDefinition] | None,
    choice: ToolChoice | None,
    *,
    parallel: bool,
) -> Guide | None:
    """What the answer must look like; None for free text.

    Args:
        wanted: Of what isn't a call.
        tools: What may be called.
        choice: Whether it must be.
        parallel: Whether there may be several calls.

    Raises:
        RequestError: A schema, a name or the choice can't be taken.
    """
    schemas = Schemas()
    field = wanted.field if wanted else ""
    schema = schemas.text(field, wanted.schema) if wanted else ""
    if choice == "none" or not tools:
        _check_choice(choice, tools or [])
        return Guide(schema=schema, field=field) if schema else None
    _check_choice(choice, tools)
    named = choice.function.name if isinstance(choice, NamedChoice) else None
    return Guide(
        schema=schema,
        field=field,
        tools=_callable(tools, named, schemas),
        calls_least=int(choice == "required" or named is not None),
        calls_most=CALLS_MOST if parallel and named is None else 1,
    )


def wanted_schema(response_format: ResponseFormat | None) -> WantedSchema | None:
    """The schema that an answer is to follow; None for free text.

    Raises:
        RequestError: Its name can't be taken.
    """
    match response_format:
        case JsonObjectFormat():
            return WantedSchema("response_format", ANY_OBJECT)
        case JsonSchemaFormat(told):
            if not _FORMAT_NAME.fullmatch(told.name):
                raise refuse(
                    "response_format.json_schema.name",
                    "A schema's name has 1 to 64 letters, digits, underscores and dashes.",
                )
            field = "response_format.json_schema.schema"
            return WantedSchema(field, told.schema or ANY_OBJECT)
        case _:
            return None


def _callable(tools: list[ToolDefinition], named: str | None, schemas: Schemas) -> tuple[Tool, ...]:
    if len(tools) > TOOLS_MAX:
        raise refuse("tools", f"'tools' has {len(tools)} entries; at most {TOOLS_MAX} are taken.")
    taken = [
        schemas.tool(
            f"tools[{number}].function",
            tool.function.name,
            tool.function.parameters,
            strict=bool(tool.function.strict),
        )
        for number, tool in enumerate(tools)
    ]
    if len({tool.name for tool in taken}) < len(taken):
        raise refuse("tools", "Two tools have the same name.")
    return tuple(tool for tool in taken if named in (None, tool.name))


def _check_choice(choice: ToolChoice | None, tools: list[ToolDefinition]) -> None:
    if choice == "required" and not tools:
        raise refuse("tool_choice", "There are no 'tools' to choose from.")
    if isinstance(choice, NamedChoice):
        name = choice.function.name
        if name not in [tool.function.name for tool in tools]:
            raise refuse("tool_choice.function.name", f"There is no tool {name[:64]!r} in 'tools'.")
