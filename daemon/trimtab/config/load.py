"""Read and merge the layers of the configuration, and say where each value came from."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from trimtab.config.fields import by_path, fields
from trimtab.config.origins import DEFAULT, Origin, OriginKind, flatten, lines_of
from trimtab.config.places import SYSTEM_CONFIG, Places, find_places
from trimtab.config.schema import Config
from trimtab.errors import ConfigError

MAX_FILE_BYTES: Final = 256 * 1024

# Variables with our prefix that are no keys of the configuration.
_OTHER_VARIABLES: Final = frozenset(
    {
        "TRIMTAB_CONFIG",
        "TRIMTAB_COMPLETE",
        "TRIMTAB_WORKERS_GROUP",  # the daemon's own, for its workers: `runtime.control_group`
    }
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and its history.

    Attributes:
        config: Validated values.
        origins: By dotted path: where the value came from.
        file: The file that was read; None if there is none.
        places: The default paths of this situation.
        warnings: What is odd but doesn't stop anything.
    """

    config: Config
    origins: Mapping[str, Origin]
    file: Path | None
    places: Places
    warnings: tuple[str, ...] = ()


class _Layers:
    """Values by dotted path, each with its origin; a later layer wins."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}

    def add(self, path: str, value: Any, origin: Origin, base: Path | None = None) -> None:
        self.values[path] = _resolved(path, value, base or self._base)
        self.origins[path] = origin

    def tree(self) -> dict[str, Any]:
        root: dict[str, Any] = {}
        for path, value in self.values.items():
            *sections, key = path.split(".")
            table = root
            for section in sections:
                below = table.setdefault(section, {})
                table = below if isinstance(below, dict) else {}
            table[key] = value
        return root


def load_config(
    file: Path | None = None,
    *,
    flags: Mapping[str, tuple[str, Any]] | None = None,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
    system_config: Path = SYSTEM_CONFIG,
) -> Loaded:
    """Read the configuration.

    Args:
        file: The file that the person named; it must be there then. TRIMTAB_CONFIG names one too.
        flags: By dotted path: the flag as it was typed, and its value.
        environ: The environment; our own by default.
        uid: Effective user id; our own by default.
        system_config: The system's configuration file.

    Raises:
        ConfigError: With every fault, each with its place and a suggestion.
    """
    environ = os.environ if environ is None else environ
    places = find_places(environ, os.geteuid() if uid is None else uid, system_config)
    named = file or (Path(environ["TRIMTAB_CONFIG"]) if environ.get("TRIMTAB_CONFIG") else None)
    layers = _Layers(Path.cwd())
    for path, value in flatten(places.as_tree()):
        layers.add(path, value, DEFAULT)
    source = _add_file(layers, named or places.config, required=named is not None)
    warnings = _add_environment(layers, environ)
    for path, (flag, value) in (flags or {}).items():
        layers.add(path, _split_list(path, value), Origin(OriginKind.FLAG, flag))
    _derive_sockets(layers)
    try:
        config = Config.model_validate(layers.tree())
    except ValidationError as error:
        raise _explained(error, layers.origins) from error
    for field in fields():
        layers.origins.setdefault(field.path, DEFAULT)
    return Loaded(config, layers.origins, source, places, warnings)


def _add_file(layers: _Layers, file: Path, *, required: bool) -> Path | None:
    try:
        text = _read(file)
    except FileNotFoundError as error:
        if required:
            raise ConfigError(
                f"{file}: there is no such configuration file",
                hint="`trimtab config show` prints what is in force without one.",
            ) from error
        return None
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{file}: {_with_line(str(error), text)}",
            hint="The file is TOML: key = value, with text in quotes.",
        ) from error
    lines = lines_of(text)
    for path, value in _leaves(tree).items():
        place = f"{file}:{lines[path]}" if path in lines else str(file)
        layers.add(path, value, Origin(OriginKind.FILE, place), file.absolute().parent)
    return file


def _with_line(message: str, text: str) -> str:
    """A message of tomllib's, which says "at end of document" where a line would help more."""
    return message.replace("at end of document", f"at line {text.count(chr(10)) + 1}, at the end")


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{file}: has more than {MAX_FILE_BYTES // 1024} KiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: isn't UTF-8 (byte {error.start})", hint="Save the file as UTF-8 text."
        ) from error


def _leaves(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by path; a table whose names are the user's own is one leaf."""
    tables = [field.path for field in fields() if field.is_table]
    leaves: dict[str, Any] = {}
    for path, value in flatten(tree):
        table = next((name for name in tables if path.startswith(f"{name}.")), None)
        if table:
            leaves[table] = _lookup(tree, table)
        else:
            leaves[path] = value
    return leaves


def _lookup(tree: Mapping[str, Any], path: str) -> Any:
    found: Any = tree
    for key in path.split("."):
        found = found[key]
    return found


def _add_environment(layers: _Layers, environ: Mapping[str, str]) -> tuple[str, ...]:
    variables = {field.variable: field.path for field in fields() if not field.is_table}
    warnings = []
    for name in sorted(name for name in environ if name.startswith("TRIMTAB_")):
        path = variables.get(name)
        if path and environ[name]:
            value = _split_list(path, environ[name])
            layers.add(path, value, Origin(OriginKind.ENVIRONMENT, name))
        elif not path and name not in _OTHER_VARIABLES:
            near = difflib.get_close_matches(name, variables, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"environment variable {name} means nothing to trimtab{meant}")
    return tuple(warnings)


def _split_list(path: str, value: Any) -> Any:
    field = by_path().get(path)
    if field and field.is_list and isinstance(value, str):
        return [part for part in value.split(os.pathsep) if part]
    return value


def _resolved(path: str, value: Any, base: Path) -> Any:
    field = by_path().get(path)
    if field is None or not field.is_path:
        return value
    if isinstance(value, list):
        return [_absolute(part, base) for part in value]
    return _absolute(value, base)


def _absolute(value: Any, base: Path) -> Any:
    if isinstance(value, (str, Path)) and str(value):
        return str(base / Path(value).expanduser())
    return value


def _derive_sockets(layers: _Layers) -> None:
    folder = layers.values["sockets.folder"]
    for name in ("inference", "control"):
        path = f"sockets.{name}"
        if path not in layers.values and isinstance(folder, str):
            layers.add(path, f"{folder}/{name}.sock", layers.origins["sockets.folder"])


def _explained(error: ValidationError, origins: Mapping[str, Origin]) -> ConfigError:
    told = []
    for fault in error.errors(include_url=False):
        path = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = _unknown(path)
        elif fault["type"] not in {"value_error", "missing"}:
            message += f" (found {_shown(fault['input'])})"
        origin = _nearest(path, origins)
        place = f"{origin.where}: " if origin and origin.where else ""
        told.append(f"{place}{path}: {message}")
    return ConfigError(
        "\n".join(told), hint="docs/configuration.md lists every key with its values."
    )


def _nearest(path: str, origins: Mapping[str, Origin]) -> Origin | None:
    """The origin of a path, of the table above it, or of something below it."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        above = ".".join(parts[:end])
        if above in origins:
            return origins[above]
    return next((origins[name] for name in origins if name.startswith(f"{path}.")), None)


def _unknown(path: str) -> str:
    known = {name for field in fields() for name in _with_sections(field.path)}
    near = difflib.get_close_matches(path, known, n=1) or [
        name for name in sorted(known) if name.split(".")[-1] == path.split(".")[-1]
    ]
    return "there is no such key" + (f"; did you mean {near[0]}?" if near else "")


def _with_sections(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
