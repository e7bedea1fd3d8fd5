"""Which files make trimtab a service, and what is in each: known without touching anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import UsageError

UNITS: Final = (
    "trimtab.service",
    "trimtab-inference.socket",
    "trimtab-control.socket",
    "trimtab.slice",
)
STARTED: Final = UNITS[:3]
"""What is enabled and started; the slice comes by itself."""

UNIT_FOLDER: Final = Path("etc/systemd/system")
DROP_INS: Final = UNIT_FOLDER / "trimtab.service.d"
CONFIGURATION: Final = Path("etc/trimtab")
STATE: Final = (Path("var/lib/trimtab"), Path("var/cache/trimtab"))
_PACKAGED: Final = "/usr/bin/trimtab "
_OUT_OF_REACH: Final = ("/root", "/home", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  # not used


@dataclass(frozen=True, slots=True)
class Laid:
    """A file of the service.

    Attributes:
        path: Below the root.
        content: What is in it.
        owned_by_person: True for configuration: what a person has changed stays.
    """

    path: Path
    content: str
    owned_by_person: bool = False


def layout(units: Path, policies: Path, program: str) -> list[Laid]:
    """All files of the service.

    Args:
        units: Folder of the units that come with trimtab.
        policies: Folder of the shipped policies.
        program: The command line that the units run, without its arguments.
    """
    files = [
        Laid(UNIT_FOLDER / name, (units / name).read_text().replace(_PACKAGED, f"{program} "))
        for name in UNITS
    ]
    for kind in ("sysusers", "tmpfiles"):
        text = (units / f"trimtab.{kind}.conf").read_text()
        files.append(Laid(Path(f"etc/{kind}.d/trimtab.conf"), text))
    files.append(Laid(CONFIGURATION / "trimtab.toml", (units / "trimtab.toml").read_text(), True))
    files += [
        Laid(CONFIGURATION / "policies" / policy.name, policy.read_text(), True)
        for policy in sorted(policies.glob("*.yaml"))
        if not policy.name.endswith(".test.yaml")
    ]
    return files


def shipped_units() -> Path:
    """The folder of units: package data in a wheel, ``systemd/`` in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_systemd"
    return installed if installed.is_dir() else package.parent.parent / "systemd"


def check_reachable(paths: Iterable[Path]) -> None:
    """Whether the service's user can get at the program.

    Args:
        paths: Of the interpreter and the package, links followed and not.

    Raises:
        UsageError: One lies where a service doesn't get at it, with the way out.
    """
    for path in paths:
        for folder in _OUT_OF_REACH:
            if path.is_relative_to(folder):
                raise UsageError(
                    f"{path} lies below {folder}, which is closed to the service's own user",
                    hint="Install trimtab below /opt with Debian's Python: `/usr/bin/python3 -m "
                    "venv /opt/trimtab && /opt/trimtab/bin/pip install .`, and run "
                    "`/opt/trimtab/bin/trimtab install-service`.",
                )
