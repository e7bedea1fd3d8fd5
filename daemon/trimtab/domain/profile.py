"""What was measured on a device: values, no files. Made by `trimtab profile`, used by the planner.

Rates are kept as seconds (for a token, for a first token), since seconds add up and rates don't.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import exp
from statistics import median
from typing import Final

CLEAN_WAIT_RATIO: Final = 0.05
"""A sample whose engine waited longer than this share for a core was disturbed."""

MAD_TO_SIGMA: Final = 1.4826
"""Turns a median absolute deviation into a standard deviation of a normal distribution."""


class Kind(StrEnum):
    """What a measurement is of, and in which unit."""

    BANDWIDTH = "bandwidth"  # bytes/s read from memory by `threads` threads
    LOAD_COLD = "load_cold"  # s, the variant's files dropped from the page cache before
    LOAD_WARM = "load_warm"  # s
    RESIDENT = "resident"  # anonymous bytes of a worker that has just loaded
    SHARED = "shared"  # its resident pages of files
    IN_USE = "in_use"  # anonymous bytes at the first token after a prompt of `tokens`
    KV = "kv"  # bytes that a segment commits with `tokens` written
    TTFT = "ttft"  # s from the request to its first token, prompt of `tokens`
    DECODE = "decode"  # s for each token, with `tokens` in the cache
    SPECULATION = "speculation"  # n-gram drafting: tokens/s ÷ without, on the text in `detail`
    ACCEPTANCE = "acceptance"  # share of its drafts that were right
    HANDOVER = "handover"  # s from the last token in `variant` to the first in `detail`
    OFFLOAD = "offload"  # bytes/s, KV from memory to disk
    RESTORE = "restore"  # bytes/s, back
    TEMPERATURE = "temperature"  # °C, the hottest zone at the end of the variant's session


STOLEN: Final = "stolen core"
"""The `detail` of what was measured while another process kept one core busy."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One quantity, measured several times.

    Attributes:
        kind: What it is.
        values: The samples, in the kind's unit. Times are without the time in which the engine was
            ready to run and had no core.
        variant: Of which variant; empty for the device's own.
        threads: Engine threads; 0 where they don't matter.
        tokens: Context or prompt length; 0 where it doesn't matter.
        detail: The kind of text, the target of a hand-over, or `STOLEN`.
        wait_ratios: For each sample, the share of its time on the wall in which the engine had no
            core; empty where that isn't known.
        marks: What else makes the samples doubtful: `busy`, `hot`, `not cold`.
    """

    kind: Kind
    values: tuple[float, ...]
    variant: str = ""
    threads: int = 0
    tokens: int = 0
    detail: str = ""
    wait_ratios: tuple[float, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, int, int, str]:
        """What it is of: two measurements with one key are of the same thing."""
        return (self.kind.value, self.variant, self.threads, self.tokens, self.detail)

    @property
    def trusted(self) -> tuple[float, ...]:
        """The undisturbed samples; all of them if there are none."""
        pairs = zip(self.values, self.wait_ratios, strict=False)
        clean = tuple(value for value, wait in pairs if wait <= CLEAN_WAIT_RATIO)
        return clean or self.values

    @property
    def value(self) -> float:
        """The median of the samples that can be trusted."""
        return median(self.trusted)

    @property
    def disturbed(self) -> bool:
        """True if not one sample was taken undisturbed."""
        known = bool(self.wait_ratios)
        return bool(self.marks) or (known and min(self.wait_ratios) > CLEAN_WAIT_RATIO)

    @property
    def spread_ratio(self) -> float:
        """Standard deviation of the trusted samples relative to their median, robustly."""
        middle = self.value
        if len(self.trusted) < 2 or middle == 0:
            return 0.0
        return MAD_TO_SIGMA * median(abs(value - middle) for value in self.trusted) / abs(middle)


@dataclass(frozen=True, slots=True)
class Device:
    """What tells one device from another.

    Attributes:
        machine: A hash of the machine's id; empty if it has none.
        cpu: The processor's name.
        cores: Cores that we may use.
        memory_bytes: All of it.
        board: The board profile that was recognised.
    """

    machine: str
    cpu: str
    cores: int
    memory_bytes: int
    board: str


@dataclass(frozen=True, slots=True)
class TaskQuality:
    """How good one variant is at one task.

    Attributes:
        task: `text` for a plain text, else the user's name for it.
        tokens: Tokens that were predicted.
        perplexity: exp of the mean surprise, over them.
        perplexity_low: Lower end of its 95 % interval.
        perplexity_high: Upper end.
        mean_kl: To the best variant, in nats for each token.
        kl_low: Lower end of its 95 % interval.
        kl_high: Upper end.
        agreement: Share of positions with the best variant's likeliest token.
        asked: Prompts with an expected answer.
        right: How many were answered exactly.
    """

    task: str
    tokens: int
    perplexity: float
    perplexity_low: float
    perplexity_high: float
    mean_kl: float
    kl_low: float
    kl_high: float
    agreement: float
    asked: int = 0
    right: int = 0

    @property
    def quality_ratio(self) -> float:
        """exp(−mean KL), as everywhere."""
        return exp(-self.mean_kl)


@dataclass(frozen=True, slots=True)
class VariantQuality:
    """One variant's quality, task by task."""

    variant: str
    tasks: tuple[TaskQuality, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything that was measured of one model on one device.

    Attributes:
        device: Where.
        versions: Of what the figures depend on, by name.
        model_id: Of which model.
        variants: What each variant's files were, by name: a hash over their names and sizes.
        mode: `quick` or `full`.
        started_s: Wall-clock time of its beginning, in seconds since the epoch.
        finished_s: Of its end; None while something is missing.
        measurements: In the order in which they were made; one for each key.
        quality: By variant, if it was measured.
        quality_source: The text or file that it was measured with.
        left_out: What couldn't be measured, and why.
    """

    device: Device
    versions: dict[str, str]
    model_id: str
    variants: dict[str, str]
    mode: str
    started_s: float
    finished_s: float | None = None
    measurements: tuple[Measurement, ...] = ()
    quality: tuple[VariantQuality, ...] = ()
    quality_source: str = ""
    left_out: tuple[str, ...] = ()

    def find(
        self, kind: Kind, variant: str = "", threads: int = 0, tokens: int = 0, detail: str = ""
    ) -> Measurement | None:
        """The measurement of exactly that, or None."""
        key = (kind.value, variant, threads, tokens, detail)
        return next((one for one in self.measurements if one.key == key), None)

    def all(self, kind: Kind, variant: str | None = None) -> tuple[Measurement, ...]:
        """All measurements of a kind, of one variant or of all."""
        return tuple(
            one
            for one in self.measurements
            if one.kind is kind and (variant is None or one.variant == variant)
        )
