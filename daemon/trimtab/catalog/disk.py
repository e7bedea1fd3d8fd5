"""Disk space, asked for before it is needed; and replacing a folder whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trimtab.errors import CatalogError


def check_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse work that the disk can't hold.

    Args:
        folder: Where it will be written; its nearest existing parent is asked.
        needed_bytes: At the peak.
        what: What is going to be written.

    Raises:
        CatalogError: There is less; the message has both figures.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed_bytes > free:
        raise CatalogError(
            f"{what} needs {readable(needed_bytes)} in {folder}, and {readable(free)} are free",
            hint="Free some space, or choose another place with --out or TRIMTAB_MODELS.",
            code="disk_full",
        )


def readable(count: int) -> str:
    """Bytes for people, in powers of ten as disks are sold: `94 MB`."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5 or unit == "GB":
            break
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"


def folder_bytes(folder: Path) -> int:
    """All files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def copy_bytes(source: Path, target: Path) -> int:
    """What a copy by `link_tree` takes: nothing within one file system."""
    place = target.absolute()
    while not place.exists():
        place = place.parent
    return 0 if source.stat().st_dev == place.stat().st_dev else folder_bytes(source)


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder by hard links where the file system allows it, else byte by byte."""

    def link_or_copy(src: str, dst: str) -> None:
        try:
            os.link(src, dst, follow_symlinks=True)
        except OSError:
            shutil.copyfile(src, dst)

    shutil.copytree(source, target, copy_function=link_or_copy)


def replace_folder(new: Path, target: Path) -> None:
    """Put a whole folder in another's place: no reader sees a half of it.

    Raises:
        CatalogError: It can't be written.
    """
    old = target.with_name(f".old-{target.name}")
    try:
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        new.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise CatalogError(f"{target} can't be written: {error.strerror}") from error
