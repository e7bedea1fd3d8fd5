"""The variant that drafts: loaded beside the one that serves, and let go again.

The engine makes a session without holding the interpreter, and takes seconds for it. So a draft
that is ordered while the worker serves is loaded in a thread of its own, and joins between two
ticks. Until then, and where it doesn't load, the target serves as if there were none.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trimtab.errors import EngineError
from trimtab.lean import give_back_free_memory
from trimtab.worker.decoder import Decoder, LoadedDraft
from trimtab.worker.faults import in_words
from trimtab.worker.proof import prove_draft
from trimtab.worker.variant import VariantFacts, read_variant
from trimtab.workers.protocol import DraftSet, DraftWith

LOOK_EVERY_S: Final = 0.02
"""While a draft loads: how long it may wait at most once it is there."""


class Drafts:
    """Loads drafts for one decoder and lets them go.

    All of it is called from the thread that the decoder belongs to.

    Args:
        decoder: Of the target.
        target: The variant that is drafted for.
        threads: Engine threads.
    """

    def __init__(self, decoder: Decoder, target: VariantFacts, threads: int) -> None:
        self._decoder = decoder
        self._target = target
        self._threads = threads
        self._order: DraftWith | None = None
        self._loading: _Loading | None = None
        self._there = False

    @property
    def at_work(self) -> bool:
        """True while `advance` has to be called without waiting for anything else."""
        return self._order is not None or self._loading is not None

    def add(self, folder: str, indices_graph: str) -> str:
        """Load a draft here and now, and prove that it computes.

        Returns:
            Why there is none, in words: the target is whole and serves without it. Empty if there
            is.
        """
        loading = _Loading(self._decoder, DraftWith(0, folder, indices_graph), self._threads)
        loading.run()
        return self._join(loading)

    def order(self, order: DraftWith) -> None:
        """Do without the draft that there is, and get the one that is wanted, if any.

        An order that came before and hasn't been answered is given up.
        """
        self._decoder.drop_draft()
        self._order = order

    def advance(self, held_bytes: Callable[[], int]) -> DraftSet | None:
        """Do what can be done between two ticks.

        Args:
            held_bytes: Tells what the process holds.

        Returns:
            The answer to the order, once there is one.
        """
        self._notice_loss()
        loading, order = self._loading, self._order
        if loading is not None:
            if loading.is_alive():
                return None
            self._loading = None
            if loading.order is order:
                return self._answer(loading.order, self._join(loading), held_bytes)
            loading.draft = None
            _give_back()
        if order is None:
            return None
        if not order.folder:
            return self._answer(order, "", held_bytes)
        self._loading = _Loading(self._decoder, order, self._threads)
        self._loading.start()
        return None

    def _notice_loss(self) -> None:
        """Give back the memory of a draft that was dropped, by an order or since it failed."""
        there = "draft" in self._decoder.speculation
        if self._there and not there:
            _give_back()
        self._there = there

    def _join(self, loading: _Loading) -> str:
        """Have the target use what was loaded; why it can't, empty if it can."""
        draft, loading.draft, reason = loading.draft, None, loading.reason
        if draft is not None:
            try:
                self._decoder.add_draft(draft)
                prove_draft(self._decoder, self._target, Path(loading.order.folder))
            except MemoryError:
                reason = _no_memory(loading.order.folder)
            except EngineError as error:
                reason = in_words(error)
        if reason:
            self._decoder.drop_draft()
        return reason

    def _answer(self, order: DraftWith, reason: str, held_bytes: Callable[[], int]) -> DraftSet:
        _give_back()
        self._order = None
        self._there = "draft" in self._decoder.speculation
        return DraftSet(order.id, self._decoder.speculation, reason, held_bytes())


class _Loading(threading.Thread):
    """Loads a draft; `run` does it in the caller's thread.

    Args:
        decoder: Of the target.
        order: What is wanted.
        threads: Engine threads.

    Attributes:
        order: As above.
        draft: What has been loaded; None if nothing has.
        reason: Why nothing has, in words.
    """

    def __init__(self, decoder: Decoder, order: DraftWith, threads: int) -> None:
        super().__init__(name="draft", daemon=True)
        self.order = order
        self.draft: LoadedDraft | None = None
        self.reason = ""
        self._decoder = decoder
        self._threads = threads

    def run(self) -> None:
        """Load it."""
        order = self.order
        try:
            facts = read_variant(Path(order.folder))
            self.draft = self._decoder.load_draft(facts, self._threads, order.indices_graph)
        except MemoryError:
            self.reason = _no_memory(order.folder)
        except EngineError as error:
            self.reason = in_words(error)
        except Exception as error:  # whatever it is, the target is whole and nobody else hears it
            self.reason = f"{order.folder}: {type(error).__name__}: {error}"


def _no_memory(folder: str) -> str:
    return f"{folder}: there is not enough memory to load the draft"


def _give_back() -> None:
    gc.collect()
    give_back_free_memory()
