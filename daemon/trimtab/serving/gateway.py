"""From a request to a stream: which model, which prompt, is there room."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from trimtab.domain.clock import Clock
from trimtab.domain.models import ModelSpec
from trimtab.domain.view import SINKS, WHOLE, View, fits
from trimtab.errors import RequestError, ServingError, SilentWorkerError, WorkerError
from trimtab.policy.compiled import Policy
from trimtab.serving.carrier import Carrier
from trimtab.serving.prompts import beginning, render
from trimtab.serving.refusals import shutting_down
from trimtab.serving.requests import GenerationRequest
from trimtab.serving.stream import Stream
from trimtab.serving.streams import Streams
from trimtab.workers.protocol import Guide
from trimtab.workers.worker import Worker, WorkerState

RENDER_ATTEMPTS: Final = 3
GONE_POLL_S: Final = 0.01
POOL_HINT: Final = "The policy's kv.pool has no room for more; a larger one would."
NO_MODEL_HINT: Final = "`trimtab models build smollm2-135m` makes one."


class Gateway:
    """Admits requests.

    Args:
        streams: Where admitted requests go.
        carrier: Finds KV that a request can begin with.
        clock: For arrival times.
        request_waits: Called when a request comes and nothing is loaded.

    Attributes:
        why_not_loaded: What one is told for which nothing is loaded in time.
        on_request: Called when a request comes, before anything is asked of a worker.
    """

    def __init__(
        self,
        streams: Streams,
        carrier: Carrier,
        clock: Clock,
        request_waits: Callable[[], None],
    ) -> None:
        self._streams = streams
        self._carrier = carrier
        self._clock = clock
        self._request_waits = request_waits
        self._numbers = itertools.count(1)
        self._rendering: set[asyncio.Timeout] = set()
        self._model: ModelSpec | None = None
        self._policy: Policy | None = None
        self._context = 0
        self._draining = self._closed = False
        self.why_not_loaded = ""
        self.on_request: Callable[[], None] | None = None

    def configure(self, *, model: ModelSpec | None, policy: Policy | None) -> None:
        """What is served from now on."""
        self._model = model
        self._policy = policy

    def admit(self, context: int) -> None:
        """Conversations may have so many tokens from now on, as far as the KV pool has room."""
        self._context = context

    def drain(self) -> None:
        """Admit nothing more: the daemon is going down."""
        self._draining = True

    def close(self) -> None:
        """Wait no longer for those that aren't in the queue yet: each is told so."""
        self._closed = True
        for limit in self._rendering:
            limit.reschedule(0.0)

    @property
    def rendering(self) -> int:
        """Requests that aren't in the queue yet: they have no prompt, or their KV is on its way."""
        return len(self._rendering)

    def model(self) -> ModelSpec | None:
        """The model that is served; None if there is none."""
        return self._model

    def effective_context(self) -> int:
        """Tokens that a conversation admitted now may hold."""
        return int(min(self._context, self._carrier.most_tokens(self._streams.active)))

    async def submit(self, request: GenerationRequest) -> Stream:
        """Tokenize, admit and queue a request (see `Inference.submit`)."""
        arrived_s = self._clock.monotonic_s()
        policy, model = self._check(request)
        request = _in_the_models_way(request, model)
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._rendering.add(limit)
                stream = await self._prepared(request, policy, arrived_s)
        except TimeoutError as error:
            raise shutting_down() from error
        finally:
            self._rendering.discard(limit)
        if self._closed:  # it was ready in the moment in which the time was over
            self._carrier.ended(stream)
            raise shutting_down()
        self._streams.add(stream)
        return stream

    async def _prepared(
        self, request: GenerationRequest, policy: Policy, arrived_s: float
    ) -> Stream:
        """A stream with its prompt, and with KV to begin with if there is any."""
        if self.on_request is not None:
            self.on_request()
        prompt, view, worker = await self._read(request, policy)
        stream = self._stream(request, policy, prompt, view, arrived_s)
        await self._carrier.prefixes.at_arrival(stream, worker, self._streams.all())
        return stream

    def _stream(
        self,
        request: GenerationRequest,
        policy: Policy,
        prompt: list[int],
        view: View,
        arrived_s: float,
    ) -> Stream:
        context = self.effective_context()
        longest = request.max_tokens or context
        if not view.shifts:
            room = context - len(prompt)
            if room <= 0:
                raise RequestError(
                    f"the prompt has {len(prompt)} tokens, and the effective context is {context} "
                    "tokens for prompt and answer together",
                    param=request.prompt_field,
                    code="context_length_exceeded",
                    hint=POOL_HINT if context < self._context else "",
                )
            longest = min(longest, room)
        elif len(prompt) >= context:
            view = view.narrowed(len(prompt) - 1, context)  # its last token is computed
        return Stream(
            next(self._numbers),
            request,
            prompt,
            max_tokens=longest,
            context=context,
            revision=policy.revision,
            at_s=arrived_s,
            on_cancel=self._streams.cancel,
            view=view,
        )

    async def _view(
        self, request: GenerationRequest, policy: Policy, prompt: list[int], worker: Worker
    ) -> View:
        """Whether a conversation may go on past the context, and what stays of it then.

        Raises:
            WorkerError: The worker is gone.
        """
        window = policy.knobs.window
        if not window.shift:
            return WHOLE
        keep = window.keep
        if keep is None:
            max_wait_s = policy.admission.max_wait_s
            try:
                keep = max(SINKS, await beginning(request, prompt, worker, max_wait_s))
            except SilentWorkerError:  # it is busy; the prompt is there
                keep = SINKS
        return View(keep) if fits(keep, self.effective_context()) else WHOLE

    def _check(self, request: GenerationRequest) -> tuple[Policy, ModelSpec]:
        if self._draining:
            raise ServingError("the daemon is shutting down", code="draining", retry_after_s=5)
        if self._model is None or self._policy is None:
            raise ServingError("there is no model to serve", code="no_model", hint=NO_MODEL_HINT)
        if request.model != self._model.model_id:
            raise RequestError(
                f"the model {request.model!r} does not exist here; "
                f"this daemon serves {self._model.model_id!r}",
                param="model",
                status=404,
                code="model_not_found",
            )
        if self._streams.full(self.rendering):
            raise ServingError(
                f"the queue is full ({self._policy.admission.queue} requests wait)",
                status=429,
                code="queue_full",
                retry_after_s=2,
            )
        return self._policy, self._model

    async def _read(
        self, request: GenerationRequest, policy: Policy
    ) -> tuple[list[int], View, Worker]:
        """The prompt's tokens, what stays of them in a full window, and the worker that told."""
        max_wait_s = policy.admission.max_wait_s
        deadline_s = self._clock.monotonic_s() + max_wait_s
        attempts = 0
        while True:
            if self._streams.active is None:
                self._request_waits()
            left_s = deadline_s - self._clock.monotonic_s()
            worker = await self._streams.wait_for_worker(max(0.0, left_s))
            if worker is None or left_s <= 0:
                reason = self.why_not_loaded or "no variant could be loaded"
                raise ServingError(
                    f"nothing is loaded and {reason} within {max_wait_s:.0f} s",
                    code="parked",
                    retry_after_s=max_wait_s,
                )
            try:
                prompt = await self._tokens(request, worker, max_wait_s)
                return prompt, await self._view(request, policy, prompt, worker), worker
            except SilentWorkerError as error:
                raise ServingError(
                    f"the worker has not tokenized the prompt within {max_wait_s:.0f} s",
                    code=error.code,
                    retry_after_s=max_wait_s,
                ) from error
            except WorkerError as error:
                if worker.state is not WorkerState.FAILED:  # it was sent away, or is about to be
                    await self._clock.sleep(GONE_POLL_S)
                    continue
                attempts += 1  # it died over it; the next one may do
                if attempts >= RENDER_ATTEMPTS:
                    raise ServingError(
                        f"the prompt could not be tokenized: {error.message}", code="worker_failed"
                    ) from error

    async def _tokens(
        self, request: GenerationRequest, worker: Worker, max_wait_s: float
    ) -> list[int]:
        known = self._carrier.known(request)
        prompt = await render(request, worker, max_wait_s, known)
        if known and len(prompt) >= self.effective_context():  # the tokenizer's way may be shorter
            return await render(request, worker, max_wait_s)
        return prompt


def _in_the_models_way(request: GenerationRequest, model: ModelSpec) -> GenerationRequest:
    """The request with its tools called as this model does it.

    Raises:
        RequestError: The model takes no tools.
    """
    if not request.tools:
        return request
    if model.tool_format is None:
        raise RequestError(
            f"the chat template of {model.model_id!r} takes no tools, or has them called in a way "
            "that trimtab doesn't know",
            param="tools",
            hint="Leave 'tools' out, or serve a model that was made for them.",
            code="tools_unsupported",
        )
    guide = replace(request.guide or Guide(), tool_format=model.tool_format)
    return dataclasses.replace(request, guide=guide)
