"""Drafts of another variant: offered where they can work, left out where they fail."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from planner_world import LADDER, World

from policies_for_tests import PLAIN, policy
from trimtab.domain.actions import SwitchWorker
from trimtab.domain.events import DraftFailed
from trimtab.domain.models import ModelSpec
from trimtab.planner.assess import assess
from trimtab.planner.predict import loaded_bytes
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
    tried = len(loads(world))
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
