"""Memory that is held, laid into huge pages; in a process of its own, on the real kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trimtab.huge_pages import lay_into_huge_pages

PROGRAM = """
import mmap
from pathlib import Path
from trimtab.huge_pages import HUGE_BYTES, lay_into_huge_pages

def held(name):
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024

whole = mmap.mmap(-1, 8 * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
whole.write(b"x" * len(whole))
holes = mmap.mmap(-1, 8 * HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(holes), 2 * mmap.PAGESIZE):
    holes[at] = 1
before, rss = held("AnonHugePages"), held("Rss")
steps = lay_into_huge_pages()
first = next(steps, 0)
laid = first + sum(steps)
print(laid == held("AnonHugePages") - before, laid == 0 or laid >= 6 * HUGE_BYTES)
print(held("Rss") - rss < HUGE_BYTES, set(whole[:]) == {ord("x")}, holes[0], holes[mmap.PAGESIZE])
"""


def test_only_what_is_nearly_whole_is_laid_together_and_nothing_changes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "True True\nTrue True 1 0\n"


def test_without_a_list_of_what_is_mapped_nothing_happens(tmp_path: Path) -> None:
    assert list(lay_into_huge_pages(tmp_path / "maps")) == []
