"""How each kind of measurement is made with a real worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trimtab.domain.clock import Clock
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.profile import STOLEN, Kind, Measurement
from trimtab.errors import EngineError, StateError
from trimtab.profile.burner import stolen_core
from trimtab.profile.disk_rate import measure_disk
from trimtab.profile.page_cache import drop
from trimtab.profile.quiet import BUSY
from trimtab.profile.schedule import Step
from trimtab.profile.session import Session, Times
from trimtab.profile.texts import TEXTS
from trimtab.serving.claims import shape_of
from trimtab.serving.segments import Segment
from trimtab.workers.worker import Launch

SPECULATION_TOKENS: Final = 64
HANDOVER_TOKENS: Final = 8
UNDISTURBED: Final = (Kind.RESIDENT, Kind.SHARED, Kind.IN_USE, Kind.KV)
"""What a worker holds is the same whatever else runs."""

NOT_COLD_RATIO: Final = 0.05


class Bench:
    """One session with what its measurements share: prompt tokens and a KV segment.

    Args:
        model: The model.
        session: A worker that has loaded one of its variants.
        text: Long enough for the longest prompt.
        decode_tokens: Tokens of one sample of decoding.
        folder: On the disk whose speed counts.
        clock: Time.
    """

    def __init__(
        self,
        model: ModelSpec,
        session: Session,
        text: str,
        decode_tokens: int,
        folder: Path,
        clock: Clock,
    ) -> None:
        self._model = model
        self._session = session
        self._text = text
        self._decode_tokens = decode_tokens
        self._folder = folder
        self._clock = clock
        self._tokens: list[int] = []
        self._segment: Segment | None = None
        self._filled = 0
        self.marks: tuple[str, ...] = ()

    @property
    def variant(self) -> VariantSpec:
        """What the worker has loaded."""
        return self._session.launch.variant

    def close(self) -> None:
        """Give the segment back."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    async def make(self, step: Step) -> list[Measurement]:
        """Everything that a step measures; some give two figures at once.

        Raises:
            EngineError: The worker refuses or fails.
            WorkerError: The worker died.
        """
        match step.kind:
            case Kind.LOAD_WARM:
                session = self._session
                return [self._one(step, [session.load_s], [session.load_wait_ratio])]
            case Kind.RESIDENT:
                return await self._resident(step)
            case Kind.TTFT:
                return await self._first_tokens(step)
            case Kind.DECODE:
                return [await self._decode(step)]
            case Kind.SPECULATION:
                return await self._speculation(step)
            case Kind.OFFLOAD:
                return await self._disk(step)
            case _:
                raise EngineError(f"{step.kind} isn't measured in a session")

    def _one(
        self,
        step: Step,
        values: Sequence[float],
        waits: Sequence[float] = (),
        *,
        kind: Kind | None = None,
    ) -> Measurement:
        kind = kind or step.kind
        return Measurement(
            kind=kind,
            values=tuple(values),
            variant=step.variant,
            threads=step.threads,
            tokens=step.tokens,
            detail=step.detail,
            wait_ratios=tuple(round(wait, 4) for wait in waits),
            marks=() if kind in UNDISTURBED else self.marks,
        )

    async def _resident(self, step: Step) -> list[Measurement]:
        held = await self._session.holdings()
        return [
            self._one(step, [held.anonymous_bytes]),
            self._one(step, [held.file_bytes], kind=Kind.SHARED),
        ]

    async def _first_tokens(self, step: Step) -> list[Measurement]:
        """Prompts of one length, each into an empty segment."""
        runs = []
        prompt = await self._prompt(step.tokens)
        segment = None
        for _ in range(step.repeats):
            segment = self._fresh_segment()
            runs.append(await self._session.stream(prompt, 2, segment=segment))
        self._filled = step.tokens
        found = [
            self._one(step, [r.first_s for r in runs], [r.first_wait_ratio for r in runs]),
            self._one(step, [r.anonymous_bytes for r in runs], kind=Kind.IN_USE),
        ]
        if segment is not None:
            found.append(self._one(step, [segment.committed_bytes()], kind=Kind.KV))
        return found

    async def _decode(self, step: Step) -> Measurement:
        if step.detail == STOLEN:
            if BUSY in self.marks:
                raise EngineError("others use the cores: what one more takes can't be told")
            async with stolen_core():
                runs = await self._decode_runs(step)
            return self._one(step, [run.token_wall_s for run in runs])
        runs = await self._decode_runs(step)
        waits = [run.token_wait_ratio for run in runs]
        return self._one(step, [run.token_s for run in runs], waits)

    async def _decode_runs(self, step: Step) -> list[Times]:
        prompt = await self._prompt(step.tokens)
        segment = self._segment or self._fresh_segment()
        if segment is not None and self._filled < step.tokens:
            await self._session.stream(prompt, 1, segment=segment)
            self._filled = step.tokens
        valid = step.tokens - 1 if segment is not None else 0
        return [
            await self._session.stream(prompt, self._decode_tokens, segment=segment, valid=valid)
            for _ in range(step.repeats)
        ]

    async def _speculation(self, step: Step) -> list[Measurement]:
        """Without and with n-gram drafts in turn: A B B A, so that a drift hits both alike."""
        ready = self._session.ready
        if ready is None or "ngram" not in ready.speculation:
            raise EngineError("this decoder has no n-gram drafting")
        prompt = await self._session.prompt_of(TEXTS[step.detail])
        ratios, waits, drafted, accepted = [], [], 0, 0
        for number in range(step.repeats):
            order = ("off", "ngram") if number % 2 == 0 else ("ngram", "off")
            times = {}
            for mode in order:
                self._session.speculate(mode)
                times[mode] = await self._session.stream(prompt, SPECULATION_TOKENS)
            ratios.append(times["off"].token_s / times["ngram"].token_s)
            waits.append(max(run.token_wait_ratio for run in times.values()))
            end = times["ngram"].end
            drafted += end.drafted if end is not None else 0
            accepted += end.accepted if end is not None else 0
        self._session.speculate("off")
        share = accepted / drafted if drafted else 0.0
        return [self._one(step, ratios, waits), self._one(step, [share], kind=Kind.ACCEPTANCE)]

    async def _disk(self, step: Step) -> list[Measurement]:
        if self._segment is None or self._filled < step.tokens:
            prompt = await self._prompt(step.tokens)
            await self._session.stream(prompt, 1, segment=self._fresh_segment())
        if self._segment is None:
            raise EngineError("this decoder has no KV segments")
        length = min(self._segment.committed_bytes(), self._segment.size_bytes)
        try:
            rates = await asyncio.to_thread(
                measure_disk, self._segment, length, self._folder, self._clock.monotonic_s
            )
        except StateError as error:  # a full disk is no reason to give up the rest
            raise EngineError(error.message) from error
        return [
            self._one(step, [rates.offload]),
            self._one(step, [rates.restore], kind=Kind.RESTORE),
        ]

    async def cross_to(
        self, target: Session, step: Step
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Begin a conversation here, and go on with its KV in another worker.

        Returns:
            Seconds until the other's first token, and the shares of them without a core.

        Raises:
            EngineError: One of the two has no KV segments, or refuses.
        """
        if not (self._session.has_segments and target.has_segments):
            raise EngineError("a hand-over needs KV segments on both sides")
        prompt = await self._prompt(step.tokens)
        runs = []
        for _ in range(step.repeats):
            segment = self._fresh_segment()
            begun = await self._session.stream(prompt, HANDOVER_TOKENS, segment=segment)
            runs.append(
                await target.stream(
                    prompt,
                    HANDOVER_TOKENS + 2,
                    generated=begun.ids,
                    segment=segment,
                    valid=len(prompt) + len(begun.ids) - 1,
                )
            )
        return tuple(r.first_s for r in runs), tuple(r.first_wait_ratio for r in runs)

    async def _prompt(self, length: int) -> list[int]:
        while len(self._tokens) < length:
            more = await self._session.tokens_of(self._text)
            self._tokens += more
        return self._tokens[:length]

    def _fresh_segment(self) -> Segment | None:
        """An empty segment for the worker, if it can take one."""
        self.close()
        self._filled = 0
        if self._session.has_segments:
            capacity = self._session.launch.context
            self._segment = Segment(shape_of(self._model, self.variant), capacity)
        return self._segment


async def load_cold(step: Step, variant: VariantSpec, launch: Launch, clock: Clock) -> Measurement:
    """Loading with the variant's files dropped from the page cache.

    Raises:
        LoadError: It does not load.
        WorkerError: The worker died.
    """
    try:
        kept = await asyncio.to_thread(drop, Path(variant.folder))
    except OSError as error:
        raise EngineError(f"{variant.folder}: {error.strerror}") from error
    async with Session(launch, clock) as session:
        wait = round(session.load_wait_ratio, 4)
        marks = ("not cold",) if kept > NOT_COLD_RATIO else ()
        return Measurement(
            step.kind, (session.load_s,), step.variant, step.threads, 0, "", (wait,), marks
        )


async def hand_over(
    step: Step, model: ModelSpec, source: Bench, target: Launch, clock: Clock
) -> Measurement:
    """The pause that a client sees: last token in one worker, first in the other, same KV.

    Raises:
        EngineError: One of them refuses.
        WorkerError: One of them died.
    """
    async with Session(target, clock) as session:
        values, waits = await source.cross_to(session, step)
    return Measurement(
        step.kind, values, step.variant, step.threads, step.tokens, step.detail, waits
    )
