"""The policies that come with trimtab."""

from __future__ import annotations

from pathlib import Path


def shipped_policies() -> Path:
    """The folder of shipped policies: package data in a wheel, ``policies/`` in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_policies"
    return installed if installed.is_dir() else package.parent.parent / "policies"
