"""The beginning of a GGUF file: enough to say what is in it before anything is built."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from trimtab.errors import BuildError

MAGIC: Final = b"GGUF"
MAX_KEYS: Final = 4096
MAX_TENSORS: Final = 1 << 17
MAX_DIMENSIONS: Final = 8
MAX_STRING: Final = 1 << 24
# Type number in the file -> struct format of a fixed-size value.
FIXED: Final[dict[int, str]] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING: Final = 8
ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the weights.

    Attributes:
        values: The single values; of an array only its length, as ``NAME.count``.
        tensors: The names of the tensors; of a model in several files, only those of this one.
    """

    values: dict[str, str | int | float]
    tensors: frozenset[str]


def read_header(path: Path) -> Header:
    """The header of a GGUF.

    Raises:
        BuildError: It isn't a GGUF, or it was cut off.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path)
    except OSError as error:
        raise BuildError(f"{path}: {error.strerror}") from error
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise BuildError(f"{path}: the header is damaged or cut off") from error


def _read(file: BinaryIO, path: Path) -> Header:
    if file.read(4) != MAGIC:
        raise BuildError(f"{path} is not a GGUF file")
    version, tensors, keys = struct.unpack("<IQQ", file.read(20))
    if version not in (2, 3) or keys > MAX_KEYS or tensors > MAX_TENSORS:
        raise BuildError(
            f"{path}: GGUF version {version} with {keys} fields and {tensors} tensors "
            "isn't supported"
        )
    values: dict[str, str | int | float] = {}
    for _ in range(keys):
        key = _string(file)
        kind = struct.unpack("<I", file.read(4))[0]
        if kind == ARRAY:
            values[f"{key}.count"] = _skip_array(file)
        else:
            values[key] = _value(file, kind)
    return Header(values, frozenset(_tensor(file) for _ in range(tensors)))


def _tensor(file: BinaryIO) -> str:
    """The name of the tensor that is described next: its shape, type and place are passed over."""
    name = _string(file)
    (dimensions,) = struct.unpack("<I", file.read(4))
    if dimensions > MAX_DIMENSIONS:
        raise struct.error
    rest = 8 * dimensions + 12
    if len(file.read(rest)) != rest:
        raise struct.error
    return name


def _string(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > MAX_STRING:
        raise OverflowError
    data = file.read(length)
    if len(data) != length:
        raise struct.error
    return data.decode("utf-8")


def _value(file: BinaryIO, kind: int) -> str | int | float:
    """A single value."""
    if kind == STRING:
        return _string(file)
    if kind not in FIXED:
        raise struct.error
    value: int | float = struct.unpack(FIXED[kind], file.read(struct.calcsize(FIXED[kind])))[0]
    return value


def _skip_array(file: BinaryIO) -> int:
    """Pass over an array; returns how many elements it has."""
    element, count = struct.unpack("<IQ", file.read(12))
    if element == STRING:
        for _ in range(count):
            _string(file)
    elif element in FIXED:
        file.seek(struct.calcsize(FIXED[element]) * count, 1)
    else:
        raise struct.error
    return int(count)
