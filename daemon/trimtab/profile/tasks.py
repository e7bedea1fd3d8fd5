"""What quality is measured over: a text, or the user's own prompts with expected answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from trimtab.catalog.proof import evaluation_text
from trimtab.errors import UsageError

MAX_BYTES: Final = 4 * 1024 * 1024
TEXT: Final = "text"
_FIELDS: Final = ("task", "prompt", "expected")
_FENCE: Final = re.compile(r"```[\w+-]*\n(.*?)\n?```", re.DOTALL)
_EXAMPLE: Final = '{"task": "code", "prompt": "…", "expected": "…"}'


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt whose answer is known.

    Attributes:
        task: The user's name for what it is about.
        prompt: What is asked.
        expected: The answers that count as right; the first is the one that is scored.
    """

    task: str
    prompt: str
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tasks:
    """What all variants are measured over.

    Attributes:
        text: A text; empty if there are questions instead.
        questions: In the file's order.
    """

    text: str
    questions: tuple[Question, ...] = ()


def read_tasks(text: Path | None, prompts: Path | None) -> Tasks:
    """The user's text or prompts, else the text that ships with trimtab.

    Raises:
        UsageError: A file can't be read, or holds something else.
    """
    questions = parse_questions(_read(prompts), str(prompts)) if prompts is not None else ()
    if text is not None:
        content = _read(text)
        if not content.strip():
            raise UsageError(f"{text} is empty", hint="Give a text of a few pages.")
        return Tasks(content, questions)
    return Tasks("" if questions else _read(evaluation_text()), questions)


def parse_questions(content: str, where: str) -> tuple[Question, ...]:
    """JSON lines with a task, a prompt and the expected answer (or a list of good ones).

    Raises:
        UsageError: A line isn't one; it names file, line and field.
    """
    found = []
    for number, text in enumerate(content.splitlines(), start=1):
        if text.strip():
            found.append(_question(text, f"{where}:{number}"))
    if not found:
        raise UsageError(f"{where} has no prompts", hint=f"One JSON object a line: {_EXAMPLE}")
    return tuple(found)


def normalised(text: str) -> str:
    """An answer without white space around it, differences of white space in it, or a code fence.

    White space at a line's beginning counts, since it means something in code.
    """
    text = text.strip()
    fenced = _FENCE.fullmatch(text)
    lines = (fenced.group(1) if fenced else text).splitlines()
    return "\n".join(_squeezed(line) for line in lines if line.strip())


def _squeezed(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return indent + " ".join(line.split())


def _question(text: str, where: str) -> Question:
    try:
        fields: Any = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{where}: this is no JSON: {error}", hint=f"Such as {_EXAMPLE}"
        ) from error
    if not isinstance(fields, dict):
        raise UsageError(f"{where}: this is no JSON object", hint=f"Such as {_EXAMPLE}")
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise UsageError(f"{where}: {unknown[0]}: unknown field", hint=f"{', '.join(_FIELDS)}")
    expected = fields.get("expected")
    answers: list[Any] = expected if isinstance(expected, list) else [expected]
    for name, values in (("prompt", [fields.get("prompt")]), ("expected", answers)):
        if not values or not all(isinstance(value, str) and value.strip() for value in values):
            raise UsageError(f"{where}: {name}: must be a text that isn't empty")
    task = fields.get("task", TEXT)
    if not isinstance(task, str) or not task.strip():
        raise UsageError(f"{where}: task: must be a name")
    return Question(task.strip(), fields["prompt"], tuple(answers))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES // 2**20} MiB; a few pages are enough")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from error
