"""Reading request bodies: bounded, decoded into structs, and every fault names its field."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from trimtab.errors import RequestError

T = TypeVar("T")

MAX_DEPTH: Final = 64
MOST_TOKENS: Final = 2**31
"""The most that a request can ask for; it gets what the context leaves anyway."""

_AT: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body.

    Raises:
        RequestError: It is larger than the limit (413).
        ClientDisconnect: The client went away.
    """
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > limit_bytes:
        raise _too_large(limit_bytes)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
    return bytes(body)


def decode(body: bytes, type_: type[T]) -> T:
    """The body as a value of that type.

    Raises:
        RequestError: It isn't JSON, or a field is unknown, missing or of the wrong kind.
    """
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        raise explained(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        told = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(
            f"The body isn't valid JSON: {told}", code="invalid_json", hint="Send a JSON object."
        ) from error


def explained(message: str) -> RequestError:
    """A message of msgspec's as an error that names the field as the client wrote it."""
    place = _AT.search(message)
    path = place["path"] if place else ""
    text = message[: place.start()] if place else message
    for pattern, code, told in (
        (_UNKNOWN, "unknown_parameter", "There is no parameter {}"),
        (_MISSING, "missing_required_parameter", "The parameter {} is missing"),
    ):
        found = pattern.match(text)
        if found:
            param = f"{path}.{found['name']}" if path else found["name"]
            return RequestError(f"{told.format(repr(param))}.", param=param, code=code)
    return RequestError(
        f"{text.replace('`', '')}{f' in {path!r}' if path else ''}.",
        param=path,
        code="invalid_value",
    )


def refuse(param: str, message: str, code: str = "invalid_value") -> RequestError:
    """A field has a value that can't be taken."""
    return RequestError(message, param=param, code=code)


def in_range(param: str, value: float | None, low: float, high: float) -> None:
    """Check a number that may be left out.

    Raises:
        RequestError: It lies outside.
    """
    if value is not None and not low <= value <= high:
        raise refuse(param, f"{param!r} is {value:g}; it lies between {low:g} and {high:g}.")


def unsupported(param: str, value: Any, allowed: tuple[Any, ...], told: str) -> None:
    """Check a field that is known but does only one thing here.

    Raises:
        RequestError: It asks for something else.
    """
    if value is not msgspec.UNSET and value not in allowed:
        raise refuse(param, told, code="unsupported_parameter")


def plain_json(param: str, value: Any) -> None:
    """Check JSON of the client's own shape, which goes to the worker as it is.

    Raises:
        RequestError: It is nested too deeply, or a number is beyond 64 bits.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(_is_beyond_64_bits(one) for one in level):
            raise refuse(param, f"A number in {param!r} is beyond 64 bits.")
        level = [part for one in level for part in parts(one)]
        if not level:
            return
    raise refuse(param, f"{param!r} is nested more than {MAX_DEPTH} deep.")


def _is_beyond_64_bits(value: Any) -> bool:
    return type(value) is int and not -(2**63) <= value < 2**63


def parts(value: Any) -> list[Any]:
    """The values within a JSON object or array; none in anything else."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(
        f"The body has more than {limit_bytes} bytes.", status=413, code="body_too_large"
    )
