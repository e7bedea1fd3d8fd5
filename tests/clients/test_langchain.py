"""LangChain's ChatOpenAI, with the transport that docs/api.md shows, and over TCP as it is."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from conftest import Door

STORY = "Tell me a story."


class Order(BaseModel):
    """An order."""

    kind: Literal["buy", "sell"]
    pieces: int = Field(ge=1, le=99)
    note: str = Field(max_length=12)


@tool
def weather(city: Literal["Paris", "Oslo"], days: int) -> str:
    """The weather of a city."""
    return f"{city}: sunny for {days} days"


@pytest.fixture
def model(door: Door) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=door.base_url,
        api_key=door.api_key,
        model="tiny",
        temperature=0.5,
        seed=1,
        max_tokens=400,
        max_retries=0,
        **door.clients(),
    )


def test_it_chats(model: ChatOpenAI) -> None:
    answer = model.invoke(STORY)

    assert answer.content
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_a_stream_is_the_whole_answer_in_pieces(model: ChatOpenAI) -> None:
    pieces = [chunk.content for chunk in model.stream(STORY)]

    assert len(pieces) > 10
    assert "".join(pieces) == model.invoke(STORY).content


def test_its_asynchronous_side_answers_the_same(model: ChatOpenAI) -> None:
    answer = asyncio.run(model.ainvoke(STORY))

    assert answer.content == model.invoke(STORY).content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_answer_becomes_a_class(model: ChatOpenAI, method: str) -> None:
    order = model.with_structured_output(Order, method=method).invoke(STORY)

    assert isinstance(order, Order)


def test_json_mode(model: ChatOpenAI) -> None:
    answer = model.bind(response_format={"type": "json_object"}).invoke(STORY)

    assert answer.content.startswith("{")


def test_a_tool_is_called_and_answered_for(model: ChatOpenAI) -> None:
    asked = model.bind_tools([weather], tool_choice="any", parallel_tool_calls=False).invoke(STORY)
    assert isinstance(asked, AIMessage)
    call = asked.tool_calls[0]
    said = weather.invoke(call)
    history = [HumanMessage(STORY), asked, said]
    answered = model.bind_tools([weather], tool_choice="none").invoke(history)

    assert call["name"] == "weather"
    assert call["args"]["city"] in ("Paris", "Oslo")
    assert isinstance(said, ToolMessage)
    assert answered.content
    assert answered.tool_calls == []


def test_a_streamed_call_is_put_together(model: ChatOpenAI) -> None:
    chunks = list(model.bind_tools([weather], tool_choice="weather").stream(STORY))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk

    assert len(chunks) > 5
    assert [call["name"] for call in whole.tool_calls] == ["weather"]
    assert isinstance(whole.tool_calls[0]["args"]["days"], int)
