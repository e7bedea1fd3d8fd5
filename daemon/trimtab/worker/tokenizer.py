"""Requests to token ids, with the variant's own tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import onnxruntime_genai as og

from trimtab.errors import EngineError, LoadError
from trimtab.worker.continuation import keep_ids
from trimtab.worker.variant import VariantFacts
from trimtab.worker.vocabulary import Vocabulary, parse_vocabulary
from trimtab.workers.protocol import Render

_TOKENIZER_NAME: Final = "tokenizer.json"


class Tokenizer:
    """The variant's tokenizer.

    The vocabulary, which turns tokens into text, is there at once. What turns text into tokens
    takes the engine a tenth of a second for 49,000 tokens, and streams that go on from their
    tokens don't need it: it is made by `ready`, or when it is first used.

    Args:
        facts: The variant.

    Raises:
        LoadError: The tokenizer's files are missing or damaged.
    """

    def __init__(self, facts: VariantFacts) -> None:
        self._path = facts.folder / _TOKENIZER_NAME
        self.vocabulary = _read_vocabulary(self._path)
        self._facts = facts
        self._made: og.Tokenizer | None = None

    def ready(self) -> og.Tokenizer:
        """The engine's tokenizer, made now if it hasn't been.

        Raises:
            LoadError: The engine refuses it.
        """
        if self._made is None:
            try:
                self._made = og.Tokenizer(str(self._facts.folder))
            except Exception as error:  # the engine raises several kinds, none of them documented
                raise LoadError(
                    f"{self._path}: the engine refuses the tokenizer: {error}",
                    code="model_damaged",
                ) from error
        return self._made

    def render(self, request: Render) -> list[int]:
        """The token ids of a request.

        Raises:
            EngineError: The template or the tokenizer refuses it; the fault is the request's.
            LoadError: There is no tokenizer to be had; the fault is the variant's.
        """
        self.ready()
        if request.messages is None:
            tokens = self._encode(request.text or "")
        else:
            tokens = self._encode(self._apply_template(request))
            bos = self._facts.bos
            if bos is not None and tokens[:2] == [bos, bos]:
                del tokens[0]  # the template wrote it, and the tokenizer once more
            tokens = keep_ids(tokens, request.known, self.vocabulary, self._encode_within)
        if not tokens:
            raise EngineError("the prompt is empty", code="prompt_empty")
        if min(tokens) < 0 or max(tokens) >= self._facts.vocabulary:  # -1: no token for a byte
            raise EngineError(
                "the prompt has a token that the model doesn't know", code="token_unknown"
            )
        return tokens

    def _apply_template(self, request: Render) -> str:
        tools = {"tools": json.dumps(request.tools)} if request.tools else {}
        messages = [_plain(n, message) for n, message in enumerate(request.messages or ())]
        if not messages:
            raise EngineError("messages: there are none", code="prompt_empty")
        try:
            text = self.ready().apply_chat_template(
                json.dumps(messages), add_generation_prompt=True, **tools
            )
        except Exception as error:  # whatever the template or the engine's parser raises
            raise EngineError(
                f"the chat template refuses the messages: {error}", code="template_refused"
            ) from error
        return str(text)

    def _encode_within(self, text: str) -> list[int]:
        """Token ids of a text that stands behind another one."""
        tokens = self._encode(text)
        return tokens[1:] if tokens and tokens[0] == self._facts.bos else tokens

    def _encode(self, text: str) -> list[int]:
        _refuse_nul(text, "the prompt")
        try:
            return [int(token) for token in self.ready().encode(text)]
        except Exception as error:  # the engine raises several kinds, none of them documented
            raise EngineError(
                f"the tokenizer refuses the text: {error}", code="tokenizer_refused"
            ) from error


def _plain(number: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: they'd print whatever else there is, or ``None``.

    Raises:
        EngineError: It has no role, or content that isn't text.
    """
    where = f"messages[{number}]"
    if not isinstance(message.get("role"), str):
        raise EngineError(f"{where}.role: it must be a string", code="template_refused")
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        content = "".join(texts) if len(texts) == len(parts) else parts
    if content is None:
        content = ""
    if not isinstance(content, str):
        raise EngineError(f"{where}.content: only text is supported", code="template_refused")
    _refuse_nul(content, f"{where}.content")
    return message | {"content": content}


def _refuse_nul(text: str, where: str) -> None:
    """The engine takes it for the end of a text, and cuts off the rest."""
    if "\0" in text:
        raise EngineError(f"{where}: there is a NUL character in it", code="token_unknown")


def _read_vocabulary(path: Path) -> Vocabulary:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadError(
            f"{path}: {error.strerror}",
            hint="`trimtab models verify` says which files differ from what was built",
            code="model_damaged",
        ) from error
    return parse_vocabulary(data, str(path))
