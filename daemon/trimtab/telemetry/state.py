"""Small files that must survive a power cut: written whole or not at all, with a version."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from trimtab.errors import StateError

T = TypeVar("T")

Migration: TypeAlias = Callable[[Any], Any]
"""Turns the data of one version into that of the next."""


class _Envelope(msgspec.Struct, frozen=True):
    version: int
    data: msgspec.Raw


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file so that a reader, or a boot after a power cut, sees the old or the new one.

    Args:
        path: Its folder must exist.
        content: All of it.
        mode: Permissions of the new file.

    Raises:
        StateError: The folder can't be written, or the disk is full; the old file is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StateError(
            f"{path}: can't be written: {error.strerror}",
            hint=f"Check owner, permissions and free space of {path.parent}.",
        ) from error


def write_state(path: Path, value: object, version: int) -> None:
    """Write a value with the version of its shape.

    Raises:
        StateError: It can't be written.
    """
    encoded = msgspec.json.encode({"version": version, "data": value})
    write_atomically(path, msgspec.json.format(encoded, indent=1) + b"\n")


def read_state(
    path: Path, type_: type[T], version: int, migrations: Mapping[int, Migration] | None = None
) -> T | None:
    """Read what `write_state` wrote, bringing older versions up to date.

    Args:
        path: The file.
        type_: What the data is.
        version: The version that this program writes.
        migrations: By version: how its data becomes that of the next.

    Returns:
        The value; None if there is no such file.

    Raises:
        StateError: The file is damaged, or was written by a newer trimtab.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path}: can't be read: {error.strerror}") from error
    hint = f"Move {path} away; trimtab starts without it."
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
        if envelope.version > version:
            raise StateError(
                f"{path}: has version {envelope.version}, this trimtab knows up to {version}",
                hint=hint,
            )
        data = msgspec.json.decode(envelope.data)
        for step in range(envelope.version, version):
            data = (migrations or {})[step](data)
        return msgspec.convert(data, type_)
    except (msgspec.MsgspecError, LookupError, TypeError, UnicodeDecodeError) as error:
        raise StateError(f"{path}: is damaged: {error}", hint=hint) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
