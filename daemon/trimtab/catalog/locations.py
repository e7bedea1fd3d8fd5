"""Where models live and where builds keep their cache: one answer for every command."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SYSTEM_CONFIG: Final = Path("/etc/trimtab/trimtab.toml")
SYSTEM_MODELS: Final = Path("/var/lib/trimtab/models")
SYSTEM_CACHE: Final = Path("/var/cache/trimtab")


def is_system_wide(*, uid: int | None = None, system_config: Path = SYSTEM_CONFIG) -> bool:
    """Whether we act for the whole machine: as root, with a configuration in /etc."""
    return (os.geteuid() if uid is None else uid) == 0 and system_config.is_file()


def models_folder(
    flag: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    system_wide: bool | None = None,
) -> Path:
    """The folder that holds one folder a model.

    Args:
        flag: What the command line or the configuration said; it wins.
        environ: The environment; None for ours. TRIMTAB_MODELS is next.
        system_wide: Overrides `is_system_wide`.

    Returns:
        An absolute path; it need not exist.
    """
    environ = os.environ if environ is None else environ
    if flag is not None:
        return flag.absolute()
    if environ.get("TRIMTAB_MODELS"):
        return Path(environ["TRIMTAB_MODELS"]).absolute()
    if is_system_wide() if system_wide is None else system_wide:
        return SYSTEM_MODELS
    return _xdg(environ, "XDG_DATA_HOME", ".local/share") / "trimtab" / "models"


def cache_folder(
    environ: Mapping[str, str] | None = None, *, system_wide: bool | None = None
) -> Path:
    """The folder for what can be made again: the build environment and downloads."""
    environ = os.environ if environ is None else environ
    if is_system_wide() if system_wide is None else system_wide:
        return SYSTEM_CACHE
    return _xdg(environ, "XDG_CACHE_HOME", ".cache") / "trimtab"


def _xdg(environ: Mapping[str, str], name: str, below_home: str) -> Path:
    """An XDG base directory; a relative value is ignored, as the XDG specification asks."""
    value = environ.get(name, "")
    if Path(value).is_absolute():
        return Path(value)
    return Path(environ.get("HOME") or Path.home()) / below_home
