"""Where things are when nobody says otherwise: the system's paths, or a user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.catalog.locations import cache_folder, is_system_wide, models_folder
from trimtab.config.policies import shipped_policies

SYSTEM_CONFIG: Final = Path("/etc/trimtab/trimtab.toml")
SYSTEM_POLICIES: Final = Path("/etc/trimtab/policies")
SYSTEM_STATE: Final = Path("/var/lib/trimtab")
SYSTEM_RUNTIME: Final = Path("/run/trimtab")

# What systemd tells a service that has StateDirectory= and the like.
_SYSTEMD: Final = ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CACHE_DIRECTORY")


@dataclass(frozen=True, slots=True)
class Places:
    """The default paths of one situation.

    Attributes:
        system_wide: True as root with a system configuration, or under systemd.
        config: The file that is read if it is there.
        models: Folder of models.
        policies: Folder of policies.
        state: State directory.
        cache: Cache directory.
        runtime: Folder of the sockets.
    """

    system_wide: bool
    config: Path
    models: Path
    policies: Path
    state: Path
    cache: Path
    runtime: Path

    def as_tree(self) -> dict[str, Any]:
        """As the lowest layer of the configuration."""
        return {
            "models": [str(self.models)],
            "policies": str(self.policies),
            "state": str(self.state),
            "cache": str(self.cache),
            "sockets": {"folder": str(self.runtime)},
        }


def find_places(
    environ: Mapping[str, str], uid: int, system_config: Path = SYSTEM_CONFIG
) -> Places:
    """The default paths for this user in this environment.

    Args:
        environ: The environment.
        uid: Effective user id.
        system_config: The system's configuration file.
    """
    system = is_system_wide(uid=uid, system_config=system_config) or any(
        environ.get(name) for name in _SYSTEMD
    )
    quiet = {name: value for name, value in environ.items() if name != "TRIMTAB_MODELS"}
    user_config = _xdg(environ, "XDG_CONFIG_HOME", ".config") / "trimtab"
    return Places(
        system_wide=system,
        config=system_config if system else user_config / "trimtab.toml",
        models=models_folder(environ=quiet, system_wide=system),
        policies=_policies(system_config.parent / "policies", user_config / "policies", system),
        state=_given(environ, "STATE_DIRECTORY")
        or (
            SYSTEM_STATE if system else _xdg(environ, "XDG_STATE_HOME", ".local/state") / "trimtab"
        ),
        cache=_given(environ, "CACHE_DIRECTORY") or cache_folder(environ, system_wide=system),
        runtime=_given(environ, "RUNTIME_DIRECTORY")
        or (SYSTEM_RUNTIME if system else user_runtime(environ, uid)),
    )


def user_runtime(environ: Mapping[str, str], uid: int) -> Path:
    """Folder of a user's sockets: XDG_RUNTIME_DIR, /run/user, or a private one in /tmp."""
    told = environ.get("XDG_RUNTIME_DIR", "")
    if Path(told).is_absolute():
        return Path(told) / "trimtab"
    login = Path("/run/user") / str(uid)
    if login.is_dir() and os.access(login, os.W_OK):
        return login / "trimtab"
    return Path(f"/tmp/trimtab-{uid}")  # noqa: S108  # made 0700 and its owner checked before use


def _policies(system: Path, user: Path, system_wide: bool) -> Path:
    candidates = [system] if system_wide else [user, system]
    return next((folder for folder in candidates if folder.is_dir()), shipped_policies())


def _given(environ: Mapping[str, str], name: str) -> Path | None:
    """What systemd tells: it lists several directories with colons; ours is the first."""
    first = environ.get(name, "").split(":")[0]
    return Path(first) if first else None


def _xdg(environ: Mapping[str, str], name: str, below_home: str) -> Path:
    value = environ.get(name, "")
    if Path(value).is_absolute():
        return Path(value)
    return Path(environ.get("HOME") or Path.home()) / below_home
