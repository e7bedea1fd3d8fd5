"""LlamaIndex's OpenAILike, with the transport that docs/api.md shows, and over TCP as it is."""

from __future__ import annotations

from typing import Literal

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

from conftest import Door

STORY = "Tell me a story."


class Order(BaseModel):
    """An order."""

    kind: Literal["buy", "sell"]
    pieces: int = Field(ge=1, le=99)
    note: str = Field(max_length=12)


class Where(BaseModel):
    """Arguments of `weather`."""

    city: Literal["Paris", "Oslo"]
    days: int


def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city}: sunny for {days} days"


@pytest.fixture
def llm(door: Door) -> OpenAILike:
    clients = door.clients()
    return OpenAILike(
        api_base=door.base_url,
        api_key=door.api_key,
        model="tiny",
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        temperature=0.5,
        max_tokens=400,
        max_retries=0,
        additional_kwargs={"seed": 1},
        http_client=clients.get("http_client"),
        async_http_client=clients.get("http_async_client"),
    )


def test_it_chats(llm: OpenAILike) -> None:
    answer = llm.chat([ChatMessage(role="user", content=STORY)])

    assert answer.message.content


def test_a_stream_is_the_whole_answer_in_pieces(llm: OpenAILike) -> None:
    pieces = [one.delta or "" for one in llm.stream_chat([ChatMessage(role="user", content=STORY)])]

    assert len(pieces) > 10
    assert "".join(pieces) == llm.chat([ChatMessage(role="user", content=STORY)]).message.content


def test_it_completes(llm: OpenAILike) -> None:
    assert llm.complete(STORY).text


def test_an_answer_becomes_a_class(llm: OpenAILike) -> None:
    order = llm.as_structured_llm(Order).chat([ChatMessage(role="user", content=STORY)]).raw

    assert isinstance(order, Order)


def test_a_tool_is_called(llm: OpenAILike) -> None:
    tool = FunctionTool.from_defaults(weather, fn_schema=Where)
    answer = llm.chat_with_tools([tool], user_msg=STORY, tool_required=True)
    calls = llm.get_tool_calls_from_response(answer)

    assert {call.tool_name for call in calls} == {"weather"}
    assert calls[0].tool_kwargs["city"] in ("Paris", "Oslo")
