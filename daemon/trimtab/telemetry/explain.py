"""A decision in sentences, for the owner of a gateway."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trimtab.domain.decisions import Decision, Direction, Outcome, Prediction, Trigger
from trimtab.domain.knobs import Knob, OperatingPoint
from trimtab.domain.readings import Unit
from trimtab.errors import StateError
from trimtab.signals.registry import DYNAMIC_PREFIXES, SIGNALS
from trimtab.telemetry.words import amount, clock_time, seconds, size, speed_words

_KNOB_WORDS: Final[dict[Knob, str]] = {
    Knob.PACE: "the pace",
    Knob.SPECULATION: "speculation",
    Knob.KV_PLACEMENT: "the place of KV",
    Knob.CONTEXT: "the context",
    Knob.THREADS: "the threads",
    Knob.VARIANT: "the variant",
}

LEAST_DOUBT: Final = 0.01
"""A prediction that may be wrong by less, relative to it, is told without."""

SOON_S: Final = 3.0
"""An effect that was measured sooner after the step hadn't settled; that is told."""


def decision_of(record: Mapping[str, Any]) -> Decision:
    """The decision in a record of the journal or the API.

    Raises:
        StateError: It isn't one.
    """
    try:
        return msgspec.convert(dict(record), Decision)
    except msgspec.ValidationError as error:
        raise StateError(f"this is no decision record: {error}") from error


def explain(record: Mapping[str, Any], timezone: datetime.tzinfo | None = None) -> str:
    """What was decided, why, what lost and what came of it.

    Args:
        record: From the journal or the API.
        timezone: For the time of day; the machine's own by default.

    Raises:
        StateError: It isn't a decision record.
    """
    decision = decision_of(record)
    when = clock_time(float(record.get("wall_s", 0.0)), timezone)
    sentences = [f"{when} {headline(decision)}"]
    if decision.predicted and decision.direction in {Direction.DOWN, Direction.UP, Direction.START}:
        sentences.append(_predicted(decision.predicted))
    if decision.runner_up:
        lost = decision.runner_up
        sentences.append(f"Next best was {lost.point.describe()}: {_sentence(lost.reason)}")
    if decision.outcome:
        sentences.append(_outcome(decision, decision.outcome))
    return " ".join(part for part in sentences if part)


def headline(decision: Decision) -> str:
    """The first sentence: what, and why."""
    return f"{_what(decision)}: {_sentence(why(decision.trigger))}"


def why(trigger: Trigger) -> str:
    """What made the decision necessary, as a clause."""
    if trigger.value is None:
        return trigger.text or f"{trigger.signal} asked for it"
    unit = unit_of(trigger.signal)
    value = amount(trigger.value, unit)
    if trigger.text and trigger.signal == "memory.available" and not _under(trigger):
        return trigger.text  # what is available keeps the limit: the text says what would not
    if trigger.threshold is None:
        clause = trigger.text or f"{trigger.signal} was {value}"
    else:
        side = "under" if trigger.value < trigger.threshold else "over"
        clause = f"{_subject(trigger.signal, value)}, {side} the limit of " + amount(
            trigger.threshold, unit
        )
    if trigger.for_s >= 1:
        clause += f", for {seconds(trigger.for_s)}"
    return clause


def _under(trigger: Trigger) -> bool:
    value, threshold = trigger.value, trigger.threshold
    return value is not None and threshold is not None and value < threshold


def unit_of(signal: str) -> Unit | None:
    """The unit of a signal; None if it isn't known here."""
    spec = SIGNALS.get(signal)
    if spec:
        return spec.unit
    return next(
        (unit for prefix, unit in DYNAMIC_PREFIXES.items() if signal.startswith(prefix)), None
    )


def _what(decision: Decision) -> str:
    source, target = decision.source, decision.target
    match decision.direction:
        case Direction.START:
            return f"Started {target.describe()}"
        case Direction.PARK:
            return f"Parked {source.variant or 'the model'}, nothing is loaded"
        case Direction.HOLD:
            return f"Kept {source.describe()}"
        case Direction.RELIEF:
            return f"Gave idle memory back and kept {source.describe()}"
        case Direction.GIVE_WAY:
            return f"Had the youngest conversations wait and kept {source.describe()}"
        case Direction.SHED:
            count = decision.trigger.value or 1
            return "Refused a request" if count == 1 else f"Refused {count:.0f} requests"
        case Direction.DOWN | Direction.UP if source == target:
            return f"Gave up the step under way and kept {source.describe()}"
        case Direction.DOWN:
            return f"Stepped down {_moved(source, target)}"
        case Direction.UP:
            return f"Stepped up {_moved(source, target)}"


def _moved(source: OperatingPoint, target: OperatingPoint) -> str:
    changed = source.changed(target)
    if changed == (Knob.VARIANT,) or source.parked or target.parked:
        names = (source.variant or "parked", target.variant or "parked")
        return f"from {names[0]} to {names[1]}"
    if len(changed) == 1:
        return f"{_KNOB_WORDS[changed[0]]} {_span(changed[0], source, target)}"
    return f"from {source.describe()} to {target.describe()}"


def _span(knob: Knob, source: OperatingPoint, target: OperatingPoint) -> str:
    if knob is Knob.PACE:
        return f"from {source.pace_ratio:.0%} to {target.pace_ratio:.0%}"
    suffix = " tokens" if knob is Knob.CONTEXT else ""
    return f"from {source.value(knob)} to {target.value(knob)}{suffix}"


def _subject(signal: str, value: str) -> str:
    if signal == "memory.available":
        return f"{value} of memory were available"
    if signal == "temperature.max":
        return f"the hottest zone stood at {value}"
    return f"{signal} was {value}"


def _predicted(predicted: Prediction) -> str:
    worker = f"a worker of {size(predicted.memory_bytes)}"
    if predicted.doubt_bytes >= LEAST_DOUBT * predicted.memory_bytes:
        worker += f", or {size(predicted.doubt_bytes)} more"
    parts = [worker]
    if predicted.available_bytes is not None:
        parts.append(f"{size(predicted.available_bytes)} left available")
    if speed := speed_words(predicted):
        parts.append(speed)
    if predicted.quality_ratio < 1:
        parts.append(f"quality {predicted.quality_ratio:.3f} of the best")
    return f"Expected: {', '.join(parts)}."


def _outcome(decision: Decision, outcome: Outcome) -> str:
    if outcome.kind == "failed":
        return f"It failed after {seconds(outcome.took_s)}: {_sentence(outcome.reason)}"
    if outcome.kind == "superseded":
        return "A later decision took its place."
    parts = [f"It took {seconds(outcome.took_s)}", _effect(decision, outcome)]
    if not decision.target.parked and decision.source != decision.target:
        parts.append(_worker(outcome))
    if outcome.settled_s is not None and outcome.settled_s < SOON_S:
        parts.append(f"the next decision came {seconds(outcome.settled_s)} later")
    if outcome.reason:
        parts.append(f"it came {outcome.reason}")
    return f"{'; '.join(part for part in parts if part)}."


def _effect(decision: Decision, outcome: Outcome) -> str:
    """What became of that for which it was decided."""
    if decision.trigger.signal == "temperature.max":
        warm, after = outcome.celsius_before, outcome.celsius_after
        if warm is not None and after is not None:
            later = "" if outcome.settled_s is None else f" within {seconds(outcome.settled_s)}"
            went = [amount(value, Unit.CELSIUS) for value in (warm, after)]
            if went[0] == went[1]:
                return f"the hottest zone stayed at {went[0]}"
            return f"the hottest zone went from {went[0]} to {went[1]}{later}"
    before, left = outcome.available_before_bytes, outcome.available_after_bytes
    if before is None or left is None:
        return ""
    return f"available memory went from {size(before)} to {size(left)}"


def _worker(outcome: Outcome) -> str:
    """What the worker turned out to hold and do, to be held against what was expected."""
    does = []
    if outcome.worker_bytes is not None:
        does.append(f"holds {size(outcome.worker_bytes)}")
    if outcome.decode_tps is not None:
        does.append(f"writes {outcome.decode_tps:.0f} tokens/s")
    return f"the worker {' and '.join(does)}" if does else ""


def _sentence(clause: str) -> str:
    return clause if clause.endswith((".", "!", "?")) else f"{clause}."
