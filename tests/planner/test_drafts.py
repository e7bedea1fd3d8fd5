"""Drafts of another variant: offered where they can work, left out where they fail."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from planner_world import LADDER, MIB, World

from policies_for_tests import PLAIN, policy
from trimtab.domain.actions import SetContext, SetSpeculation, SwitchWorker
from trimtab.domain.events import DraftFailed, PolicyChanged
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.planner.assess import Assessed, assess
from trimtab.planner.predict import loaded_bytes
from trimtab.planner.standing import passed_over
from trimtab.telemetry.explain import explain
from trimtab.telemetry.values import to_plain

DRAFTING = policy(knobs=replace(PLAIN.knobs, speculation=("off", "ngram", "draft:int4")))


def with_other_kv(name: str) -> ModelSpec:
    """The ladder, where one variant's KV is of another type than the others'."""
    variants = [
        replace(one, fingerprint="other" if one.name == name else "f") for one in LADDER.variants
    ]
    return replace(LADDER, variants=tuple(variants))


def reasons(world: World, variant: str) -> dict[str, str]:
    """Why a variant's points are out, by their modes."""
    judged = assess(world.state, world.policy, world.policy.knobs, world.model, world.now)
    return {one.point.speculation: one.reason for one in judged if one.point.variant == variant}


def loads(world: World) -> list[tuple[str | None, str]]:
    """What workers were loaded for."""
    switches = [action for action in world.actions if isinstance(action, SwitchWorker)]
    return [(action.point.variant, action.point.speculation) for action in switches]


def modes(world: World) -> list[str]:
    """What the loaded worker was told of drafting."""
    return [action.speculation for action in world.actions if isinstance(action, SetSpeculation)]


def test_a_draft_is_not_offered_to_a_target_with_other_kv() -> None:
    world = World(DRAFTING, model=with_other_kv("fp32")).start()

    assert set(reasons(world, "fp32")) == {"off", "ngram"}
    assert set(reasons(world, "int8")) == {"off", "ngram", "draft:int4"}
    assert (world.point.variant, world.point.speculation) == ("fp32", "ngram")


def test_a_target_for_which_no_mode_is_left_goes_without_drafts() -> None:
    only = policy(knobs=replace(PLAIN.knobs, speculation=("draft:int4",)))
    world = World(only, model=with_other_kv("fp32")).start()

    assert set(reasons(world, "fp32")) == {"off"}
    assert set(reasons(world, "int4")) == {"off"}
    assert (world.point.variant, world.point.speculation) == ("fp32", "off")


def test_a_draft_that_does_not_load_is_left_out_and_its_target_serves() -> None:
    world = World(DRAFTING)
    world.failing_drafts = {"int4"}
    world.start().run(20)

    assert (world.point.variant, world.point.speculation) == ("fp32", "ngram")
    assert not world.state.quarantine
    assert loads(world) == [("fp32", "draft:int4")]
    assert reasons(world, "fp32")["draft:int4"] == (
        "its draft int4 is left out for now: its graph is damaged"
    )
    assert reasons(world, "int4") == {"off": "", "ngram": ""}


def test_the_record_says_that_it_came_without_its_draft() -> None:
    world = World(DRAFTING)
    world.failing_drafts = {"int4"}
    world.start().run(10)
    outcome = world.settled[0].outcome
    assert outcome is not None

    assert outcome.kind == "done"
    assert "without its draft int4: its graph is damaged" in explain(
        msgspec.to_builtins(world.settled[0])
    )


def test_a_draft_that_failed_is_tried_again_after_longer_and_longer() -> None:
    world = World(DRAFTING)
    world.failing_drafts = {"int4"}
    world.start().run(600)
    tried = len(loads(world)) + len(modes(world))
    world.failing_drafts = set()
    world.run(600)

    assert tried in (3, 4)
    assert world.point.speculation == "draft:int4"


def test_a_draft_that_fails_while_it_serves_leaves_its_target_in_force() -> None:
    world = World(DRAFTING).start().run(5)
    began = world.point.speculation
    world.lose_draft("its logits are no numbers")
    at_once = world.point.speculation
    world.run(20)

    assert (began, at_once) == ("draft:int4", "ngram")
    assert world.point == replace(world.point, variant="fp32", speculation="ngram")
    assert len(loads(world)) == 1


def test_ngrams_stay_where_the_policy_allows_only_the_draft_that_failed() -> None:
    only = policy(knobs=replace(PLAIN.knobs, speculation=("off", "draft:int4")))
    world = World(only)
    world.failing_drafts = {"int4"}
    world.start().run(20)

    assert (world.point.variant, world.point.speculation) == ("fp32", "ngram")
    assert len(world.decisions) == 1


def test_a_failed_draft_can_be_recorded() -> None:
    assert to_plain(DraftFailed(1.0, "int4", "damaged"))["@"] == "DraftFailed"


def test_what_a_draft_holds_is_not_taken_for_its_targets() -> None:
    only = policy(knobs=replace(PLAIN.knobs, speculation=("draft:int4",)))
    world = World(only).start()
    drafting = (world.point.variant, world.point.speculation)
    judged = assess(world.state, world.policy, world.policy.knobs, world.model, world.now)
    told = next(one for one in judged if one.point.variant == "fp32").predicted.memory_bytes
    fp32, int4 = world.model.variant("fp32"), world.model.variant("int4")
    assert fp32 is not None
    assert int4 is not None

    assert drafting == ("fp32", "draft:int4")
    assert world.state.resident["fp32"] == loaded_bytes(fp32, {})
    assert told == loaded_bytes(fp32, {}) + int4.weights_bytes


# ---------------------------------------------------------------- in the worker that serves


def predicted(world: World, speculation: str) -> Assessed:
    """The loaded variant's point with this mode, all else as it is."""
    judged = assess(world.state, world.policy, world.policy.knobs, world.model, world.now)
    wanted = replace(world.point, speculation=speculation)
    return next(one for one in judged if one.point == wanted)


def which_dropped_its_draft(world: World) -> World:
    """fp32 serves without its draft, for which there is room again."""
    world.start().run(5)
    world.free_bytes = 1300 * MIB
    world.run(5)
    world.free_bytes = 8192 * MIB
    return world


def test_a_draft_goes_for_memory_in_the_worker_that_serves() -> None:
    world = World(DRAFTING).start()
    began, held = world.point, world.free_bytes - world.available_bytes
    world.free_bytes = 1300 * MIB
    world.run(3)

    assert (began.variant, began.speculation) == ("fp32", "draft:int4")
    assert (world.point.variant, world.point.speculation) == ("fp32", "ngram")
    assert loads(world) == [("fp32", "draft:int4")]
    assert modes(world) == ["ngram"]
    assert world.decisions[-1].direction == "down"
    assert world.free_bytes - world.available_bytes == held - 140 * MIB


def test_a_draft_comes_back_into_the_worker_that_serves_and_costs_no_switch() -> None:
    none_left = replace(DRAFTING, stability=replace(PLAIN.stability, switches_per_hour=0))
    world = which_dropped_its_draft(World(none_left))
    began = world.point.speculation
    world.run(300)

    assert began == "ngram"
    assert world.point.speculation == "draft:int4"
    assert len(loads(world)) == 1
    assert world.decisions[-1].direction == "up"
    assert len(world.state.handovers) == 1


def test_what_a_draft_gives_back_or_takes_is_reckoned_from_what_the_worker_holds() -> None:
    world = World(DRAFTING, leak_bytes=300 * MIB).start().run(5)
    held = world.free_bytes - world.available_bytes
    without = predicted(world, "ngram").predicted
    world.free_bytes = 1600 * MIB
    world.run(5)
    told = predicted(world, "draft:int4").predicted

    assert without.memory_bytes == held - 140 * MIB
    assert without.available_bytes == 8192 * MIB - held + 140 * MIB
    assert world.point.speculation == "ngram"
    assert told.memory_bytes == held


def test_a_draft_that_does_not_load_beside_the_streams_is_left_out() -> None:
    world = which_dropped_its_draft(World(DRAFTING))
    world.failing_drafts = {"int4"}
    while len(modes(world)) < 2:
        world.run(1)
    world.run(6)
    outcome = world.settled[-1].outcome
    assert outcome is not None

    assert world.point.speculation == "ngram"
    assert outcome.kind == "done"
    assert outcome.reason == "without its draft int4: its graph is damaged"
    assert reasons(world, "fp32")["draft:int4"].endswith("its graph is damaged")


def test_a_draft_that_finds_no_room_while_it_loads_is_given_up() -> None:
    world = which_dropped_its_draft(World(DRAFTING, action_s=5))
    while len(modes(world)) < 2:
        world.run(1)
    world.free_bytes = 1000 * MIB
    world.run(1)
    told = world.decisions[-1].trigger.text

    assert "of memory were left while the draft int4 was loading" in told
    assert modes(world) == ["ngram", "draft:int4", "ngram"]
    assert len(loads(world)) == 1
    assert world.state.running is None


def test_a_smaller_context_is_set_before_a_draft_loads_and_a_larger_one_after_one_went() -> None:
    world = World(DRAFTING).start()
    small = replace(PLAIN.knobs, speculation=("ngram",), context_max=1024, context_min=256)
    drafting = replace(small, speculation=("draft:int4",), context_max=512)
    for knobs in (small, drafting, replace(small, context_max=2048)):
        world.policy = policy(knobs=knobs, revision=str(len(world.actions)))
        world.post(PolicyChanged(world.now, world.policy.revision))
        world.run(3)
    steps = [one for one in world.actions if isinstance(one, SetContext | SetSpeculation)]

    assert [type(one) for one in steps[-4:]] == [
        SetContext,
        SetSpeculation,
        SetSpeculation,
        SetContext,
    ]
    assert (world.point.context, world.point.speculation) == (2048, "ngram")


# ---------------------------------------------------------------- what a draft gains


def speculates(policy_modes: tuple[str, ...], variant: str, of: ModelSpec = LADDER) -> World:
    """A world whose only target is this variant."""
    knobs = replace(PLAIN.knobs, speculation=policy_modes, variants=(variant,))
    return World(policy(knobs=knobs), model=of).start()


def test_a_draft_that_gains_nothing_is_not_loaded_though_there_is_room() -> None:
    for variant in ("int8", "fp32"):
        world = speculates(("off", "ngram", "draft:int4"), variant)
        world.run(120)
        loaded = loads(world)
        expected = "ngram" if variant == "int8" else "draft:int4"

        assert loaded == [(variant, expected)]


def test_speeds_that_are_known_say_whether_a_draft_pays() -> None:
    slow = replace(LADDER, variants=tuple(with_speed(one, 10.0) for one in LADDER.variants))

    assert speculates(("ngram", "draft:int4"), "fp32", slow).point.speculation == "ngram"


def with_speed(variant: VariantSpec, decode_tps: float) -> VariantSpec:
    """As it was seen when it was built."""
    return replace(variant, decode_tps=decode_tps, prefill_tps=6 * decode_tps)


def test_a_draft_that_is_no_smaller_than_its_target_never_drafts() -> None:
    world = speculates(("off", "ngram", "draft:int8"), "int4")

    assert world.point.speculation == "ngram"
    assert reasons(world, "int4") == {
        "off": "",
        "ngram": "",
        "draft:int8": "its draft int8 is no smaller than int4 itself",
    }


def test_a_policy_that_names_only_a_draft_gets_it_where_it_is_smaller() -> None:
    small = speculates(("draft:int4",), "int8")
    large = speculates(("draft:int8",), "int4")

    assert small.point.speculation == "draft:int4"
    assert large.point.speculation == "off"


def test_people_are_told_why_a_draft_is_not_used() -> None:
    world = speculates(("off", "ngram", "draft:int4"), "int8")
    judged = assess(world.state, world.policy, world.policy.knobs, world.model, world.now)
    why = passed_over(world.state, world.policy, judged, world.now)
    point = replace(world.point, speculation="draft:int4")

    told = "its draft int4 is expected to gain nothing over n-grams, and takes memory"
    recorded = {one.point: one.reason for one in world.decisions[0].excluded}

    assert why[point] == told
    assert recorded == {point: told}


def test_the_record_says_that_a_draft_went_for_memory() -> None:
    world = which_dropped_its_draft(World(DRAFTING))
    (drafting,) = [one for one in world.decisions[-1].excluded if one.point.variant == "fp32"]

    assert drafting.point == replace(world.point, speculation="draft:int4")
    assert drafting.reason.startswith("it would leave")
