"""The processor's name: speeds that were seen on one say nothing about another."""

from __future__ import annotations


def parse_cpu_name(text: str) -> str:
    """The processor's name in ``/proc/cpuinfo``: x86 has a model name, ARM a part number."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if "model name" in fields:
        return fields["model name"]
    part = " ".join(fields[name] for name in ("CPU implementer", "CPU part") if name in fields)
    return f"ARM {part}" if part else "unknown"
