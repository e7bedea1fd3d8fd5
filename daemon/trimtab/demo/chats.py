"""The audience: clients that chat over the real socket for as long as the demo lasts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any, Final

import httpx
import msgspec

from trimtab.demo.stage import Chat, ChatState, Stage, Timeline

SEATS: Final = 3
RETRY_S: Final = 0.5

# What is asked, and how long the answer may be. Several languages and scripts, so that characters
# of several bytes cross the seams too.
PROMPTS: Final[tuple[tuple[str, int], ...]] = (
    ("Explain to a child why the sky is blue.", 200),
    ("Écris une courte histoire sur un café à Montréal où l'été ne finit jamais.", 160),
    (
        "Write a packing list for three days of hiking in the rain, with a reason for each item.",
        220,
    ),
    ("What is a trim tab on a ship, and why does such a small part move the whole ship?", 180),
    ("Begrüße einen Gast höflich und erkläre ihm die größten Sehenswürdigkeiten Münchens.", 160),
    ("Give me a recipe for a vegetable soup, step by step.", 220),
    ("Repeat these lines, then continue them: naïve café, jalapeño, smörgåsbord, 東京, ☀️", 140),
    ("Write a Python function that finds the longest word in a text, and explain it.", 200),
    ("Tell me about the planets of the solar system, one paragraph each.", 240),
)


class Audience:
    """Several seats; each sends one chat after the other until the stage is closing.

    Args:
        client: On the daemon's inference socket.
        stage: Where chats are shown and counted.
        time: Seconds since the demo began.
    """

    def __init__(self, client: httpx.AsyncClient, stage: Stage, time: Timeline) -> None:
        self._client = client
        self._stage = stage
        self._time = time
        self._prompts: Iterator[tuple[str, int]] = itertools.cycle(PROMPTS)

    async def chat_until_closing(self) -> None:
        """Keep all seats busy; returns when each has finished its last chat."""
        async with asyncio.TaskGroup() as group:
            for _ in range(SEATS):
                group.create_task(self._seat())

    async def _seat(self) -> None:
        while not self._stage.closing:
            prompt, max_tokens = next(self._prompts)
            chat = Chat(len(self._stage.chats) + 1, prompt, max_tokens, started_s=self._time.now())
            self._stage.chats.append(chat)
            await self.run(chat)
            if chat.state is ChatState.BROKEN:
                await asyncio.sleep(RETRY_S)  # a daemon that is gone isn't asked in a tight loop

    async def run(self, chat: Chat) -> None:
        """Send a chat and follow its stream to the end; what breaks it is written into it."""
        body = {
            "model": self._stage.plan.model,
            "messages": [{"role": "user", "content": chat.prompt}],
            "max_tokens": chat.max_tokens,
            "temperature": 0.6,
            "top_p": 0.9,
            "repetition_penalty": 1.1,
            "seed": chat.number,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reader = StreamReader(chat)
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.is_error:
                    text = (await answer.aread()).decode(errors="replace")
                    chat.problem = f"refused with {answer.status_code}: {text[:200]}"
                else:
                    await self._follow(reader, answer)
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            chat.problem = f"the connection broke: {error!r}"
        chat.problem = chat.problem or reader.what_is_missing()
        chat.state = ChatState.BROKEN if chat.problem else ChatState.DONE
        chat.ended_s = self._time.now()

    async def _follow(self, reader: StreamReader, answer: httpx.Response) -> None:
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and reader.take(line.removeprefix("data: ")):
                self._stage.token_came(self._time.now())


class StreamReader:
    """Reads the events of one streamed answer into a chat.

    Args:
        chat: Is filled.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._reason = ""
        self._usage: int | None = None
        self._done = False

    def take(self, data: str) -> bool:
        """Take in one event; True if it brought text."""
        chat = self._chat
        if self._done:
            chat.problem = "something came after the end of the stream"
            return False
        if data == "[DONE]":
            self._done = True
            return False
        event = msgspec.json.decode(data)
        if "error" in event:
            chat.problem = str(event["error"].get("message", "error"))
            return False
        if event.get("usage"):
            self._usage = int(event["usage"]["completion_tokens"])
        if event.get("trimtab"):
            chat.variants = tuple(event["trimtab"]["variants"])
        brought = [self._choice(choice) for choice in event.get("choices", ())]
        return any(brought)

    def what_is_missing(self) -> str:
        """What keeps the answer from being whole; empty if it is whole."""
        chat = self._chat
        if not self._done:
            return "the stream ended without its terminal event"
        if self._usage is None:
            return "the daemon didn't say how many tokens there were"
        chat.tokens = self._usage
        if self._reason == "length" and self._usage != chat.max_tokens:
            return f"{self._usage} tokens came instead of {chat.max_tokens}"
        if self._reason not in ("length", "stop"):
            return f"it ended for no good reason ({self._reason or 'none was given'})"
        return ""

    def _choice(self, choice: dict[str, Any]) -> bool:
        self._reason = choice.get("finish_reason") or self._reason
        text = choice.get("delta", {}).get("content") or ""
        if text:
            self._chat.state = ChatState.RUNNING
            self._chat.text += text
            self._chat.tokens += 1
        return bool(text)
