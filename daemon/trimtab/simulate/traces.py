"""Published traces as arrays: arrivals, prompt and output tokens. Parsing apart from files."""

from __future__ import annotations

import ast
import csv
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib import resources
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DATA: Final = resources.files("trimtab.simulate") / "data"
WINDOW_S: Final = 600.0
LENGTHS_STEP_S: Final = 21600


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival.

    Attributes:
        arrival_s: Seconds since the first request.
        prompt: Tokens of each prompt.
        output: Tokens of each answer.
    """

    arrival_s: Floats
    prompt: Ints
    output: Ints

    def __len__(self) -> int:
        return len(self.arrival_s)

    def block(self, index: int, size: int) -> Trace:
        """The block of ``size`` requests with this index, its time starting at 0."""
        part = slice(index * size, (index + 1) * size)
        arrival_s = self.arrival_s[part]
        return Trace(arrival_s - arrival_s[0], self.prompt[part], self.output[part])

    def scaled(self, factor: float) -> Trace:
        """Token counts times ``factor``, at least one each."""

        def scale(tokens: Ints) -> Ints:
            rounded: Ints = np.maximum(1, np.rint(tokens * factor)).astype(np.int64)
            return rounded

        return Trace(self.arrival_s, scale(self.prompt), scale(self.output))


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Ten minutes of one ServeGen client.

    Attributes:
        start_s: Since the start of the trace.
        rate_per_s: Requests a second; 0 when idle.
        family: ``Gamma`` or ``Weibull``; empty when idle.
        shape: Of the distribution of gaps.
        scale_s: Of the distribution of gaps.
    """

    start_s: float
    rate_per_s: float
    family: str
    shape: float
    scale_s: float


def parse_azure(text: str) -> Trace:
    """``TIMESTAMP,ContextTokens,GeneratedTokens`` with seven digits of a second's fraction."""
    rows = list(csv.DictReader(text.splitlines()))
    times = [_timestamp_s(row["TIMESTAMP"]) for row in rows]
    arrival_s = np.array(times) - times[0]
    prompt = np.array([int(row["ContextTokens"]) for row in rows])
    output = np.array([int(row["GeneratedTokens"]) for row in rows])
    return Trace(arrival_s, prompt, output)


def _timestamp_s(text: str) -> float:
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")


def parse_mooncake(text: str) -> Trace:
    """``timestamp_ms,input_tokens,output_tokens`` and columns about prefixes, unused here."""
    rows = list(csv.DictReader(text.splitlines()))
    arrival_s = np.array([float(row["timestamp_ms"]) / 1000 for row in rows])
    prompt = np.array([int(row["input_tokens"]) for row in rows])
    output = np.array([int(row["output_tokens"]) for row in rows])
    return Trace(arrival_s - arrival_s[0], prompt, output)


def parse_rates(text: str) -> tuple[RateWindow, ...]:
    """ServeGen's windows: start, rate, CV of the gaps, family, shape, scale."""
    windows = []
    for row in csv.reader(text.splitlines()):
        start, rate, _, family, shape, scale = row
        windows.append(RateWindow(float(start), float(rate), family, float(shape), float(scale)))
    return tuple(windows)


def parse_lengths(text: str) -> dict[int, tuple[dict[int, float], dict[int, float]]]:
    """ServeGen's distributions: start in seconds → (prompt tokens, output tokens) → probability."""
    out = {}
    for start, entry in json.loads(text).items():
        if not entry.get("input_tokens"):
            continue
        prompt = ast.literal_eval(entry["input_tokens"])
        output = ast.literal_eval(entry["output_tokens"])
        if prompt and output:
            out[int(start)] = (prompt, output)
    return out


def read(name: str) -> str:
    """The text of a packed data file."""
    return gzip.decompress((DATA / f"{name}.gz").read_bytes()).decode()


@lru_cache(maxsize=4)
def trace(file: str) -> Trace:
    """A trace by its file name in the scenario set."""
    text = read(file)
    return parse_mooncake(text) if file.startswith("mooncake") else parse_azure(text)


@lru_cache(maxsize=2)
def rates(file: str) -> tuple[RateWindow, ...]:
    """The windows of a ServeGen client."""
    return parse_rates(read(file))


@lru_cache(maxsize=1)
def lengths(file: str) -> dict[int, tuple[dict[int, float], dict[int, float]]]:
    """The token lengths of a ServeGen client."""
    return parse_lengths(read(file))


def sample_day(
    windows: tuple[RateWindow, ...],
    token_lengths: dict[int, tuple[dict[int, float], dict[int, float]]],
    day: int,
    seed: int,
) -> Trace:
    """One day of a ServeGen client, drawn from its windows' distributions.

    Args:
        windows: Of the whole trace.
        token_lengths: Prompt and output lengths, for every six hours.
        day: Which day of the trace.
        seed: Of the drawing.
    """
    rng = np.random.default_rng([seed, day])
    arrivals: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    start_s, end_s = day * 86400.0, (day + 1) * 86400.0
    for window in windows:
        if not start_s <= window.start_s < end_s or window.rate_per_s <= 0:
            continue
        drawn = _gaps(window, rng)
        times = window.start_s - start_s + np.cumsum(drawn)
        times = times[times < window.start_s - start_s + WINDOW_S]
        prompt, output = token_lengths[_nearest(token_lengths, window.start_s)]
        arrivals += times.tolist()
        prompts += rng.choice(list(prompt), len(times), p=_shares(prompt)).tolist()
        outputs += rng.choice(list(output), len(times), p=_shares(output)).tolist()
    return Trace(np.array(arrivals), np.array(prompts), np.array(outputs))


def _gaps(window: RateWindow, rng: np.random.Generator) -> Floats:
    count = int(3 * window.rate_per_s * WINDOW_S) + 20
    if window.family == "Gamma":
        return rng.gamma(window.shape, window.scale_s, count)
    return window.scale_s * rng.weibull(window.shape, count)


def _nearest(token_lengths: Mapping[int, object], start_s: float) -> int:
    return min(token_lengths, key=lambda key: (abs(key - start_s), key))


def _shares(distribution: dict[int, float]) -> Floats:
    weights = np.array(list(distribution.values()))
    shares: Floats = weights / weights.sum()
    return shares
