"""What is expected of operating points: from a profile, from the build, from first principles."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_world import LADDER, MIB, World

from trimtab.domain.decisions import Source
from trimtab.domain.events import RequestArrived, RequestEnded, RequestProgress
from trimtab.domain.knobs import OperatingPoint
from trimtab.domain.models import ModelSpec
from trimtab.planner.assess import facts
from trimtab.planner.device import Curve, DeviceModel
from trimtab.planner.predict import BANDWIDTH_BYTES_S, Facts, Situation, known_speed, predict
from trimtab.planner.resident import FORGET_S, worked
from trimtab.planner.speeds import SPREAD, Speeds
from trimtab.simulate.policy import simulated_policy

HERE = Situation(4096 * MIB, 0, 0)

DEVICE = DeviceModel(
    "m",
    bandwidth={1: 10e9, 2: 18e9},
    decode={
        ("int8", 1): Curve(0, 0.010, 10e-6, ((64, 0.0106), (512, 0.0151))),
        ("int4", 1): Curve(0, 0.006, 10e-6, ((64, 0.0066), (512, 0.0111))),
        ("int4", 2): Curve(0, 0.004, 6e-6, ((64, 0.0044),)),
    },
    first_token={("int8", 1): Curve(1, 0.002, 1e-6, ((64, 0.13), (512, 1.29)))},
    resident={"int8": 250.0 * MIB, "int4": 150.0 * MIB},
    in_use={"int8": (255.0 * MIB, 1000.0)},
    speculation={("int8", "free text"): 1.0, ("int8", "code"): 2.25},
)


def with_speeds(**tokens_per_second: float) -> ModelSpec:
    """The ladder, with speeds that were seen at its build."""
    return replace(
        LADDER,
        variants=tuple(
            replace(one, decode_tps=tokens_per_second.get(one.name)) for one in LADDER.variants
        ),
    )


MEASURED = Facts(device=DEVICE)


def tokens_per_second(point: OperatingPoint, speeds: Speeds, known: Facts = MEASURED) -> float:
    found = predict(point, LADDER, replace(HERE, speeds=speeds), known).decode_tps
    assert found is not None
    return found


def test_without_any_figures_speed_is_bandwidth_over_bytes() -> None:
    found = predict(OperatingPoint("int4", 2048), LADDER, HERE, Facts())

    assert found.decode_tps == pytest.approx(BANDWIDTH_BYTES_S / (140 * MIB))
    assert found.grounds.speed is Source.ASSUMED
    assert found.grounds.speed_error_ratio >= 0.5


def test_speeds_seen_at_the_build_are_hints_and_said_to_be() -> None:
    model = with_speeds(int8=40.0)

    own = predict(OperatingPoint("int8", 2048), model, HERE, Facts())
    other = predict(OperatingPoint("int4", 2048), model, HERE, Facts())

    assert own.decode_tps == pytest.approx(40.0)
    assert own.grounds.speed is other.grounds.speed is Source.BUILD
    assert other.decode_tps == pytest.approx(40.0 * 260 / 160, rel=0.01)


def test_a_profile_tells_points_apart_by_threads_context_and_drafting() -> None:
    plain = predict(OperatingPoint("int8", 4096), LADDER, HERE, MEASURED)
    two = predict(OperatingPoint("int8", 4096, threads=2), LADDER, HERE, MEASURED)
    drafting = predict(OperatingPoint("int8", 4096, speculation="ngram"), LADDER, HERE, MEASURED)

    assert plain.decode_tps == pytest.approx(1 / 0.01384, rel=0.01)  # with 384 tokens cached
    assert plain.full_tps == pytest.approx(1 / (0.010 + 4096 * 10e-6), rel=0.01)
    assert plain.ttft_s == pytest.approx(200 * (0.002 + 200e-6), rel=0.01)
    assert two.decode_tps == pytest.approx(1 / 0.01384 * 0.0066 / 0.0044, rel=0.05)
    assert drafting.decode_tps == pytest.approx(plain.decode_tps)  # free text gains nothing
    assert [one.grounds.speed for one in (plain, two, drafting)] == [
        Source.FITTED,
        Source.SCALED,
        Source.FITTED,
    ]
    assert plain.grounds.speed_error_ratio < two.grounds.speed_error_ratio
    assert two.grounds.speed_error_ratio < drafting.grounds.speed_error_ratio


def test_a_draft_gains_what_its_passes_and_its_hits_come_to() -> None:
    int8, int4 = LADDER.variants[1:]

    alone = known_speed(DEVICE, int8, None, 1, "off")
    cheap = known_speed(DEVICE, int8, replace(int4, quality=0.9), 1, "draft:int4")
    wrong = known_speed(DEVICE, int8, replace(int4, quality=0.1), 1, "draft:int4")

    assert cheap.decode_s < alone.decode_s
    assert wrong.decode_s == alone.decode_s  # workers draft only while it pays
    memory = predict(OperatingPoint("int8", 2048, speculation="draft:int4"), LADDER, HERE, MEASURED)
    assert (
        memory.memory_bytes
        > predict(OperatingPoint("int8", 2048), LADDER, HERE, MEASURED).memory_bytes
    )


def test_what_is_observed_corrects_every_variant_and_the_one_that_was_seen_most() -> None:
    speeds = Speeds()
    for _ in range(100):
        speeds = speeds.observed("int8", expected_s=1.0, took_s=2.0)
    int8, int4 = (OperatingPoint(name, 2048) for name in ("int8", "int4"))

    seen, other = (
        predict(point, LADDER, replace(HERE, speeds=speeds), MEASURED).grounds
        for point in (int8, int4)
    )

    assert tokens_per_second(int8, speeds) == pytest.approx(
        tokens_per_second(int8, Speeds()) / 2, rel=0.05
    )
    assert seen.seen_ratio == pytest.approx(0.5, rel=0.05)
    assert other.seen_ratio < 0.9


def test_what_was_seen_of_a_variant_fades_while_others_work() -> None:
    seen = Speeds()
    for _ in range(200):
        seen = seen.observed("int4", 5.0, 5.0)
    fresh = seen.error_ratio("int4", 0.5)
    for _ in range(2000):
        seen = seen.observed("int8", 10.0, 10.0)

    assert fresh == SPREAD
    assert seen.error_ratio("int4", 0.5) > 2 * fresh
    assert seen.error_ratio("int8", 0.5) == SPREAD


def test_errors_narrow_with_what_is_seen_and_never_to_nothing() -> None:
    speeds, errors = Speeds(), []
    for _ in range(400):
        speeds = speeds.observed("int4", expected_s=1.0, took_s=2.0)
        here = replace(HERE, speeds=speeds)
        int8, int4 = (
            predict(OperatingPoint(name, 2048), LADDER, here, Facts()).grounds
            for name in ("int8", "int4")
        )
        errors.append(int4.speed_error_ratio)

    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == SPREAD
    assert SPREAD < int8.speed_error_ratio < 0.5  # what all have in common is known now


def test_drafting_is_not_counted_twice_when_its_speed_is_observed() -> None:
    policy = simulated_policy()
    policy = replace(
        policy, knobs=replace(policy.knobs, speculation=("ngram",), variants=("int8",))
    )
    world = World(policy, free_bytes=8192 * MIB)
    world.state = replace(world.state, device=DEVICE)
    world.start()
    assert world.point.speculation == "ngram"
    token_s = 1 / tokens_per_second(world.point, Speeds())

    world.post(RequestArrived(world.now, 1, 384, 400))
    world.post(RequestProgress(world.now, 1, 384, 1, prefill_s=384 * (0.002 + 384e-6)))
    world.now += 400 * token_s
    world.post(RequestEnded(world.now, 1, 400, decode_s=399 * token_s))

    assert world.state.queue.speeds.factor("int8") == pytest.approx(1.0, abs=0.02)


def test_memory_that_a_worker_takes_while_serving_is_expected_of_it_again_and_of_no_other() -> None:
    world = World(simulated_policy(), free_bytes=8192 * MIB).start()
    assert world.point.variant == "fp32"
    fp32, int4 = (OperatingPoint(name, 2048) for name in ("fp32", "int4"))
    before = [predict(one, LADDER, HERE, facts(world.state)).memory_bytes for one in (fp32, int4)]

    world.leak_bytes = 50 * MIB
    world.run(2)

    after = [predict(one, LADDER, HERE, facts(world.state)).memory_bytes for one in (fp32, int4)]
    assert after[0] - before[0] == pytest.approx(50 * MIB, abs=MIB)
    assert after[1] == before[1]


def test_working_memory_that_is_not_used_any_more_is_forgotten() -> None:
    assert worked(50 * MIB, 80 * MIB, 1.0) == 80 * MIB
    assert worked(80 * MIB, 0, 1.0) > 79 * MIB
    assert worked(80 * MIB, 0, 3 * FORGET_S) < 5 * MIB
