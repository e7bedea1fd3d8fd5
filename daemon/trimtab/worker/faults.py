"""What went wrong with a stream, as the controller is told."""

from __future__ import annotations

from trimtab.errors import EngineError, TrimtabError


def told(error: Exception) -> tuple[str, str]:
    """The code of an error, and the error in words."""
    match error:
        case TrimtabError():
            return error.code, error.message
        case MemoryError():
            return "out_of_memory", "there is not enough memory for the stream"
        case _:
            return "internal", f"{type(error).__name__}: {error}"


def no_memory() -> EngineError:
    """The error of a stream for whose next token there is no memory."""
    return EngineError("there is no memory for its next token", code="out_of_memory")


def in_words(error: EngineError) -> str:
    """An error for people, with the way out if it has one."""
    return f"{error.message}; {error.hint}" if error.hint else error.message
