"""The signals of the board: heat, processor, power, disk, clock, GPU."""

from __future__ import annotations

from typing import Final

from trimtab.domain.readings import Unit
from trimtab.signals.spec import MOST_RATE, SignalSpec, in_bytes, ratio, stalls

THERMAL: Final = (
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

LOAD: Final = (
    ratio("cpu.busy", "/proc/stat", "Share of all cores' time that was worked."),
    ratio(
        "cpu.own",
        "utime + stime in /proc/PID/stat of the daemon and its workers",
        "Share of all cores' time that the daemon and its workers took.",
    ),
    ratio("cpu.others", "cpu.busy − cpu.own", "Share of all cores' time that others took."),
    ratio(
        "cpu.steal",
        "steal in /proc/stat",
        "Share of time that the hypervisor gave to other machines.",
    ),
    ratio("cpu.iowait", "iowait in /proc/stat", "Share of time that cores idled behind a disk."),
    SignalSpec(
        "cpu.frequency",
        Unit.HERTZ,
        "scaling_cur_freq of the fastest core",
        "The fastest core's frequency now.",
        high=2e10,
    ),
    ratio(
        "cpu.frequency_cap",
        "scaling_max_freq ÷ cpuinfo_max_freq, the least of all cores",
        "How much of its top frequency the most limited core may use.",
        "Lowered by thermal throttling, but by a person's power setting as well.",
    ),
    *stalls("cpu.psi", "/proc/pressure/cpu", "a core", ("some",)),
    *stalls("io.psi", "/proc/pressure/io", "a disk", ("some", "full")),
)

POWER: Final = (
    SignalSpec(
        "power.mains",
        Unit.BOOL,
        "online in /sys/class/power_supply/*",
        "1 on mains, 0 on battery.",
        high=1.0,
    ),
    ratio(
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

DISK: Final = (
    in_bytes(
        "disk.free",
        "statvfs of the state directory",
        "Space that an unprivileged process may still use there.",
    ),
    SignalSpec(
        "disk.own_write_rate",
        Unit.BYTES_PER_S,
        "write_bytes in /proc/PID/io of the daemon and its workers",
        "How fast the daemon and its workers write to disks.",
        high=MOST_RATE,
    ),
    in_bytes(
        "disk.own_written",
        "write_bytes − cancelled_write_bytes in /proc/PID/io, summed since start",
        "What they have written since the daemon started: flash wears by it.",
    ),
    ratio(
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

GPU: Final = (
    ratio("gpu.busy", "NVML, or sysfs on Jetson, RK3588 and AMD", "Load of the busiest GPU."),
    in_bytes(
        "gpu.memory.free",
        "NVML, mem_info_vram_* on AMD; memory.available where the GPU has no memory of its own",
        "Memory that the GPU could still be given.",
        "Never counts for models that run on the CPU: a small carve-out is full at all times.",
    ),
    SignalSpec("gpu.temperature", Unit.CELSIUS, "NVML", "The hottest GPU.", low=-40.0, high=150.0),
)
