"""Kinds of fields that the policy language is made of: quantities, names, parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from trimtab.domain.readings import Unit
from trimtab.policy.units import QuantityError, parse_quantity

MIN_PACE_RATIO: Final = 0.1
MIN_CONTEXT: Final = 64
MAX_CONTEXT: Final = 2**20
MAX_THREADS: Final = 256


def quantity(unit: Unit) -> Callable[[object], float]:
    """A validator that reads one kind of quantity."""

    def parse(found: object) -> float:
        try:
            return parse_quantity(found, unit)
        except QuantityError as error:
            context = {"suggestion": error.suggestion, "text": error.message}
            raise PydanticCustomError("quantity", "{text}", context) from error

    return parse


def text_schema(kind: str, example: str, *, number: bool = False) -> WithJsonSchema:
    """What an editor is told about a quantity."""
    types = ["string", "number"] if number else ["string", "integer"]
    return WithJsonSchema({"type": types, "format": kind, "examples": [example]})


Duration = Annotated[float, BeforeValidator(quantity(Unit.SECONDS)), text_schema("time", "30s")]
Size = Annotated[float, BeforeValidator(quantity(Unit.BYTES)), text_schema("size", "512MiB")]
Celsius = Annotated[
    float, BeforeValidator(quantity(Unit.CELSIUS)), text_schema("temperature", "80C")
]
Ratio = Annotated[
    float,
    BeforeValidator(quantity(Unit.RATIO)),
    text_schema("share", "25%", number=True),
]
Pace = Annotated[Ratio, Field(ge=MIN_PACE_RATIO, le=1)]
Tokens = Annotated[int, Field(ge=MIN_CONTEXT, le=MAX_CONTEXT)]
Threads = Annotated[int, Field(ge=1, le=MAX_THREADS)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$")]
VariantName = Annotated[str, Field(min_length=1, max_length=100)]
Speculation = Annotated[str, Field(pattern=r"^(off|ngram|draft:.{1,100})$")]
Placement = Literal["memory", "disk", "disk_all"]
CornerName = Literal["latency", "memory", "accuracy"]


def _one_value(found: object) -> object:
    """A threshold is one value; what it means depends on the signal, so it is read later."""
    if isinstance(found, (str, int, float)):
        return found
    text = "found a list or mapping; a threshold is one value, such as 512MiB, 80C or 10%"
    raise PydanticCustomError("quantity", "{text}", {"suggestion": "", "text": text})


Threshold = Annotated[
    str | int | float | bool,
    PlainValidator(_one_value),
    WithJsonSchema(
        {
            "type": ["string", "number", "boolean"],
            "format": "value of the signal",
            "examples": ["512MiB", "80C", "10%"],
        }
    ),
]
ClockTime = Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


class Part(BaseModel):
    """A mapping with a closed set of fields."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_default=True
    )


def written(default: object, *, description: str) -> Any:
    """A field whose default is written as in a file (`60s`, `{}`) and validated like one."""
    return Field(default, description=description)
