"""Board profiles: which zones mean what on a board, which of them lie, and what is sane there.

A profile is a YAML file in `trimtab/sensors/boards/`, or one of the user's. It is recognised by the
device tree's `compatible` list or by DMI, or named in the configuration.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Final

from trimtab.errors import ConfigError
from trimtab.sensors.files import read_once
from trimtab.sensors.source import Roots
from trimtab.sensors.zones import Trip

GENERIC: Final = "generic"
_MOST_BYTES: Final = 64 * 1024
_FIELDS: Final[dict[str, dict[str, type]]] = {
    "match": {"device_tree": list, "dmi": list},
    "zones": {"use": list, "ignore": list, "degrees": list},
    "sensors": {"use": list, "ignore": list},
    "cooling": {"ignore": list},
    "throttle": {"firmware": list},
    "memory": {"unified": bool},
    "gpu": {"load": list, "load_full": int},
    "power": {"rails": list},
    "trips": {"passive": str, "critical": str},
    "defaults": {"temperature": dict},
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Names that count and names that don't, as shell patterns regardless of case.

    Attributes:
        use: What to take; if nothing there matches, all that isn't ignored.
        ignore: What never to take.
    """

    use: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def ignored(self, name: str) -> bool:
        """True if the name is on the deny-list."""
        return matches(name, self.ignore)

    def used(self, name: str) -> bool:
        """True if the name is one that counts."""
        return matches(name, self.use) and not self.ignored(name)


@dataclass(frozen=True, slots=True)
class Board:
    """A board profile.

    Attributes:
        name: Its name, as in the configuration.
        description: For people.
        device_tree: Patterns on the device tree's `compatible` list.
        dmi: Patterns on ``vendor/product``.
        zones: Thermal zones by type.
        sensors: hwmon sensors by ``chip/label``.
        degrees: Zone types whose driver writes whole degrees.
        cooling: Cooling devices by type; only the deny-list counts.
        firmware: Raspberry Pi's firmware flags, relative to `/sys`; the first that is there.
        unified_memory: True if CPU and GPU share one memory.
        gpu_load: Files with the GPU's load, relative to `/sys`; the first that is there.
        gpu_load_full: What they say at full load.
        rails: hwmon power rails that carry the whole board, by ``chip/label``.
        trips: What the firmware does that the kernel doesn't tell; the lower one counts.
        enter_celsius: A sane temperature to step down at.
        leave_celsius: A sane temperature to step up below.
    """

    name: str
    description: str
    device_tree: tuple[str, ...] = ()
    dmi: tuple[str, ...] = ()
    zones: Selection = Selection()
    sensors: Selection = Selection()
    degrees: tuple[str, ...] = ()
    cooling: Selection = Selection()
    firmware: tuple[str, ...] = ()
    unified_memory: bool = False
    gpu_load: tuple[str, ...] = ()
    gpu_load_full: int = 100
    rails: tuple[str, ...] = ()
    trips: tuple[Trip, ...] = ()
    enter_celsius: float = 80.0
    leave_celsius: float = 72.0


def matches(name: str, patterns: Iterable[str]) -> bool:
    """True if any shell pattern matches the name, regardless of case."""
    folded = name.strip().lower()
    return any(fnmatch.fnmatchcase(folded, pattern.lower()) for pattern in patterns)


def parse_board(data: object, where: str) -> Board:
    """Makes a profile of what was read from YAML.

    Args:
        data: The document.
        where: The file's name, for messages.

    Raises:
        ConfigError: If a field is missing, unknown or of the wrong kind.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: a board profile is a mapping with a name")
    _check(data, where)

    def names(section: str, field: str) -> tuple[str, ...]:
        return tuple(str(item) for item in data.get(section, {}).get(field, ()))

    trips = data.get("trips", {})
    temperature = data.get("defaults", {}).get("temperature", {})
    return Board(
        name=str(data["name"]),
        description=str(data.get("description", data["name"])),
        device_tree=names("match", "device_tree"),
        dmi=names("match", "dmi"),
        zones=Selection(names("zones", "use"), names("zones", "ignore")),
        sensors=Selection(names("sensors", "use"), names("sensors", "ignore")),
        degrees=names("zones", "degrees"),
        cooling=Selection((), names("cooling", "ignore")),
        firmware=names("throttle", "firmware"),
        unified_memory=bool(data.get("memory", {}).get("unified", False)),
        gpu_load=names("gpu", "load"),
        gpu_load_full=int(data.get("gpu", {}).get("load_full", 100)),
        rails=names("power", "rails"),
        trips=tuple(
            Trip(kind, _celsius(text, f"{where}: trips.{kind}")) for kind, text in trips.items()
        ),
        enter_celsius=_celsius(temperature.get("enter", "80C"), f"{where}: temperature.enter"),
        leave_celsius=_celsius(temperature.get("leave", "72C"), f"{where}: temperature.leave"),
    )


def _check(data: Mapping[str, object], where: str) -> None:
    """Every section and field known and of the right kind."""
    if not isinstance(data.get("name"), str):
        raise ConfigError(f"{where}: name is missing")
    for section, value in data.items():
        if section in {"name", "description"}:
            continue
        fields = _FIELDS.get(section)
        if fields is None:
            raise ConfigError(
                f"{where}: {section} is unknown", hint=f"sections: {', '.join(_FIELDS)}"
            )
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: {section} is a mapping of {', '.join(fields)}")
        for field, content in value.items():
            kind = fields.get(field)
            if kind is None:
                raise ConfigError(
                    f"{where}: {section}.{field} is unknown", hint=f"fields: {', '.join(fields)}"
                )
            if not isinstance(content, kind):
                raise ConfigError(f"{where}: {section}.{field} is no {_KINDS[kind]}")


_KINDS: Final[dict[type, str]] = {
    list: "list of names",
    bool: "true or false",
    int: "whole number",
    str: "temperature such as 80C",
    dict: "mapping",
}


def _celsius(text: object, where: str) -> float:
    if isinstance(text, str) and text.endswith("C"):
        try:
            return float(text[:-1])
        except ValueError:
            pass
    raise ConfigError(f"{where} is {text!r}, not a temperature such as 80C")


def load_board(path: Path) -> Board:
    """Reads one profile.

    Raises:
        ConfigError: If the file can't be read or is no profile.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return _parse(text, str(path))


def _parse(text: bytes, where: str) -> Board:
    from ruamel.yaml import YAML  # here, since it is needed once at start and takes long to import
    from ruamel.yaml.error import YAMLError

    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{where}: larger than {_MOST_BYTES // 1024} KiB, not a board profile")
    try:
        return parse_board(YAML(typ="safe", pure=True).load(text), where)
    except YAMLError as error:
        raise ConfigError(f"{where}: {error}") from error


@functools.cache
def shipped_boards() -> Mapping[str, Board]:
    """All profiles that come with the package, by name."""
    boards = {}
    for file in sorted(resources.files("trimtab.sensors.boards").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".yaml"):
            board = _parse(file.read_bytes(), file.name)
            boards[board.name] = board
    return MappingProxyType(boards)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a machine says that it is.

    Attributes:
        compatible: The device tree's list, most specific first.
        dmi: ``vendor/product``; empty without DMI.
        model: For people.
    """

    compatible: tuple[str, ...] = ()
    dmi: str = ""
    model: str = ""


def _line(path: str) -> str:
    """The file's first line; empty if it can't be read."""
    try:
        return read_once(path).rstrip(b"\0\n").decode(errors="replace").strip()
    except OSError:
        return ""


def identify(roots: Roots) -> Identity:
    """Reads the device tree's or the BIOS's name of this machine."""
    tree = f"{roots.proc}/device-tree"
    if not Path(tree).is_dir():
        tree = f"{roots.sys}/firmware/devicetree/base"
    compatible = tuple(part for part in _line(f"{tree}/compatible").split("\0") if part)
    vendor = _line(f"{roots.sys}/class/dmi/id/sys_vendor")
    product = _line(f"{roots.sys}/class/dmi/id/product_name")
    dmi = f"{vendor}/{product}" if vendor or product else ""
    return Identity(compatible, dmi, _line(f"{tree}/model") or dmi.replace("/", " "))


def choose_board(identity: Identity, boards: Mapping[str, Board]) -> Board:
    """The profile that fits: by the most specific device tree name, then by DMI, else generic."""
    for name in identity.compatible:
        for board in boards.values():
            if matches(name, board.device_tree):
                return board
    if identity.dmi:
        for board in boards.values():
            if matches(identity.dmi, board.dmi):
                return board
    return boards[GENERIC]


def find_board(wanted: str | None, roots: Roots) -> Board:
    """The profile that is named, or else the one that fits this machine.

    Args:
        wanted: A shipped profile's name, the path of a file (with a slash or ``.yaml``), or None.
        roots: Where `/proc` and `/sys` are.

    Raises:
        ConfigError: If there is no such profile, or it is wrong.
    """
    if wanted is not None and ("/" in wanted or wanted.endswith(".yaml")):
        return load_board(Path(wanted))
    boards = shipped_boards()
    if wanted is None:
        return choose_board(identify(roots), boards)
    if wanted not in boards:
        raise ConfigError(
            f"there is no board profile {wanted!r}",
            hint=f"shipped: {', '.join(boards)}; or give the path of a YAML file",
        )
    return boards[wanted]
