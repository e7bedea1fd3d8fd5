"""Putting a model in its place: files first, manifest with them, one rename at the end."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from trimtab.catalog.assemble import Candidate
from trimtab.catalog.disk import link_tree, replace_folder
from trimtab.catalog.manifest import MANIFEST, Manifest, dump
from trimtab.errors import CatalogError


def publish(manifest: Manifest, candidates: Sequence[Candidate], target: Path) -> None:
    """Make the model's folder, with the variants' files and the manifest, in one go.

    Files are hard links where the file system allows them, so an interruption loses nothing.

    Args:
        manifest: What to write.
        candidates: The variants; one whose place is absolute stays where it is.
        target: The model's folder; what is there is replaced.

    Raises:
        CatalogError: It can't be written.
    """
    new = target.with_name(f".new-{target.name}")
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for candidate in candidates:
            if not Path(candidate.place).is_absolute():
                link_tree(candidate.folder, new / candidate.place)
        write_manifest(manifest, new)
        for path in [new, *new.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    except OSError as error:
        raise CatalogError(f"{new} can't be written: {error.strerror}") from error
    replace_folder(new, target)


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest whole or not at all.

    Raises:
        CatalogError: It can't be written.
    """
    partial = folder / f".{MANIFEST}.partial"
    try:
        partial.write_text(dump(manifest), encoding="utf-8")
        partial.rename(folder / MANIFEST)
    except OSError as error:
        raise CatalogError(f"{folder / MANIFEST} can't be written: {error.strerror}") from error
