"""A disk that hangs for real: an ext4 in a file of its own, frozen by the kernel."""

from __future__ import annotations

import array
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.domain.kv import KvShape
from trimtab.serving.claims import Lease
from trimtab.serving.disk import KvDisk
from trimtab.serving.pool import Pool

SHAPE = KvShape(layers=2, kv_heads=2, position_bytes=256)
MIB = 1024 * 1024


def ran(*words: str | Path) -> bool:
    return subprocess.run(words, capture_output=True, timeout=20, check=False).returncode == 0


class Frozen:
    """A mounted filesystem that can be frozen: whoever changes anything on it sleeps."""

    def __init__(self, image: Path, point: Path) -> None:
        self.point = point
        with image.open("wb") as file:
            file.truncate(64 * MIB)
        point.mkdir()
        if not (ran("mkfs.ext4", "-q", image) and ran("mount", "-o", "loop", image, point)):
            pytest.skip("a filesystem can't be mounted here")

    def freeze(self) -> None:
        assert ran("fsfreeze", "-f", self.point)

    def thaw(self) -> None:
        ran("fsfreeze", "-u", self.point)

    def close(self) -> None:
        self.thaw()
        for _ in range(100):  # what was closed in a thread may still hold it
            if ran("umount", self.point):
                return
            time.sleep(0.05)
        ran("umount", "-l", self.point)
        raise AssertionError(f"{self.point} is still in use")


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Frozen]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "fsfreeze"))):
        pytest.skip("only root can freeze a filesystem")
    made = Frozen(tmp_path / "image", tmp_path / "mounted")
    yield made
    made.close()


def lease_on(disk: KvDisk, pool: Pool) -> Lease:
    tokens = 256
    size_bytes = SHAPE.committed_bytes(tokens, tokens, os.sysconf("SC_PAGE_SIZE"))
    segment = disk.new_segment(disk.claim(size_bytes, 0.0, fills=True), SHAPE, tokens, tokens)
    os.pwrite(segment.descriptor, b"x" * segment.size_bytes, 0)
    like = Lease(segment, "f", None)
    lent = pool.lend(segment, like)
    lent.valid = 64
    return lent


def test_what_ends_on_a_disk_that_hangs_holds_nobody_up(frozen: Frozen) -> None:
    disk = KvDisk(frozen.point / "kv", Path("/proc/self/mounts").read_text())
    disk.configure(64 * MIB, 64 * MIB)
    pool = Pool(disk)
    kept, dropped = lease_on(disk, pool), lease_on(disk, pool)
    writes = threading.Thread(target=(frozen.point / "new").touch)
    frozen.freeze()
    late = threading.Timer(5, frozen.thaw)  # for one that does wait
    late.start()
    try:
        writes.start()
        begun_s = time.monotonic()
        pool.retire(kept, array.array("I", range(64)), 1.0)
        pool.drop(dropped)
        took_s = time.monotonic() - begun_s
        hangs = writes.is_alive()
    finally:
        late.cancel()
        frozen.thaw()
        writes.join()
    sealed = pool.to_seal()
    assert sealed is not None
    assert sealed.stored is not None
    before = os.fstat(sealed.stored.descriptor).st_blocks
    disk.seal(sealed.stored, sealed.lease.segment)
    after = os.fstat(sealed.stored.descriptor).st_blocks
    pool.close()

    assert hangs
    assert took_s < 1
    assert after < before  # what it held beyond its 64 tokens has been given back
