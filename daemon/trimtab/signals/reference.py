"""The reference of all signals for docs/signals.md, made from the registry."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final

from trimtab.signals.registry import DYNAMIC_PREFIXES, SIGNALS, SignalSpec

BEGIN: Final = "<!-- made by `trimtab signals --markdown`: don't edit below -->"

_AREAS: Final[dict[str, str]] = {
    "memory": "Memory",
    "temperature": "Temperature",
    "cpu": "Processor",
    "io": "Disk pressure",
    "power": "Power",
    "disk": "Disk",
    "clock": "Clock",
    "gpu": "GPU",
    "latency": "Latency",
    "queue": "Queue",
    "requests": "Requests",
    "throughput": "Throughput",
    "kv": "KV cache",
}
_FAMILIES: Final[dict[str, str]] = {
    "temperature.zone.": "The hottest thermal zone of one type, such as "
    "`temperature.zone.cpu_thermal`. Zones on the board profile's deny-list are suspect.",
    "temperature.hwmon.": "One hwmon sensor by chip and label, such as "
    "`temperature.hwmon.coretemp.package_id_0`.",
    "latency.variant.": "The latency figures of one variant, such as "
    "`latency.variant.int8.itl_p95`; kept while they are younger than the window.",
    "custom.": "Numbers from files and pushed values, in the unit that their owner declares.",
}


def signal_reference() -> str:
    """Markdown: a section for each area, a table of its signals, the families at the end."""
    parts = [BEGIN, ""]
    for area, specs in groupby(SIGNALS.values(), key=lambda spec: spec.name.split(".")[0]):
        parts += _section(_AREAS[area], list(specs))
    parts += ["### Families", "", "Their members depend on the machine or its owner.", ""]
    parts += ["| family | unit | what |", "|---|---|---|"]
    parts += [
        f"| `{prefix}*` | {unit or 'declared'} | {_FAMILIES[prefix]} |"
        for prefix, unit in DYNAMIC_PREFIXES.items()
    ]
    return "\n".join([*parts, ""])


def _section(title: str, specs: Iterable[SignalSpec]) -> list[str]:
    rows = [f"| `{spec.name}` | {spec.unit} | {spec.meaning} | {_source(spec)} |" for spec in specs]
    head = ["| signal | unit | meaning | source and quirks |", "|---|---|---|---|"]
    return [f"### {title}", "", *head, *rows, ""]


def _source(spec: SignalSpec) -> str:
    return f"{spec.source}. {spec.quirks}".strip()
