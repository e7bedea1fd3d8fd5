"""The fixed scenario set: traces under disturbances, and gateway days. Read from `scenarios.yaml`.

What the file leaves open is fixed here. Servegen days keep the client's own times of day, with
token counts scaled so that the day's mean load is `SERVEGEN_RHO`; chat days join consecutive
windows of the half, stretched to their load, until 24 hours are full. Each seed of a gateway day
takes the next of the five workloads, so that all of them appear in a half's five seeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
from ruamel.yaml import YAML

from trimtab.simulate import traces
from trimtab.simulate.conditions import GIB, Conditions, Span, combine, ramp
from trimtab.simulate.ladder import Ladder, Objectives, rung
from trimtab.simulate.traces import Trace

DAY_S: Final = 86400.0
RAMP_STEP_S: Final = 300.0
SERVEGEN_RHO: Final = 0.6
DAY_SWITCH_COST_S: Final = 0.5
CHAT_RHOS: Final = (0.3, 0.6, 0.9)
CLIENTS: Final = (
    "servegen_mmid_chunk98_edge_rate.trace.csv",
    "servegen_mlarge_chunk92_edge_rate_bursty.trace.csv",
)
CLIENT_LENGTHS: Final = "servegen_mmid_chunk98_edge_rate.dataset.json"
# Token counts of a gateway day's chat windows: an 8B model gets the trace runs' share.
DAY_TOKEN_SCALES: Final = {"llm8b": 0.25, "smollm2": 1.0}


class Half(StrEnum):
    """Which part of the set: one to tune on, one to report."""

    TUNE = "tune"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run.

    Attributes:
        name: Unique in the set.
        kind: ``chat``, ``code``, ``long`` or ``day``.
        ladder: The variants.
        trace: The requests.
        conditions: Memory and speed over time.
        objectives: The SLO.
        switch_cost_s: How long a change of variant stops the engine.
        over_cap_slowdown: How much slower a variant over the memory cap is.
        length_s: From the first to the last arrival, or a day.
    """

    name: str
    kind: str
    ladder: Ladder
    trace: Trace
    conditions: Conditions
    objectives: Objectives
    switch_cost_s: float
    over_cap_slowdown: float
    length_s: float


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """The scenario file."""
    text = (traces.DATA / "scenarios.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return loaded


@lru_cache(maxsize=4)
def ladder(name: str) -> Ladder:
    """A ladder by name."""
    entry = document()["ladders"][name]
    bandwidth, prefill = entry.get("bandwidth_bytes_s"), entry.get("prefill_tokens_s", 0.0)
    return Ladder(
        name,
        tuple(rung(key, value, bandwidth, prefill) for key, value in entry["variants"].items()),
    )


def objectives() -> Objectives:
    """The SLO's four numbers, from the formulas in the file."""
    slo = document()["slo"]
    first = re.fullmatch(r"([\d.]+) \+ ([\d.]+) \* prompt / prefill", slo["ttft_s"])
    end = re.fullmatch(
        r"([\d.]+) \+ ([\d.]+) \* \(prompt / prefill \+ output / decode_best\)", slo["end_to_end_s"]
    )
    if first is None or end is None:
        raise ValueError("scenarios.yaml: the formulas under slo have another form than expected")
    return Objectives(float(first[1]), float(first[2]), float(end[1]), float(end[2]))


def stretched(trace: Trace, steps: Ladder, rho: float) -> Trace:
    """The trace with its gaps multiplied so that load on the best variant is ``rho``."""
    work_s = float(steps.work_s(trace).sum())
    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    return Trace(
        (trace.arrival_s - trace.arrival_s[0]) * (work_s / rho / span_s), trace.prompt, trace.output
    )


# ---------------------------------------------------------------- traces


def trace_scenarios(half: Half, kind: str) -> Iterator[Scenario]:
    """All runs of one kind of trace: window × load × disturbance × switch cost."""
    spec = document()["traces"][kind]
    steps = ladder(spec["ladder"])
    for window in document()["windows"][half][kind]:
        block = traces.trace(spec["file"]).block(window, spec["requests"])
        for rho in spec["rho"]:
            trace = stretched(block.scaled(spec["token_scale"]), steps, rho)
            length_s = float(trace.arrival_s[-1])
            for name, disturbance in document()["disturbances"].items():
                conditions = _relative(disturbance, length_s, steps)
                for switch_cost_s in document()["switch_cost_s"]:
                    yield Scenario(
                        f"{kind}-{window}-rho{rho}-{name}-switch{switch_cost_s}",
                        kind,
                        steps,
                        trace,
                        conditions,
                        objectives(),
                        switch_cost_s,
                        document()["over_cap"]["slowdown"],
                        length_s,
                    )


def _relative(disturbance: dict[str, Any], length_s: float, steps: Ladder) -> Conditions:
    speeds = [
        Span(one["from"] * length_s, one["to"] * length_s, one["factor"])
        for one in disturbance.get("speed", ())
    ]
    caps = [
        Span(one["from"] * length_s, one["to"] * length_s, one["gib"] * GIB)
        for one in disturbance.get("cap", ())
    ]
    return combine(speeds, caps, steps.cap_bytes("best"))


# ---------------------------------------------------------------- gateway days


def day_names() -> tuple[str, ...]:
    """The gateway days of the set."""
    return tuple(name for name in document()["gateway_days"] if name != "seeds")


def day_scenarios(half: Half) -> Iterator[Scenario]:
    """All gateway days of a half: day × seed × ladder."""
    seeds = document()["gateway_days"]["seeds"][half]
    for name in day_names():
        for position, seed in enumerate(seeds):
            for ladder_name in document()["ladders"]:
                yield day_scenario(name, ladder(ladder_name), half, position, seed)


def day_scenario(name: str, steps: Ladder, half: Half, position: int, seed: int) -> Scenario:
    """One gateway day; ``position`` picks the workload."""
    source, trace = _day_trace(steps, half, position, seed)
    return Scenario(
        f"day-{name}-{steps.name}-{source}-seed{seed}",
        "day",
        steps,
        trace,
        day_conditions(name, steps, seed),
        objectives(),
        DAY_SWITCH_COST_S,
        document()["over_cap"]["slowdown"],
        DAY_S,
    )


def _day_trace(steps: Ladder, half: Half, position: int, seed: int) -> tuple[str, Trace]:
    workload = position % (len(CHAT_RHOS) + len(CLIENTS))
    if workload < len(CHAT_RHOS):
        rho = CHAT_RHOS[workload]
        return f"chat{rho}", _chat_day(steps, half, rho, seed)
    file = CLIENTS[workload - len(CHAT_RHOS)]
    return file.split("_")[1], _client_day(steps, file, seed)


@lru_cache(maxsize=16)
def _chat_day(steps: Ladder, half: Half, rho: float, seed: int) -> Trace:
    windows = document()["windows"][half]["chat"]
    spec = document()["traces"]["chat"]
    parts, offset_s, turn = [], 0.0, seed
    while offset_s < DAY_S:
        block = traces.trace(spec["file"]).block(windows[turn % len(windows)], spec["requests"])
        part = stretched(block.scaled(DAY_TOKEN_SCALES[steps.name]), steps, rho)
        parts.append(Trace(part.arrival_s + offset_s, part.prompt, part.output))
        offset_s += float(part.arrival_s[-1])
        turn += 1
    return _until(DAY_S, parts)


@lru_cache(maxsize=16)
def _client_day(steps: Ladder, file: str, seed: int) -> Trace:
    windows = traces.rates(file)
    days = [
        day
        for day in range(int(windows[-1].start_s // DAY_S) + 1)
        if sum(one.rate_per_s > 0 for one in windows[day * 144 : (day + 1) * 144]) >= 24
    ]
    day = traces.sample_day(windows, traces.lengths(CLIENT_LENGTHS), days[seed % len(days)], seed)
    # Work is nearly linear in the scale; rounding up single tokens keeps it from being exactly so.
    rho = float(steps.work_s(day).sum()) / DAY_S
    return day.scaled(SERVEGEN_RHO / rho)


def _until(end_s: float, parts: list[Trace]) -> Trace:
    arrival_s = np.concatenate([part.arrival_s for part in parts])
    keep = arrival_s < end_s
    prompt = np.concatenate([part.prompt for part in parts])
    output = np.concatenate([part.output for part in parts])
    return Trace(arrival_s[keep], prompt[keep], output[keep])


def day_conditions(name: str, steps: Ladder, seed: int) -> Conditions:
    """What a gateway day does to memory and speed."""
    days = document()["gateway_days"]
    parts = [days[part] for part in days[name].get("all_of", [name])]
    speeds: list[Span] = []
    caps: list[Span] = []
    for part in parts:
        caps += _day_caps(part, steps)
        for one in part.get("speed", ()):
            speeds += _alternating(one)
        if "speed_random" in part:
            speeds += _stolen(part["speed_random"], seed)
    return combine(speeds, caps, steps.cap_bytes("best"))


def _day_caps(part: dict[str, Any], steps: Ladder) -> list[Span]:
    caps = [
        Span(_clock_s(one["from"]), _clock_s(one["to"]), steps.cap_bytes(one["fits"]))
        for one in part.get("cap", ())
    ]
    if "cap_ramp" in part:
        one = part["cap_ramp"]
        top, bottom = steps.cap_bytes(one["from_fits"]), steps.cap_bytes(one["to_fits"])
        caps += ramp(
            _clock_s(one["from"]),
            _clock_s(one["to"]),
            lambda share: top + share * (bottom - top),
            RAMP_STEP_S,
        )
    return caps


def _alternating(one: dict[str, Any]) -> list[Span]:
    """A speed that changes between two factors, half a period each."""
    start_s, end_s, half_s = _clock_s(one["from"]), _clock_s(one["to"]), one["period_min"] * 30.0
    spans, factors, turn = [], (one["factor"], one["alternate"]), 0
    while start_s < end_s:
        spans.append(Span(start_s, min(start_s + half_s, end_s), factors[turn % 2]))
        start_s += half_s
        turn += 1
    return spans


def _stolen(one: dict[str, Any], seed: int) -> list[Span]:
    rng = np.random.default_rng([seed, 8])
    length_s = one["minutes"] * 60.0
    slots = rng.choice(int(DAY_S // length_s), one["count"], replace=False)  # they never overlap
    return [Span(slot * length_s, (slot + 1) * length_s, one["factor"]) for slot in sorted(slots)]


def _clock_s(text: str) -> float:
    hours, minutes = text.split(":")
    return int(hours) * 3600.0 + int(minutes) * 60.0
