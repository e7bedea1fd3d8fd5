"""What the kernel lets this user's processes do: the things that trimtab relies on, tried out."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
from typing import Final

from trimtab.sensors.checkup.finding import Finding, Level, Machine
from trimtab.sensors.files import read_once
from trimtab.telemetry.words import size

_LOCKED_BYTES: Final = 64 << 20  # what the controller needs to be locked as a whole
_FILES: Final = 1024
_CAP_SYS_RESOURCE: Final = 24
_PUNCH_HOLE_KEEP_SIZE: Final = 3
_PAGE: Final = 4096


def kv_memory(machine: Machine) -> Finding:
    """Sealed memfds whose holes can be punched: KV outlives workers, and is given back."""
    if not hasattr(os, "memfd_create"):
        return Finding("kv", Level.BAD, "this kernel has no memfd (before 3.17)", "Update it.")
    fd = -1
    try:
        fd = os.memfd_create("trimtab-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4 * _PAGE)
        os.pwrite(fd, b"x" * 4 * _PAGE, 0)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        before = os.fstat(fd).st_blocks
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.fallocate(
            fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(4 * _PAGE)
        )
        returned = before - os.fstat(fd).st_blocks
    except OSError as error:
        return Finding("kv", Level.BAD, f"shared memory for KV can't be made: {error.strerror}")
    finally:
        if fd >= 0:
            os.close(fd)
    if failed or returned <= 0:
        return Finding(
            "kv",
            Level.WARNING,
            "memory of idle conversations can't be given back page by page",
            "Whole conversations are dropped instead.",
        )
    return Finding("kv", Level.GOOD, "conversations survive their worker; idle ones give back")


def locked_memory(machine: Machine) -> Finding:
    """Whether the controller may stay in memory while everything else is swapped out."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft in {resource.RLIM_INFINITY, -1} or soft >= _LOCKED_BYTES or os.geteuid() == 0:
        return Finding("locked", Level.GOOD, "the controller can be locked in memory")
    return Finding(
        "locked",
        Level.WARNING,
        f"only {size(soft)} may be locked: under pressure the controller itself may stall",
        "LimitMEMLOCK=64M in the unit (the shipped one has it), or `ulimit -l`.",
    )


def oom_protection(machine: Machine) -> Finding:
    """Whether the controller may protect itself; workers can always offer themselves."""
    effective = 0
    with contextlib.suppress(OSError, ValueError):
        for line in read_once("/proc/self/status").decode().splitlines():
            if line.startswith("CapEff:"):
                effective = int(line.split()[1], 16)
    if effective >> _CAP_SYS_RESOURCE & 1:
        return Finding("oom", Level.GOOD, "the controller can be protected from the OOM killer")
    return Finding(
        "oom",
        Level.NOTE,
        "the controller can't lower its own OOM score; workers go first all the same",
        "OOMScoreAdjust=-1000 in the unit does it from outside (the shipped one has it).",
    )


def descriptors(machine: Machine) -> Finding:
    """A descriptor for each conversation, stream and sensor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= _FILES:
        return Finding("files", Level.GOOD, f"{soft} files may be open")
    return Finding(
        "files",
        Level.WARNING,
        f"only {soft} files may be open (up to {hard} if asked)",
        "LimitNOFILE=4096 in the unit (the shipped one has it), or `ulimit -n 4096`.",
    )
