"""The signals of memory: the machine's, the control groups', and our own."""

from __future__ import annotations

from typing import Final

from trimtab.domain.readings import Unit
from trimtab.signals.spec import MOST_RATE, SignalSpec, in_bytes, stalls

MEMORY: Final = (
    in_bytes("memory.total", "MemTotal in /proc/meminfo", "The machine's memory."),
    in_bytes(
        "memory.available",
        "min(MemAvailable, limit − working set of every cgroup up to the root)",
        "Memory that could be given to a process now without swapping.",
        "Limits of the groups of the workers count too. Working set is usage less inactive file "
        "pages; the limit is the smaller of memory.high and memory.max. The reading shows the sum.",
    ),
    SignalSpec(
        "memory.available.slope",
        Unit.BYTES_PER_S,
        "least squares over the last 10 s of memory.available",
        "How fast memory comes back (above 0) or goes (below 0).",
        low=-MOST_RATE,
        high=MOST_RATE,
        quirks="Needs 2 s of ticks. Swap and zram hide pressure for long: this shows it early.",
    ),
    in_bytes(
        "memory.headroom",
        "min(MemAvailable, hard limit − working set − unwritten file pages of every cgroup)",
        "How far away the kernel's OOM killer is.",
        "Unlike memory.available it leaves out memory.high, which slows down but doesn't kill. "
        "Swap isn't counted.",
    ),
    in_bytes(
        "memory.limit",
        "memory.max, memory.high or memory.limit_in_bytes of the tightest cgroup",
        "The control group limit that leaves least.",
        "Absent where no group has a finite limit.",
    ),
    in_bytes(
        "memory.working_set",
        "usage − inactive file pages of the tightest cgroup",
        "What that group can't give back without effort.",
    ),
    in_bytes(
        "memory.dirty",
        "Dirty + Writeback in /proc/meminfo",
        "File pages that have to be written before they can be dropped.",
        "MemAvailable counts them as available.",
    ),
    in_bytes("memory.swap.total", "SwapTotal in /proc/meminfo", "Swap space, zram included."),
    in_bytes("memory.swap.free", "SwapFree in /proc/meminfo", "Swap space that is free."),
    SignalSpec(
        "memory.swap.in_rate",
        Unit.BYTES_PER_S,
        "pswpin in /proc/vmstat",
        "How fast pages come back from swap: the machine works on more than it has.",
        high=MOST_RATE,
    ),
    SignalSpec(
        "memory.swap.out_rate",
        Unit.BYTES_PER_S,
        "pswpout in /proc/vmstat",
        "How fast pages go to swap.",
        high=MOST_RATE,
    ),
    SignalSpec(
        "memory.major_faults",
        Unit.PER_S,
        "pgmajfault in /proc/vmstat",
        "Page faults a second that had to wait for a disk.",
        high=1e8,
    ),
    SignalSpec(
        "memory.oom_kills",
        Unit.COUNT,
        "oom_kill in /proc/vmstat",
        "Processes that the kernel has killed for want of memory since boot.",
    ),
    in_bytes(
        "memory.zram.used",
        "mem_used_total in /sys/block/zram*/mm_stat",
        "Memory that compressed swap takes.",
        "Already off MemAvailable.",
    ),
    SignalSpec(
        "memory.zram.factor",
        Unit.COUNT,
        "orig_data_size ÷ mem_used_total in /sys/block/zram*/mm_stat",
        "How many bytes of swapped pages one byte of zram holds.",
        high=1000.0,
    ),
    in_bytes(
        "memory.own.pss",
        "Pss in /proc/PID/smaps_rollup of the daemon and its workers",
        "What the daemon and its workers hold, shared pages divided among their users.",
        "Read every 10 s: the kernel walks all pages for it.",
    ),
    in_bytes(
        "memory.own.anonymous",
        "Pss_Anon in /proc/PID/smaps_rollup",
        "Of that, memory that no file stands behind: weights that were repacked, buffers.",
    ),
    in_bytes(
        "memory.own.shared",
        "Pss_Shmem in /proc/PID/smaps_rollup",
        "Of that, mapped shared memory: the KV cache.",
        "KV that no worker maps isn't seen here; kv.leased and kv.idle have all of it.",
    ),
    in_bytes(
        "memory.own.swapped",
        "SwapPss in /proc/PID/smaps_rollup",
        "What of the daemon and its workers has been swapped out.",
    ),
    *stalls("memory.psi", "/proc/pressure/memory", "memory", ("some", "full")),
    *stalls("memory.psi.own", "memory.pressure of our own cgroup", "memory", ("some", "full")),
)
