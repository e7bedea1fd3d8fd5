"""What happened, as data: the only way in to the core. `at_s` is monotonic time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.domain.readings import Snapshot
from trimtab.domain.scheduling import Objective


class OutcomeKind(StrEnum):
    """How an action ended."""

    DONE = "done"  # carried out, and verified by reading back
    FAILED = "failed"
    SUPERSEDED = "superseded"  # a later action made it pointless


@dataclass(frozen=True, slots=True)
class Demand:
    """What the workload holds and wants at a tick.

    Attributes:
        running: Streams that a worker has.
        waiting: Requests in the queue, those being tokenized included.
        held: Streams that had begun and have no worker.
        kv_tokens: Tokens whose KV lies within the serving worker, and goes with it; without one,
            what the next one computes at once.
        idle_bytes: KV of conversations that have ended, kept for their next turn.
        worker_bytes: Anonymous memory of the serving worker; None if there is none.
        running_bytes: KV of running conversations in memory, in segments of ours.
        yielding_bytes: Of that, what could make room: its conversations wait, and compute it again.
        filed_bytes: KV of running conversations on disk.
        unwritten_bytes: Memory that it still takes, which the kernel counts as available: the disk
            hasn't taken it yet.
        point: What the streams go on at; None if that isn't told. During a hand-over it is the new
            point as soon as the new worker has them, while the old one still goes.
    """

    running: int = 0
    waiting: int = 0
    held: int = 0
    kv_tokens: int = 0
    idle_bytes: int = 0
    worker_bytes: int | None = None
    running_bytes: int = 0
    yielding_bytes: int = 0
    filed_bytes: int = 0
    unwritten_bytes: int = 0
    point: OperatingPoint | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """The sensors were read.

    Attributes:
        snapshot: What they said.
        demand: The workload.
        wall_minute: Local time in minutes since midnight; None if the clock can't be trusted.
    """

    at_s: float
    snapshot: Snapshot
    demand: Demand = Demand()
    wall_minute: int | None = None


@dataclass(frozen=True, slots=True)
class ModelChanged:
    """The catalog was read: this is the model to serve, or None if there is none."""

    at_s: float
    model: ModelSpec | None


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Another policy is in force from now on (it comes with the step's argument)."""

    at_s: float
    revision: str


@dataclass(frozen=True, slots=True)
class ActionEnded:
    """An action's outcome.

    Attributes:
        action: The action's id.
        kind: How it ended.
        point: What is really in force now, as read back.
        took_s: From start to end.
        reason: Why it failed or was superseded; if it is done, what of it couldn't be had.
        variant: The variant concerned when a load failed, for its quarantine.
        lost: The load's worker died, or was late: the variant may be whole.
    """

    at_s: float
    action: int
    kind: OutcomeKind
    point: OperatingPoint
    took_s: float = 0.0
    reason: str = ""
    variant: str | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The serving worker died or hung.

    Attributes:
        variant: What it had loaded.
        reason: For people.
        tokens: How many it had decoded; one that had none is not worth many more tries. Those that
            come of reading a prompt, or an answer again, aren't among them, unless it was the last.
    """

    at_s: float
    variant: str
    reason: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class DraftFailed:
    """A variant can't draft: it doesn't load as a draft, or it failed; its target is whole.

    Attributes:
        draft: The variant.
        reason: For people.
        variant: The target.
    """

    at_s: float
    draft: str
    reason: str
    variant: str = ""


@dataclass(frozen=True, slots=True)
class WorkerMeasured:
    """What a worker really holds and how fast it really is: corrects predictions.

    Attributes:
        variant: The variant that it has loaded.
        resident_bytes: Anonymous memory of the process, just after loading, no stream running.
        load_s: How long loading took; None unless it has just loaded.
        draft: The variant that was loaded beside it in the same process; empty if none was.
    """

    at_s: float
    variant: str
    resident_bytes: int
    load_s: float | None = None
    draft: str = ""


@dataclass(frozen=True, slots=True)
class RequestWaiting:
    """A request came while nothing is loaded."""

    at_s: float


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request is in the queue, its prompt tokenized.

    Attributes:
        request: Names it in schedules and later events; rises.
        prompt_tokens: Tokens of the prompt that have to be read; cached ones left out.
        max_tokens: The client's limit on the answer; None if it gave none.
        weight: What the policy makes of its priority.
        objective: Its own objective; None for the policy's.
        waited_s: How long ago it was received: tokenizing it, and loading a variant first, took
            time that its client has waited.
    """

    at_s: float
    request: int
    prompt_tokens: int
    max_tokens: int | None = None
    weight: float = 1.0
    objective: Objective | None = None
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """How far a request has come: told at its first token, and when a schedule asks for a look.

    Attributes:
        request: Which.
        prefilled_tokens: Tokens of its prompt that have been read.
        produced_tokens: Tokens of its answer so far, without the first, which comes with the
            prompt and takes no time of its own.
        prefill_s: Engine time spent on its prompt since the last report.
        decode_s: Engine time of the steps that wrote its answer since the last report.
        together: How many requests those steps were shared by, itself included, on average.
    """

    at_s: float
    request: int
    prefilled_tokens: float
    produced_tokens: int
    prefill_s: float = 0.0
    decode_s: float = 0.0
    together: float = 1.0


class RequestEnd(StrEnum):
    """How a request left."""

    DONE = "done"  # its answer is complete
    GONE = "gone"  # cancelled, failed or refused: its length says nothing


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request has left.

    Attributes:
        request: Which.
        produced_tokens: Tokens of its answer, without the first.
        prefill_s: Engine time spent on its prompt since the last report.
        decode_s: Engine time of the steps that wrote its answer since the last report.
        end: How it left.
        together: How many requests those steps were shared by, itself included, on average.
    """

    at_s: float
    request: int
    produced_tokens: int
    prefill_s: float = 0.0
    decode_s: float = 0.0
    end: RequestEnd = RequestEnd.DONE
    together: float = 1.0


@dataclass(frozen=True, slots=True)
class PinSet:
    """A person fixes knobs until a time.

    Attributes:
        knobs: The pinned values by knob.
        until_s: Monotonic time of the expiry; None: until it is taken off.
        by: Who, for the record.
    """

    at_s: float
    knobs: tuple[tuple[Knob, str | int | float], ...]
    until_s: float | None
    by: str


@dataclass(frozen=True, slots=True)
class PinCleared:
    """The pin is taken off."""

    at_s: float
    by: str


@dataclass(frozen=True, slots=True)
class PausedSet:
    """A person stops (True) or starts again (False) all steps but those for memory safety."""

    at_s: float
    paused: bool
    by: str


Event: TypeAlias = (
    Tick
    | ModelChanged
    | PolicyChanged
    | ActionEnded
    | WorkerLost
    | DraftFailed
    | WorkerMeasured
    | RequestWaiting
    | RequestArrived
    | RequestProgress
    | RequestEnded
    | PinSet
    | PinCleared
    | PausedSet
)
