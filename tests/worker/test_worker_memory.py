"""What a worker says that it holds."""

from __future__ import annotations

from pathlib import Path

from trimtab.worker.memory import Held


def status(path: Path, anonymous: int, file: int, shared: int) -> None:
    path.write_text(f"RssAnon:\t{anonymous} kB\nRssFile:\t{file} kB\nRssShmem:\t{shared} kB\n")


def test_pages_of_kv_are_counted_once_wherever_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "status"
    status(path, 1000, 50, 0)
    held = Held(path)
    assert held.resident_bytes() == 1050 * 1024

    status(path, 1000, 50 + 800, 800)  # two of 400 kB, mapped twice, one of them on a disk

    assert held.resident_bytes(400 * 1024) == 1450 * 1024


def test_files_that_the_kernel_took_back_count_no_more(tmp_path: Path) -> None:
    path = tmp_path / "status"
    status(path, 1000, 50, 0)
    held = Held(path)
    status(path, 1000, 20, 0)

    assert held.resident_bytes() == 1020 * 1024


def test_a_kernel_that_tells_nothing_leaves_what_is_known(tmp_path: Path) -> None:
    assert Held(tmp_path / "none").resident_bytes(4096) == 4096
