import time
from pathlib import Path

import pytest
from policy_files import (
    DESIGN_EXAMPLE,
    MINIMAL,
    VARIANTS,
    load_changed,
    load_text,
    rule,
)

from trimtab.domain.knobs import KvPlacement
from trimtab.errors import PolicyError
from trimtab.policy.compiled import (
    Carry,
    Comparison,
    Corner,
    Floor,
    MemoryLimit,
    Not,
    SignalCondition,
    Slo,
    TemperatureLimit,
    Window,
)
from trimtab.policy.load import LoadResult
from trimtab.policy.problems import Severity, describe


def _text(result: LoadResult) -> str:
    return describe(result.problems)


def test_the_designs_example_compiles_unchanged(tmp_path: Path) -> None:
    result = load_text(DESIGN_EXAMPLE, tmp_path, name="voice-assistant", variants=VARIANTS)

    policy = result.require()
    assert result.problems == ()
    assert policy.protect == (Corner.LATENCY, Corner.MEMORY)
    assert policy.sacrifice is Corner.ACCURACY
    assert policy.slo == Slo(0.3, 0.05, 60)
    assert policy.memory == MemoryLimit(512 * 2**20, 768 * 2**20)
    assert policy.temperature == TemperatureLimit(80, 72)
    assert policy.floor == Floor(0.65, 1024)
    assert policy.knobs.variants == ("int8", "int4_mixed", "int4")
    assert policy.knobs.speculation == ("off", "ngram")
    assert policy.knobs.kv_placement == (KvPlacement.MEMORY, KvPlacement.DISK)
    assert (policy.knobs.threads_max, policy.knobs.pace_min_ratio) == (4, 0.4)
    assert policy.handover.up is Carry.REPLAY
    assert policy.admission.priorities == (("interactive", 1), ("background", 0.2))
    assert policy.kv.pool_bytes == 2**30
    (stalls,) = policy.rules
    assert isinstance(stalls.leave, SignalCondition)
    assert stalls.leave.signal == "memory.psi.some_avg10"
    assert (stalls.leave.comparison, stalls.leave.threshold) == (Comparison.BELOW, 0.02)
    assert stalls.then.context_at_most == 2048
    assert stalls.then.speculation == frozenset({"off"})


def test_a_minimal_policy_has_a_memory_limit_and_sane_defaults(tmp_path: Path) -> None:
    policy = load_text(MINIMAL, tmp_path).require()

    assert policy.sacrifice is Corner.ACCURACY
    assert policy.memory == MemoryLimit(256 * 2**20, 384 * 2**20)
    assert policy.temperature is None
    assert policy.knobs.variants == ()
    assert policy.floor.context == policy.knobs.context_min == 512


def test_a_policy_loads_within_its_time(tmp_path: Path) -> None:
    load_text(DESIGN_EXAMPLE, tmp_path, name="voice-assistant")

    times = []
    for _ in range(5):
        began = time.process_time()
        load_text(DESIGN_EXAMPLE, tmp_path, name="voice-assistant")
        times.append(time.process_time() - began)

    assert min(times) < 0.05


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "headroom: 512MiB",
            "headrom: 512MiB",
            ":8:12: error: limits.memory.headrom: unknown field 'headrom'; "
            "allowed are headroom, leave. Try: headroom",
        ),
        (
            "some_avg10, above",
            "some_avg_10, above",
            "unknown signal 'memory.psi.some_avg_10'; 'trimtab signals' lists all of them. "
            "Try: memory.psi.some_avg10",
        ),
        ("leave: 768MiB", "leave: 76MiB", "limits.memory.leave: on the wrong side"),
        ("leave: 72C", "leave: 82C", "limits.temperature.leave: on the wrong side"),
        ("enter: 80C", "enter: 800C", "limits.temperature.enter: 800C is no limit for a processor"),
        ("enter: 80C", "enter: 80F", "temperatures are in Celsius. Try: 27C"),
        (
            "below: 2%",
            "below: 20%",
            "rules[0].leave: on the wrong side: the rule begins above 10% and would end below 20%",
        ),
        ("below: 2%", "above: 2%", "rules[0].leave: on the wrong side"),
        ("below: 2%", "below: 0%", "would never end: memory.psi.some_avg10 is never below 0%"),
        (
            "above: 10%",
            "above: 100%",
            "can never come in force: memory.psi.some_avg10 is never above 100%",
        ),
        (
            "at_most: 2048",
            "at_most: 512",
            "at most 512 tokens, but the policy's own bounds and floor begin at",
        ),
        ("at_most: 2048", "at_least: 9000", "but the policy's own bounds end at 8192"),
        ("speculation: off}", "speculation: draft:int4}", "draft:int4 isn't among"),
        ("min: 40%", "min: 4%", "knobs.pace.min: found '4%'; it must be at least 0.1"),
        ("max: 4}", "max: 0}", "knobs.threads.max: found 0; it must be at least 1"),
        (
            "context: {min: 1024, max: 8192",
            "context: {min: 9000, max: 8192",
            "knobs.context: min is 9000 and max is 8192: nothing remains",
        ),
        (
            "quality: 0.65, context: 1024",
            "quality: 0.65, context: 10000",
            "floor.context: 10000 tokens is above knobs.context.max, 8192. Try: 8192",
        ),
        ("window: 60s", "window: 60ms", "slo.window: shorter than a tick"),
        ("dwell: 30s", "dwell: 30ms", "stability.dwell: shorter than a tick"),
        ("for: 5s", "for: 0.5s", "rules[0].when.all[0].for: shorter than a tick"),
        ("[off, ngram]", "[off, ngram, off]", "knobs.speculation[2]: 'off' is here a second time"),
        ("protect: [latency, memory]", "protect: [latency]", "1 corner is protected; two hold"),
        ("protect: [latency, memory]", "protect: [latency, latency]", "a corner is named twice"),
        (
            "sacrifice: accuracy",
            "sacrifice: memory",
            "what gives is the third corner. Try: accuracy",
        ),
        ("version: 1", "version: 2", "version: found 2; allowed: 1"),
        ("down: kv", "down: vk", "handover.down: found 'vk'; allowed: kv, replay"),
        ("queue: 8", "queue: -8", "admission.queue: found -8; it must be at least 0"),
        ("queue: 8", "queue: .nan", "admission.queue: found nan; a whole number is wanted"),
        ("ttft_p95: 300ms", "ttft_p95: 300", "Try: 300ms or 300s"),
        ("ttft_p95: 300ms", "ttft_p95: ", "slo.ttft_p95: nothing stands here"),
        ("interactive: 1,", "interactive: 0,", "it must be more than 0"),
    ],
)
def test_a_fault_is_named_with_place_and_way_out(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    result = load_changed(tmp_path, (old, new))

    assert result.policy is None
    assert expected in _text(result)


def test_protecting_all_three_corners_explains_the_triangle(tmp_path: Path) -> None:
    result = load_changed(tmp_path, ("[latency, memory]", "[latency, memory, accuracy]"))

    (problem,) = result.errors
    assert problem.line == 4
    assert "a device can hold two of them" in problem.message
    assert "precise and small one is slow" in problem.message


def test_all_errors_come_at_once_those_of_form_and_those_of_meaning(tmp_path: Path) -> None:
    result = load_changed(
        tmp_path,
        ("ttft_p95: 300ms", "ttft_p95: 300MiB"),
        ("leave: 768MiB", "leave: 1MiB"),
        ("above: 10%", "abov: 10%"),
        ("share: user", "share: everyone"),
        ("queue: 8", "queue: many"),
        ("window: 60s", "window: 1ms"),
    )

    paths = [problem.path for problem in result.errors]
    assert paths == [
        "slo.ttft_p95",
        "slo.window",
        "limits.memory.leave",
        "rules[0].when.all[0].abov",
        "admission.queue",
        "kv.share",
    ]


def test_a_fault_in_a_later_rule_keeps_its_number(tmp_path: Path) -> None:
    text = rule("{signal: nowhere, above: 1}", "{below: 1}").replace(
        "  - name: a rule", "  - nonsense\n  - name: a rule"
    )

    paths = [problem.path for problem in load_text(text, tmp_path).errors]

    assert paths == ["rules[0]", "rules[1].when.signal"]


@pytest.mark.parametrize(
    ("when", "leave", "expected"),
    [
        ("{signal: memory.available}", "{above: 1GiB}", "exactly one comparison"),
        (
            "{signal: memory.available, above: 1GiB, below: 2GiB}",
            "{above: 1GiB}",
            "found above, below",
        ),
        ("{signal: memory.available, below: 1GiB}", None, "the field 'leave' is missing"),
        ("{signal: memory.available, below: 80C}", "{above: 1GiB}", "a size is wanted"),
        ("{signal: memory.available, below: 1GiB, over: 5s}", "{above: 2GiB}", "only a trend"),
        ("{signal: memory.available, falling_faster_than: 20MiB}", "{above: 2GiB}", "20MiB/s"),
        ("{all: []}", "{above: 2GiB}", "at least 1 are wanted"),
        (
            "{all: [{signal: temperature.max, above: 80C}, {signal: temperature.max, below: 70C}]}",
            "{signal: temperature.max, below: 60C}",
            "excludes",
        ),
        (
            "{any: [{signal: temperature.max, above: 8C}, {signal: memory.available, below: 1GB}]}",
            "{below: 60C}",
            "name the signal: 'when' looks at 2",
        ),
        ("{between: [22:00, 22:00]}", None, "no time at all"),
        ("{between: [22:00, 25:00]}", None, "a time of the day is wanted"),
        ("{all: [{between: [08:00, 09:00]}, {between: [10:00, 11:00]}]}", None, "excludes"),
        ("{signal: memory.available, is: true}", "{is: false}", "isn't true or false"),
        ("5", None, "one of signal, all, any, not, between"),
        ("{above: 5}", None, "the field 'signal' is missing"),
    ],
)
def test_a_condition_that_cannot_be_meant_is_refused(
    tmp_path: Path, when: str, leave: str | None, expected: str
) -> None:
    result = load_text(rule(when, leave), tmp_path)

    assert result.policy is None
    assert expected in _text(result)


def test_a_rule_that_always_holds_or_changes_nothing_is_a_warning(tmp_path: Path) -> None:
    text = rule(
        "{signal: temperature.max, above: -50C}", "{below: -60C}", "{context: {at_most: 8192}}"
    )

    result = load_text(text.replace("below: -60C", "below: -39C"), tmp_path)

    messages = _text(result)
    assert "always in force" in messages
    assert "this changes nothing" in messages


def test_a_rule_bound_to_the_time_of_the_day_needs_no_leave(tmp_path: Path) -> None:
    policy = load_text(rule("{between: [22:00, 06:00]}", None), tmp_path).require()

    assert isinstance(policy.rules[0].leave, Not)


def test_rules_that_leave_nothing_together_are_refused(tmp_path: Path) -> None:
    hot = "{signal: temperature.max, above: 80C}"
    text = rule(hot, "{below: 70C}", "{context: {at_most: 1024}}", "one") + (
        "  - name: two\n    when: {signal: memory.available, below: 1GiB}\n"
        "    leave: {above: 2GiB}\n    then: {context: {at_least: 2048}}\n"
    )

    (problem,) = load_text(text, tmp_path).errors

    assert problem.path == "rules[1].then.context"
    assert "contradicts the rule 'one'" in problem.message


def test_rules_of_different_hours_do_not_contradict_each_other(tmp_path: Path) -> None:
    text = rule("{between: [22:00, 06:00]}", None, "{context: 1024}", "night") + (
        "  - name: day\n    when: {between: [06:00, 22:00]}\n    then: {context: 4096}\n"
    )

    assert load_text(text, tmp_path).policy is not None


def test_variants_of_a_rule_go_by_the_policys_order(tmp_path: Path) -> None:
    text = rule(
        "{signal: temperature.max, above: 80C}", "{below: 70C}", "{variant: {at_most: int8}}"
    )

    refused = load_text(text, tmp_path)
    policy = load_text(text + "knobs: {variant: [fp32, int8, int4]}\n", tmp_path).require()

    assert "goes by the order of knobs.variant" in _text(refused)
    assert policy.rules[0].then.variants == frozenset({"int8", "int4"})


def test_a_variant_that_the_device_lacks_is_a_warning_with_what_remains(tmp_path: Path) -> None:
    result = load_changed(tmp_path, ("int4_mixed", "int3"), variants=VARIANTS)

    assert result.policy is not None
    (problem,) = result.problems
    assert problem.severity is Severity.WARNING
    assert problem.message == "this device's model has no variant 'int3'; int8, int4 remain"


def test_a_draft_that_can_never_draft_for_a_variant_is_a_warning(tmp_path: Path) -> None:
    result = load_text(
        MINIMAL + "knobs: {speculation: [off, 'draft:int4']}\n",
        tmp_path,
        variants=("fp32", "fp32_kv8", "int8_kv8", "int4"),
        fingerprints={"fp32": "a", "fp32_kv8": "b", "int8_kv8": "b", "int4": "a"},
    )

    assert result.policy is not None
    (problem,) = result.problems
    assert problem.severity is Severity.WARNING
    assert problem.path == "knobs.speculation[1]"
    assert problem.message == (
        "int4 never drafts for fp32_kv8, int8_kv8: their KV cache is of another kind"
    )
    assert problem.suggestion == "draft:int8_kv8 beside it"


def test_a_draft_that_no_variant_shares_its_kv_with_is_told_the_way_out(tmp_path: Path) -> None:
    result = load_text(
        MINIMAL + "knobs: {speculation: [off, 'draft:int4']}\n",
        tmp_path,
        variants=("fp32_kv8", "int4"),
        fingerprints={"fp32_kv8": "b", "int4": "a"},
    )
    unknown = load_text(
        MINIMAL + "knobs: {speculation: [off, 'draft:int4']}\n",
        tmp_path,
        variants=("fp32_kv8", "int4"),
    )

    assert not unknown.problems
    (problem,) = result.problems
    assert problem.suggestion == "a draft whose KV cache is like theirs, or none"


def test_it_is_an_error_if_no_variant_remains(tmp_path: Path) -> None:
    result = load_changed(tmp_path, ("[int8, int4_mixed, int4]", "[int3, int2]"), variants=VARIANTS)

    assert "nothing remains; it has fp32, int8, int4_mixed, int4" in _text(result)


def test_a_floor_above_every_variant_is_an_error(tmp_path: Path) -> None:
    result = load_changed(tmp_path, ("quality: 0.65", "quality: 0.99"), variants=VARIANTS)

    assert "floor.quality: 0.99 is above every variant that may be used; the best of" in _text(
        result
    )


def test_a_policy_error_has_every_problem_in_its_message(tmp_path: Path) -> None:
    result = load_changed(tmp_path, ("queue: 8", "queue: x"), ("share: user", "share: x"))

    with pytest.raises(PolicyError) as caught:
        result.require()

    assert caught.value.message.startswith("2 errors in the policy\n")
    assert "admission.queue" in caught.value.message
    assert "kv.share" in caught.value.message


@pytest.mark.parametrize(("written", "keep"), [("system_prompt", None), ("4", 4)])
def test_a_window_is_shifted_with_what_the_policy_keeps(
    tmp_path: Path, written: str, keep: int | None
) -> None:
    result = load_text(shifting(written), tmp_path)

    assert result.warnings == ()
    assert result.policy is not None
    assert result.policy.knobs.window == Window(shift=True, keep=keep)


def test_a_window_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    (told,) = load_text(shifting("0"), tmp_path).errors

    assert told.path.startswith("knobs.context.window")


def test_a_window_that_keeps_half_of_the_least_context_is_warned_of(tmp_path: Path) -> None:
    (told,) = load_text(shifting("300"), tmp_path).warnings

    assert "300 tokens" in told.message
    assert "512" in told.message


def shifting(keep: str) -> str:
    return MINIMAL + f"\nknobs:\n  context: {{window: {{shift: true, keep: {keep}}}}}\n"
