"""Where the policies that come with trimtab lie. Apart from the rest, since every command asks."""

from __future__ import annotations

from pathlib import Path


def shipped_folder() -> Path:
    """The folder: package data in a wheel, ``policies/`` in a source tree."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "_policies"
    return packaged if packaged.is_dir() else package.parents[1] / "policies"
