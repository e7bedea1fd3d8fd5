"""Every signal that rules and people can see, with unit, source and meaning.

Adding a signal is one entry here, one sensor that yields it, and a run of
``trimtab signals --markdown`` for the reference in docs/signals.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.domain.readings import Unit


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """One signal.

    Attributes:
        name: Dotted, lower case, such as ``memory.available``.
        unit: The unit of its readings.
        source: Where it is read or what it is derived from.
        meaning: One sentence for a gateway's owner.
        low: Least plausible value; readings below it are suspect. None: no bound.
        high: Greatest plausible value. None: no bound.
        quirks: What to know before a rule relies on it.
    """

    name: str
    unit: Unit
    source: str
    meaning: str
    low: float | None = 0.0
    high: float | None = None
    quirks: str = ""


_TIB: Final = float(1 << 40)
_MOST_BYTES: Final = 64 * _TIB
_RATE: Final = 1e12  # bytes/s and the like: beyond it a counter has wrapped or been reset


def _bytes(name: str, source: str, meaning: str, quirks: str = "") -> SignalSpec:
    return SignalSpec(name, Unit.BYTES, source, meaning, high=_MOST_BYTES, quirks=quirks)


def _ratio(name: str, source: str, meaning: str, quirks: str = "") -> SignalSpec:
    return SignalSpec(name, Unit.RATIO, source, meaning, high=1.0, quirks=quirks)


def _psi(prefix: str, file: str, what: str, kinds: tuple[str, ...]) -> tuple[SignalSpec, ...]:
    """The signals of one pressure file."""
    who = {"some": "at least one task", "full": "every task that isn't idle"}
    spans = {"avg10": "the last 10 s", "avg60": "the last minute", "avg300": "the last 5 minutes"}
    specs = []
    for kind in kinds:
        for average, span in spans.items():
            specs.append(
                _ratio(
                    f"{prefix}.{kind}_{average}",
                    file,
                    f"Share of {span} in which {who[kind]} waited for {what}.",
                )
            )
        specs.append(
            _ratio(
                f"{prefix}.{kind}_now",
                f"{file}, from its total",
                f"Share of the time since the last tick in which {who[kind]} waited for {what}.",
                "Moves at once, where the averages take seconds; needs a second tick.",
            )
        )
    return tuple(specs)


_MEMORY: Final = (
    _bytes("memory.total", "MemTotal in /proc/meminfo", "The machine's memory."),
    _bytes(
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
        low=-_RATE,
        high=_RATE,
        quirks="Needs 2 s of ticks. Swap and zram hide pressure for long: this shows it early.",
    ),
    _bytes(
        "memory.headroom",
        "min(MemAvailable, hard limit − working set − unwritten file pages of every cgroup)",
        "How far away the kernel's OOM killer is.",
        "Unlike memory.available it leaves out memory.high, which slows down but doesn't kill. "
        "Swap isn't counted.",
    ),
    _bytes(
        "memory.limit",
        "memory.max, memory.high or memory.limit_in_bytes of the tightest cgroup",
        "The control group limit that leaves least.",
        "Absent where no group has a finite limit.",
    ),
    _bytes(
        "memory.working_set",
        "usage − inactive file pages of the tightest cgroup",
        "What that group can't give back without effort.",
    ),
    _bytes(
        "memory.dirty",
        "Dirty + Writeback in /proc/meminfo",
        "File pages that have to be written before they can be dropped.",
        "MemAvailable counts them as available.",
    ),
    _bytes("memory.swap.total", "SwapTotal in /proc/meminfo", "Swap space, zram included."),
    _bytes("memory.swap.free", "SwapFree in /proc/meminfo", "Swap space that is free."),
    SignalSpec(
        "memory.swap.in_rate",
        Unit.BYTES_PER_S,
        "pswpin in /proc/vmstat",
        "How fast pages come back from swap: the machine works on more than it has.",
        high=_RATE,
    ),
    SignalSpec(
        "memory.swap.out_rate",
        Unit.BYTES_PER_S,
        "pswpout in /proc/vmstat",
        "How fast pages go to swap.",
        high=_RATE,
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
    _bytes(
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
    _bytes(
        "memory.own.pss",
        "Pss in /proc/PID/smaps_rollup of the daemon and its workers",
        "What the daemon and its workers hold, shared pages divided among their users.",
        "Read every 10 s: the kernel walks all pages for it.",
    ),
    _bytes(
        "memory.own.anonymous",
        "Pss_Anon in /proc/PID/smaps_rollup",
        "Of that, memory that no file stands behind: weights that were repacked, buffers.",
    ),
    _bytes(
        "memory.own.shared",
        "Pss_Shmem in /proc/PID/smaps_rollup",
        "Of that, mapped shared memory: the KV cache.",
        "KV that no worker maps is held by the daemon as descriptors and isn't seen here.",
    ),
    _bytes(
        "memory.own.swapped",
        "SwapPss in /proc/PID/smaps_rollup",
        "What of the daemon and its workers has been swapped out.",
    ),
    *_psi("memory.psi", "/proc/pressure/memory", "memory", ("some", "full")),
    *_psi("memory.psi.own", "memory.pressure of our own cgroup", "memory", ("some", "full")),
)

_THERMAL: Final = (
    SignalSpec(
        "temperature.max",
        Unit.CELSIUS,
        "/sys/class/thermal/thermal_zone*/temp and /sys/class/hwmon/hwmon*/temp*_input",
        "The hottest of the zones that mean the processor or the board.",
        low=-40.0,
        high=150.0,
        quirks="Which zones count is the board profile's choice; a zone that is known to lie or "
        "that never moves doesn't. A sudden jump counts from its second reading on.",
    ),
    SignalSpec(
        "temperature.slope",
        Unit.CELSIUS_PER_S,
        "least squares over the last 30 s of temperature.max",
        "How fast it gets hotter (above 0) or cooler (below 0).",
        low=-50.0,
        high=50.0,
        quirks="Needs 5 s of ticks.",
    ),
    SignalSpec(
        "temperature.headroom",
        Unit.CELSIUS,
        "lowest passive, hot or critical trip point − temperature, over the same zones",
        "Degrees until the kernel or the firmware slows the board down.",
        low=-100.0,
        high=200.0,
        quirks="Trip points outside 30 to 150 °C are refused. The board profile adds those that "
        "the firmware keeps to itself.",
    ),
    SignalSpec(
        "temperature.time_to_trip",
        Unit.SECONDS,
        "first-order thermal model fitted to the last 2 minutes",
        "Seconds until the first trip point at the present load.",
        high=86400.0,
        quirks="Absent while the temperature settles below the trip point.",
    ),
    SignalSpec(
        "cpu.throttled",
        Unit.BOOL,
        "cooling devices, cpufreq limits, Raspberry Pi firmware flags, x86 throttle counters",
        "1 while the board is being slowed down for heat or power, else 0.",
        high=1.0,
        quirks="Fans aren't throttling. The firmware's history bits (16 to 19) don't count.",
    ),
)

_LOAD: Final = (
    _ratio("cpu.busy", "/proc/stat", "Share of all cores' time that was worked."),
    _ratio(
        "cpu.own",
        "utime + stime in /proc/PID/stat of the daemon and its workers",
        "Share of all cores' time that the daemon and its workers took.",
    ),
    _ratio("cpu.others", "cpu.busy − cpu.own", "Share of all cores' time that others took."),
    _ratio(
        "cpu.steal",
        "steal in /proc/stat",
        "Share of time that the hypervisor gave to other machines.",
    ),
    _ratio("cpu.iowait", "iowait in /proc/stat", "Share of time that cores idled behind a disk."),
    SignalSpec(
        "cpu.frequency",
        Unit.HERTZ,
        "scaling_cur_freq of the fastest core",
        "The fastest core's frequency now.",
        high=2e10,
    ),
    _ratio(
        "cpu.frequency_cap",
        "scaling_max_freq ÷ cpuinfo_max_freq, the least of all cores",
        "How much of its top frequency the most limited core may use.",
        "Lowered by thermal throttling, but by a person's power setting as well.",
    ),
    *_psi("cpu.psi", "/proc/pressure/cpu", "a core", ("some",)),
    *_psi("io.psi", "/proc/pressure/io", "a disk", ("some", "full")),
)

_POWER: Final = (
    SignalSpec(
        "power.mains",
        Unit.BOOL,
        "online in /sys/class/power_supply/*",
        "1 on mains, 0 on battery.",
        high=1.0,
    ),
    _ratio(
        "power.battery",
        "capacity in /sys/class/power_supply/*",
        "Charge of the machine's battery.",
        "Batteries of mice and keyboards don't count.",
    ),
    SignalSpec(
        "power.undervoltage",
        Unit.BOOL,
        "Raspberry Pi firmware flags, in*_lcrit_alarm of rpi_volt",
        "1 while the supply's voltage is too low.",
        high=1.0,
    ),
    SignalSpec(
        "power.package",
        Unit.WATTS,
        "energy_uj of the packages in /sys/class/powercap",
        "What the processor draws (RAPL).",
        high=2000.0,
        quirks="Readable by root only since 2020 (CVE-2020-8694).",
    ),
    SignalSpec(
        "power.board",
        Unit.WATTS,
        "hwmon power rails that the board profile names, or the discharging battery",
        "What the whole board draws.",
        high=5000.0,
    ),
)

_DISK: Final = (
    _bytes(
        "disk.free",
        "statvfs of the state directory",
        "Space that an unprivileged process may still use there.",
    ),
    SignalSpec(
        "disk.own_write_rate",
        Unit.BYTES_PER_S,
        "write_bytes in /proc/PID/io of the daemon and its workers",
        "How fast the daemon and its workers write to disks.",
        high=_RATE,
    ),
    _bytes(
        "disk.own_written",
        "write_bytes − cancelled_write_bytes in /proc/PID/io, summed since start",
        "What they have written since the daemon started: flash wears by it.",
    ),
    _ratio(
        "disk.wear",
        "life_time in /sys/block/mmcblk*/device",
        "How much of the eMMC's life is used up, in steps of a tenth.",
    ),
    SignalSpec(
        "clock.jump",
        Unit.SECONDS,
        "wall clock against the monotonic clock since the last tick",
        "By how much someone has set the clock; 0 otherwise.",
        low=None,
        quirks="Gateways without a clock chip jump by years when the network comes up.",
    ),
)

_GPU: Final = (
    _ratio("gpu.busy", "NVML, or sysfs on Jetson, RK3588 and AMD", "Load of the busiest GPU."),
    _bytes(
        "gpu.memory.free",
        "NVML, mem_info_vram_* on AMD; memory.available where the GPU has no memory of its own",
        "Memory that the GPU could still be given.",
        "Never counts for models that run on the CPU: a small carve-out is full at all times.",
    ),
    SignalSpec("gpu.temperature", Unit.CELSIUS, "NVML", "The hottest GPU.", low=-40.0, high=150.0),
)


def _seconds(name: str, source: str, meaning: str, quirks: str = "") -> SignalSpec:
    return SignalSpec(name, Unit.SECONDS, source, meaning, high=86400.0, quirks=quirks)


_HERE: Final = "Of the variant that serves now; starts afresh when it changes."
_CLIENT: Final = "requests, over the policy's slo window"
_ENGINE: Final = "the worker's own timing, over the policy's slo window"

_LATENCY: Final = (
    _seconds(
        "latency.ttft_p95",
        _CLIENT,
        "p95 of the time from a request's arrival to its first token (TTFT).",
        _HERE,
    ),
    _seconds(
        "latency.tpot_p95",
        _CLIENT,
        "p95 of a request's mean time per token after the first (TPOT).",
        f"{_HERE} Requests that crossed a switch don't count.",
    ),
    _seconds(
        "latency.itl_p95",
        _CLIENT,
        "p95 of the gaps between tokens (ITL).",
        f"{_HERE} At most 5 % too large. The pause of a switch isn't in it.",
    ),
    _seconds("latency.engine_ttft_p95", _ENGINE, "p95 of the computing for a first token.", _HERE),
    _seconds(
        "latency.engine_itl_p95",
        _ENGINE,
        "p95 of the computing for a further token.",
        f"{_HERE} At most 5 % too large.",
    ),
    _seconds("queue.wait_p95", _CLIENT, "p95 of the wait until a worker began.", _HERE),
    SignalSpec("queue.depth", Unit.COUNT, "requests", "Requests that wait for a worker."),
    _seconds("queue.oldest", "requests", "How long the longest waiting request has waited."),
    SignalSpec("requests.running", Unit.COUNT, "requests", "Requests that a worker is busy with."),
    _seconds(
        "requests.silent",
        "requests",
        "How long the quietest running stream has brought no token.",
        "Rises during a switch and for paused streams.",
    ),
    _ratio(
        "requests.slo_met",
        _CLIENT,
        "Share of the requests that ended which met every objective of the policy.",
    ),
    SignalSpec(
        "throughput.tokens_per_s",
        Unit.TOKENS_PER_S,
        "requests, over 10 s",
        "Tokens a second, all streams together.",
        high=1e6,
    ),
    SignalSpec(
        "throughput.goodput",
        Unit.PER_S,
        _CLIENT,
        "Requests a second that met every objective of the policy.",
        high=1e6,
    ),
)

_SPECS: Final = (*_MEMORY, *_THERMAL, *_LOAD, *_POWER, *_DISK, *_GPU, *_LATENCY)

SIGNALS: Final[dict[str, SignalSpec]] = {spec.name: spec for spec in _SPECS}

# Families whose members depend on the machine or its owner: a zone's type, a pushed signal's name.
# name prefix -> unit of the members
DYNAMIC_PREFIXES: Final[dict[str, Unit | None]] = {
    "temperature.zone.": Unit.CELSIUS,
    "temperature.hwmon.": Unit.CELSIUS,
    "latency.variant.": Unit.SECONDS,
    "custom.": None,
}


def unit_of(signal: str) -> Unit | None:
    """The unit of a signal; None for one that is unknown or whose owner declares it."""
    spec = SIGNALS.get(signal)
    if spec is not None:
        return spec.unit
    for prefix, unit in DYNAMIC_PREFIXES.items():
        if signal.startswith(prefix):
            return unit
    return None
