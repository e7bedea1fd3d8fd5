"""JSON, schemas and tools as clients ask for them: what reaches the engine, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api_fakes import Gateway
from trimtab.workers.protocol import Guide, Tool

CHAT = "/v1/chat/completions"
SCHEMA: Any = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": SCHEMA},
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields


def with_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema} | more}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def a_tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | function}


async def guide_of(gateway: Gateway, **fields: Any) -> Guide | None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(**fields))
    assert answer.status_code == 200, answer.text
    return gateway.inference.requests[-1].guide


async def test_free_text_has_no_guide(gateway: Gateway) -> None:
    assert await guide_of(gateway) is None
    assert await guide_of(gateway, response_format={"type": "text"}, tool_choice="auto") is None
    assert await guide_of(gateway, tools=[WEATHER], tool_choice="none") is None


async def test_json_mode_is_any_object(gateway: Gateway) -> None:
    guide = await guide_of(gateway, response_format={"type": "json_object"})

    assert guide == Guide(schema='{"type":"object"}', field="response_format")


async def test_a_schema_reaches_the_engine_with_its_properties_in_order(gateway: Gateway) -> None:
    guide = await guide_of(gateway, response_format=with_schema(SCHEMA, strict=True))

    assert guide is not None
    assert guide.field == "response_format.json_schema.schema"
    assert list(json.loads(guide.schema)["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("choice", "names", "least", "most"),
    [
        ("auto", ["weather", "clock"], 0, 16),
        (None, ["weather", "clock"], 0, 16),
        ("required", ["weather", "clock"], 1, 16),
        ({"type": "function", "function": {"name": "clock"}}, ["clock"], 1, 1),
    ],
)
async def test_the_choice_says_which_tools_may_or_must_be_called(
    gateway: Gateway, choice: Any, names: list[str], least: int, most: int
) -> None:
    guide = await guide_of(gateway, tools=[WEATHER, CLOCK], tool_choice=choice)

    assert guide is not None
    assert [tool.name for tool in guide.tools] == names
    assert (guide.calls_least, guide.calls_most) == (least, most)


async def test_without_parallel_calls_there_is_one_at_most(gateway: Gateway) -> None:
    guide = await guide_of(gateway, tools=[WEATHER], parallel_tool_calls=False)

    assert guide is not None
    assert guide.calls_most == 1


async def test_the_template_sees_every_tool_in_one_shape(gateway: Gateway) -> None:
    await guide_of(gateway, tools=[CLOCK])
    request = gateway.inference.requests[0]

    parameters = {"type": "object", "properties": {}}
    function = {"name": "clock", "description": "", "parameters": parameters}
    assert request.tools == [{"type": "function", "function": function}]
    assert request.guide is not None
    tool = Tool("clock", '{"type":"object"}', False, "tools[0].function.parameters")
    assert request.guide.tools == (tool,)


async def test_the_template_sees_arguments_of_earlier_calls_as_values(gateway: Gateway) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    await guide_of(gateway, messages=messages)

    shown = gateway.inference.requests[0].messages
    assert shown is not None
    assert shown[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": [1]}}
    assert shown[2] == {"role": "tool", "content": "42", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": with_schema([1])}, "response_format.json_schema.schema"),
        ({"response_format": with_schema(nested(70))}, "response_format.json_schema.schema"),
        (
            {"response_format": with_schema({"enum": ["x" * 70_000]})},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": with_schema({"enum": list(range(5000))})},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": with_schema({"properties": {f"p{n}": {} for n in range(501)}})},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": with_schema({"type": "string", "pattern": "a" * 1025})},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": with_schema({"multipleOf": 10**400})},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": with_schema({"multipleOf": 9999991})},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": with_schema({"allOf": [{"multipleOf": n} for n in (101, 103)]})},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            "tool_choice.function.name",
        ),
        ({"tools": [a_tool(name="no good")]}, "tools[0].function.name"),
        ({"tools": [a_tool(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
        ({"tools": [a_tool(parameters={"const": 2**70})]}, "tools"),
        ({"tools": [a_tool(parameters={"properties": {"a": nested(70)}})]}, "tools"),
        ({"tools": [CLOCK, CLOCK]}, "tools"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
async def test_what_cant_be_taken_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    async with gateway.client() as client:
        answer = await client.post(CHAT, json=body(**fields))

    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert not gateway.inference.requests
