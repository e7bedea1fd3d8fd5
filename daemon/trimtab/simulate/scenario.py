"""Scenario tests of policies: files in, verdicts out. The policy runs through the real `step`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trimtab.domain.knobs import Knob
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.domain.readings import Unit
from trimtab.errors import PolicyError
from trimtab.policy.compile import device_variants
from trimtab.policy.compiled import Policy
from trimtab.policy.document import Mapping, PathParts, dotted, find
from trimtab.policy.load import LoadResult, load_policy
from trimtab.policy.problems import Problem, Severity, describe, in_order, nearest
from trimtab.policy.read import MAX_BYTES, read_document
from trimtab.policy.shelf import SCENARIO_SUFFIXES
from trimtab.policy.units import QuantityError, parse_any, parse_quantity
from trimtab.policy.validate import hold_against
from trimtab.policy.words import signal_unit
from trimtab.simulate.catalogs import BANDWIDTH, CATALOGS
from trimtab.simulate.scenario_expect import Miss, judge
from trimtab.simulate.scenario_schema import (
    CatalogFile,
    DeviceFile,
    EventFile,
    ExpectFile,
    ScenarioFile,
    ScenarioItem,
    given,
)
from trimtab.simulate.scenario_values import Device, Happening, Trace
from trimtab.simulate.scenario_world import World

_STAND_INS: Final[dict[str, str | int | list[str]]] = {"version": 1, "catalog": "0.5b"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario, ready to run.

    Attributes:
        name: A sentence.
        file: Where it stands.
        line: Where in the file.
        policy: Tested.
        policies: Others that its timeline or a schedule puts in force, by name.
        device: With its model.
        start_minute: Local time at the start, in minutes since Monday began.
        for_s: How long it runs.
        happenings: The timeline, repeats written out, in order.
        expectations: With the lines at which they stand.
    """

    name: str
    file: str
    line: int
    policy: Policy
    policies: dict[str, Policy]
    device: Device
    start_minute: int
    for_s: float
    happenings: tuple[Happening, ...]
    expectations: tuple[tuple[int, ExpectFile], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a scenario: it passed if nothing was missed."""

    scenario: Scenario
    trace: Trace
    misses: tuple[Miss, ...]

    @property
    def passed(self) -> bool:
        """True if every expectation was met."""
        return not self.misses


def run_scenario(scenario: Scenario) -> Outcome:
    """Run a scenario to its end and hold it against its expectations. Deterministic."""
    stops = {
        moment
        for _, one in scenario.expectations
        for moment in (one.at, one.by, one.from_, one.until)
        if moment is not None
    }
    world = World(scenario.policy, scenario.policies, scenario.device, scenario.start_minute, stops)
    trace = world.run(scenario.happenings, scenario.for_s)
    misses = (
        miss
        for line, expectation in scenario.expectations
        if (miss := judge(trace, expectation, line)) is not None
    )
    return Outcome(scenario, trace, tuple(misses))


def load_scenarios(path: Path, folder: Path) -> tuple[Scenario, ...]:
    """The scenarios of a file.

    Args:
        path: The file; its policy lies beside it, or in the folder, or among the shipped ones.
        folder: The policy folder.

    Raises:
        PolicyError: With every problem of the file and of its policies.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"{path} can't be read: {error.strerror}") from error
    document, problems = read_document(raw, str(path))
    if document is None:
        raise _failed(path, problems)
    written, sound, _, found = hold_against(document, ScenarioFile, _STAND_INS)
    if written is None or found or problems:
        raise _failed(path, (*problems, *found))
    return _Reader(path, folder, sound).scenarios(written)


def _failed(path: Path, problems: Sequence[Problem]) -> PolicyError:
    return PolicyError(
        f"the scenarios in {path} can't be run\n{describe(problems)}",
        hint="docs/policies.md has the language of scenarios",
    )


class _Reader:
    """Turns what a file says into scenarios; collects what doesn't make sense."""

    def __init__(self, path: Path, folder: Path, document: Mapping) -> None:
        self.path = path
        self.folder = folder
        self.document = document
        self.problems: list[Problem] = []

    def scenarios(self, written: ScenarioFile) -> tuple[Scenario, ...]:
        """All scenarios of the file.

        Raises:
            PolicyError: Something in it makes no sense.
        """
        model = self._model(written.catalog)
        name = written.policy or self.path.name.removesuffix(
            next((end for end in SCENARIO_SUFFIXES if self.path.name.endswith(end)), "")
        )
        policy = self._policy(name, model, ("policy",))
        made = [
            self._scenario(item, index, written.device, model, policy)
            for index, item in enumerate(written.scenarios)
        ]
        if self.problems:
            raise _failed(self.path, in_order(self.problems))
        return tuple(one for one in made if one is not None)

    def _scenario(
        self,
        item: ScenarioItem,
        index: int,
        device: DeviceFile,
        model: ModelSpec,
        policy: Policy | None,
    ) -> Scenario | None:
        path: PathParts = ("scenarios", index)
        others: dict[str, Policy] = {}
        for number, event in enumerate(item.timeline):
            if event.policy is not None:
                other = self._policy(event.policy, model, (*path, "timeline", number, "policy"))
                if other is not None:
                    others[event.policy] = other
        for known in (policy, *tuple(others.values())):
            for entry in known.schedule if known is not None else ():
                other = self._policy(entry.policy, model, ("policy",))
                if other is not None:
                    others.setdefault(entry.policy, other)
        happenings = [
            happening
            for number, event in enumerate(item.timeline)
            for happening in self._happenings(event, (*path, "timeline", number), model)
        ]
        expectations = tuple(
            (self._line((*path, "expect", number)), one) for number, one in enumerate(item.expect)
        )
        for number, one in enumerate(item.expect):
            self._check_expectation(one, (*path, "expect", number), item, model)
        if policy is None:
            return None
        return Scenario(
            name=item.name,
            file=str(self.path),
            line=self._line(path),
            policy=policy,
            policies=others,
            device=_device(item.device or device, model),
            start_minute=_minute_of_week(item),
            for_s=item.for_,
            happenings=tuple(sorted(happenings, key=lambda one: one.at_s)),
            expectations=expectations,
        )

    def _happenings(self, event: EventFile, path: PathParts, model: ModelSpec) -> list[Happening]:
        values = {name: self._value(name, value, path) for name, value in event.set.items()}
        for name in event.absent:
            self._known_signal(name, (*path, "absent"))
        for name in event.pin or {}:
            if name not in list(Knob):
                self._problem((*path, "pin"), f"unknown knob {name!r}", nearest(name, list(Knob)))
        self._known_variants(event.fails or (), (*path, "fails"), model)
        first = Happening(
            at_s=event.at,
            over_s=event.over,
            others_bytes=event.others,
            values={name: value for name, value in values.items() if value is not None},
            absent=tuple(event.absent),
            every_s=_every(event),
            stop_requests=event.requests == "none",
            prompt=_tokens(event, "prompt"),
            answer=_tokens(event, "answer"),
            crash=event.crash,
            fails=None if event.fails is None else frozenset(event.fails),
            pin=None
            if event.pin is None
            else {Knob(k): v for k, v in event.pin.items() if k in list(Knob)},
            unpin=event.unpin,
            policy=event.policy,
        )
        if event.repeat is None:
            return [first]
        return [
            replace(first, at_s=event.at + number * event.repeat.every)
            for number in range(event.repeat.times)
        ]

    def _value(self, name: str, value: str | float | bool, path: PathParts) -> float | None:
        """A signal's new value in its unit."""
        known, unit = self._known_signal(name, (*path, "set", name))
        if not known:
            return None
        try:
            return parse_any(value) if unit is None else parse_quantity(value, unit)
        except QuantityError as error:
            self._problem((*path, "set", name), f"{name}: {error.message}", error.suggestion)
            return None

    def _known_signal(self, name: str, path: PathParts) -> tuple[bool, Unit | None]:
        known, unit = signal_unit(name)
        if not known:
            from trimtab.signals.registry import SIGNALS

            self._problem(path, f"unknown signal {name!r}", nearest(name, SIGNALS))
        return known, unit

    def _known_variants(
        self, names: Sequence[str] | frozenset[str], path: PathParts, model: ModelSpec
    ) -> None:
        have = [variant.name for variant in model.variants]
        for name in names:
            if name not in have:
                message = f"the catalog has no variant {name!r}, only {', '.join(have)}"
                self._problem(path, message, nearest(name, have))

    def _check_expectation(
        self, one: ExpectFile, path: PathParts, item: ScenarioItem, model: ModelSpec
    ) -> None:
        """An expectation must say something, of a time that the scenario reaches."""
        says = bool(given(one))
        others = [part for part in (one.never, one.at_most, one.at_least) if part is not None]
        if says + len(others) != 1:
            message = "say one thing: a state with its time, never, at_most or at_least"
            self._problem(path, message, "{by: 2min, variant: int8}")
        if says and one.at is None and one.by is None and one.from_ is None and one.until is None:
            self._problem(path, "when? Say at, by, from or until", "by: 2min")
        for name, moment in (
            ("at", one.at),
            ("by", one.by),
            ("from", one.from_),
            ("until", one.until),
        ):
            if moment is not None and moment > item.for_:
                message = f"the scenario is over by then: it runs for {item.for_:g}s"
                self._problem((*path, name), message)
        for state in (one, one.never):
            if state is not None and state.variant is not None:
                names = [state.variant] if isinstance(state.variant, str) else state.variant
                self._known_variants(names, (*path, "variant"), model)

    def _model(self, catalog: str | CatalogFile) -> ModelSpec:
        if isinstance(catalog, CatalogFile):
            return _custom_model(catalog)
        found = CATALOGS.get(catalog)
        if found is None:
            message = f"unknown catalog {catalog!r}; known are {', '.join(CATALOGS)}"
            self._problem(("catalog",), message, nearest(catalog, CATALOGS))
            return CATALOGS["0.5b"]
        return found

    def _policy(self, name: str, model: ModelSpec, path: PathParts) -> Policy | None:
        result: LoadResult = load_policy(name, self.path.parent, device_variants(model))
        if result.policy is None:
            self._problem(path, f"the policy {name!r} can't be used: {describe(result.errors)}")
        return result.policy

    def _line(self, path: PathParts) -> int:
        return find(self.document, path)[0].line

    def _problem(self, path: PathParts, message: str, suggestion: str = "") -> None:
        at, kept = find(self.document, path)
        self.problems.append(
            Problem(Severity.ERROR, at.file, at.line, at.column, dotted(kept), message, suggestion)
        )


def _minute_of_week(item: ScenarioItem) -> int:
    day = ("mon", "tue", "wed", "thu", "fri", "sat", "sun").index(item.day)
    return day * 1440 + int(item.start[:2]) * 60 + int(item.start[3:])


def _every(event: EventFile) -> float | None:
    if event.requests is None or event.requests == "none":
        return None
    return event.requests.every


def _tokens(event: EventFile, field: str) -> int:
    source = event.request or (event.requests if event.requests != "none" else None)
    return int(getattr(source, field)) if source is not None else 0


def _device(written: DeviceFile, model: ModelSpec) -> Device:
    """The device with the model at its speed: all speeds go with the memory bandwidth."""
    factor = written.bandwidth / BANDWIDTH
    variants = tuple(
        replace(
            variant,
            decode_tps=(variant.decode_tps or 0.0) * factor,
            prefill_tps=(variant.prefill_tps or 0.0) * factor,
        )
        for variant in model.variants
    )
    heat = written.heat
    return Device(
        model=replace(model, variants=variants),
        memory_bytes=written.memory,
        others_bytes=written.others,
        threads=written.threads,
        rest_celsius=heat.rest if heat else None,
        full_celsius=heat.full if heat else 0.0,
        heat_s=heat.time if heat else 1.0,
    )


def _custom_model(catalog: CatalogFile) -> ModelSpec:
    variants = tuple(
        VariantSpec(
            name=name,
            precision=name,
            folder="",
            weights_bytes=int(one.memory),
            disk_bytes=int(one.memory),
            kv_bytes_per_token=int(catalog.kv_per_token),
            quality=one.quality,
            fingerprint="scenario",
            context_length=catalog.context,
            load_s=one.load,
            decode_tps=one.speed,
            prefill_tps=one.prefill,
        )
        for name, one in catalog.variants.items()
    )
    return ModelSpec("scenario", "scenario", "llama", catalog.context, 1, 1, 64, "", True, variants)
