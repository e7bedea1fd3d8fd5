"""From schemas that clients send to what the engine is told, within limits.

A schema is compiled on the engine's own thread, so what would keep that busy is refused here: the
limits leave the largest that passes at about a tenth of a second.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any, Final

import msgspec

from trimtab.api.bodies import parts, plain_json, refuse
from trimtab.workers.protocol import Tool

SCHEMA_BYTES_MAX: Final = 64 * 1024
SCHEMA_NODES_MAX: Final = 4000
SCHEMA_PROPERTIES_MAX: Final = 500
PATTERN_CHARACTERS_MAX: Final = 1024
MULTIPLE_MAX: Final = 10_000
TOOLS_MAX: Final = 128
ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Schemas:
    """Takes the schemas of one request; the limits hold for all of them together."""

    def __init__(self) -> None:
        self._bytes = 0
        self._nodes = 0
        self._properties = 0
        self._multiple = 1

    def text(self, param: str, schema: dict[str, Any]) -> str:
        """A schema as JSON text.

        Raises:
            RequestError: It is too large or too deep; ``param`` names it.
        """
        plain_json(param, schema)
        level: list[Any] = [schema]
        while level:
            for node in level:
                self._count(param, node)
            level = [part for node in level for part in parts(node)]
        return self._written(param, schema)

    def tool(
        self, param: str, name: str, parameters: dict[str, Any] | None, *, strict: bool
    ) -> Tool:
        """A tool that may be called.

        Raises:
            RequestError: Its name or its schema can't be taken.
        """
        if not _NAME.fullmatch(name):
            raise refuse(
                f"{param}.name",
                "A tool's name has 1 to 64 letters, digits, underscores, dots and dashes.",
            )
        field = f"{param}.parameters"
        schema = ANY_OBJECT | (parameters or {})
        if schema["type"] != "object":
            raise refuse(f"{field}.type", "A tool's arguments are an object.")
        return Tool(name, self.text(field, schema), strict, field)

    def _count(self, param: str, node: Any) -> None:
        self._nodes += 1
        if self._nodes > SCHEMA_NODES_MAX:
            raise refuse(param, f"The schema has more than {SCHEMA_NODES_MAX} values.")
        if not isinstance(node, dict):
            return
        properties = node.get("properties")
        self._properties += len(properties) if isinstance(properties, dict) else 0
        if self._properties > SCHEMA_PROPERTIES_MAX:
            raise refuse(param, f"There are more than {SCHEMA_PROPERTIES_MAX} properties.")
        pattern = node.get("pattern")
        if isinstance(pattern, str) and len(pattern) > PATTERN_CHARACTERS_MAX:
            raise refuse(param, f"A 'pattern' has over {PATTERN_CHARACTERS_MAX} characters.")
        self._count_multiple(param, node.get("multipleOf"))

    def _count_multiple(self, param: str, multiple: Any) -> None:
        """The engine's automaton for remainders has as many states as their common multiple."""
        if isinstance(multiple, int | float) and multiple > 0:
            self._multiple = math.lcm(self._multiple, Fraction(str(multiple)).numerator)
            if self._multiple > MULTIPLE_MAX:
                raise refuse(
                    param,
                    "The least common multiple of all 'multipleOf' (without decimal points) is "
                    f"above {MULTIPLE_MAX}.",
                )

    def _written(self, param: str, schema: dict[str, Any]) -> str:
        text = msgspec.json.encode(schema)
        self._bytes += len(text)
        if self._bytes > SCHEMA_BYTES_MAX:
            raise refuse(param, f"The schema has more than {SCHEMA_BYTES_MAX} bytes.")
        return text.decode()
