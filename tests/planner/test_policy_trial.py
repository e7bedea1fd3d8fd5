from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.domain.events import (
    Event,
    ModelChanged,
    RequestArrived,
    RequestEnded,
    RequestProgress,
)
from trimtab.domain.knobs import OperatingPoint
from trimtab.errors import RequestError
from trimtab.planner import State, step
from trimtab.planner.candidate import Trial, begin, observe
from trimtab.policy.compiled import Policy
from trimtab.policy.load import load_policy
from trimtab.runtime.policy_trial import PolicyTrial
from trimtab.simulate.catalogs import CATALOGS
from trimtab.simulate.scenario_values import Device, Happening
from trimtab.simulate.scenario_world import World

GIB = 2.0**30


def _policy(name: str) -> Policy:
    return load_policy(name, Path("/nowhere"), device=None).require()


class TrialWorld(World):
    """A simulated device on which a candidate is tried from the first minute on."""

    def __init__(self, candidate: str, for_s: float = 1e4) -> None:
        device = Device(CATALOGS["0.5b"], 8 * GIB, 3 * GIB)
        super().__init__(_policy("accuracy-first"), {}, device, 720, set())
        self.tried = PolicyTrial()
        self.candidate = _policy(candidate)
        self.for_s = for_s

    def _post(self, event: Event) -> None:
        super()._post(event)
        if self.now >= 60 and self.tried.report() is None:
            self.tried.begin(self.candidate, self.state, event.at_s, self.for_s)
        self.tried.observe(event, self.state, self.policy)


SQUEEZE = (
    Happening(120.0, over_s=20.0, others_bytes=6.5 * GIB),
    Happening(300.0, over_s=20.0, others_bytes=3 * GIB),
)


def test_a_candidate_that_is_the_policy_in_force_is_never_apart() -> None:
    world = TrialWorld("accuracy-first")
    world.run((), 300.0)

    report = world.tried.report()

    assert report is not None
    assert report["apart_s"] == 0
    assert report["compared_s"] == pytest.approx(240, abs=6)
    assert report["spans"] == []
    assert report["in_force"] == report["candidate"]


def test_a_trial_tells_where_the_candidate_would_have_been_and_acts_on_nothing() -> None:
    world = TrialWorld("memory-first")
    trace = world.run(SQUEEZE, 600.0)

    report = world.tried.report()

    assert report is not None
    assert {one.policy for one in trace.decisions} == {"accuracy-first"}
    assert not any(s.point.variant in {"int4", "int4_mixed"} for s in trace.samples)
    assert report["apart_s"] > 400
    assert report["spans"][0]["in_force"].startswith("fp32")
    assert report["spans"][0]["candidate"].startswith("int4_mixed")
    assert report["candidate"]["quality_ratio"] < report["in_force"]["quality_ratio"]
    assert report["candidate"]["decode_tps"] > report["in_force"]["decode_tps"]
    assert report["in_force"]["switches"] >= 2


def test_memory_under_a_candidate_is_what_its_own_variant_would_leave() -> None:
    world = TrialWorld("memory-first")
    world.run((), 300.0)

    report = world.tried.report()

    assert report is not None
    saved = (
        report["candidate"]["least_available_bytes"] - report["in_force"]["least_available_bytes"]
    )
    assert saved == pytest.approx((1980 - 450) * 2**20, rel=0.02)


def test_a_trial_ends_by_itself_and_its_report_stays() -> None:
    world = TrialWorld("balanced", for_s=30.0)
    world.run((), 200.0)

    report = world.tried.report()

    assert report is not None
    assert not world.tried.running
    assert report["compared_s"] <= 30


def test_only_one_trial_runs_at_a_time() -> None:
    tried = PolicyTrial()
    tried.begin(_policy("balanced"), State(), 0.0, 60.0)

    with pytest.raises(RequestError, match="running already"):
        tried.begin(_policy("balanced"), State(), 1.0, 60.0)
    tried.end()
    tried.begin(_policy("balanced"), State(), 2.0, 60.0)
    tried.end()
    with pytest.raises(RequestError, match="a day"):
        tried.begin(_policy("balanced"), State(), 3.0, 1e9)


def test_requests_of_the_time_before_leave_the_candidates_queue_as_they_really_do() -> None:
    core = step(State(), ModelChanged(0.0, CATALOGS["0.5b"]), _policy("balanced")).state
    core = step(core, RequestArrived(1.0, 7, 100, 64), _policy("balanced")).state
    trial = begin(_policy("latency-first"), core, 2.0)
    before = [job.request for job in trial.state.queue.jobs]
    for event in (RequestArrived(3.0, 8, 100, 64), RequestEnded(4.0, 7, 20, 0.1, 0.5)):
        trial = observe(trial, event, core, _policy("balanced"))

    assert before == [7]
    assert [job.request for job in trial.state.queue.jobs] == [8]


def test_what_a_request_took_on_another_variant_says_nothing_of_the_candidates() -> None:
    model = CATALOGS["0.5b"]
    best = OperatingPoint(model.variants[0].name, 2048, 1)
    least = OperatingPoint(model.variants[-1].name, 2048, 1)
    core = step(State(), ModelChanged(0.0, model), _policy("balanced")).state
    core = step(replace(core, point=best), RequestArrived(1.0, 7, 100), _policy("balanced")).state
    told = RequestProgress(9.0, 7, 100, 10, prefill_s=5.0, decode_s=3.0)
    same = Trial(_policy("balanced"), core, 0.0)
    other = Trial(_policy("balanced"), replace(core, point=least), 0.0)

    assert observe(same, told, core, _policy("balanced")).state.queue.speeds.common < 1
    assert observe(other, told, core, _policy("balanced")).state.queue.speeds.common == 1
