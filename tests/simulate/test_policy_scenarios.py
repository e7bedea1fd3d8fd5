from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from trimtab.domain.decisions import Direction
from trimtab.errors import PolicyError
from trimtab.policy.shelf import policy_files, scenario_files, shipped_folder
from trimtab.simulate.scenario import Outcome, load_scenarios, run_scenario
from trimtab.simulate.scenario_draw import draw_decisions, draw_miss

SHIPPED = shipped_folder()

HEAD = """\
version: 1
policy: balanced
device: {memory: 8GiB, others: 3GiB, bandwidth: 25GB/s}
catalog: 0.5b
scenarios:
"""


def _run(tmp_path: Path, text: str) -> Outcome:
    path = tmp_path / "balanced.test.yaml"
    path.write_text(HEAD + text)
    (scenario,) = load_scenarios(path, SHIPPED)
    return run_scenario(scenario)


def _refused(tmp_path: Path, text: str, head: str = HEAD) -> str:
    path = tmp_path / "balanced.test.yaml"
    path.write_text(head + text)
    with pytest.raises(PolicyError) as caught:
        load_scenarios(path, SHIPPED)
    return caught.value.message


@cache
def _outcomes(path: Path) -> tuple[Outcome, ...]:
    """Every scenario of a shipped file, run once for all tests."""
    return tuple(run_scenario(scenario) for scenario in load_scenarios(path, SHIPPED))


@pytest.mark.parametrize("path", scenario_files(SHIPPED), ids=lambda path: path.name)
def test_every_shipped_scenario_passes(path: Path) -> None:
    for outcome in _outcomes(path):
        assert outcome.passed, "\n".join(draw_miss(outcome.trace, one) for one in outcome.misses)


@pytest.mark.parametrize("path", policy_files(SHIPPED), ids=lambda path: path.name)
def test_every_shipped_policy_really_steps_down_and_up_again(path: Path) -> None:
    outcomes = _outcomes(path.with_name(path.stem + ".test.yaml"))

    steps = [{one.direction for one in outcome.trace.decisions} for outcome in outcomes]

    assert any({Direction.DOWN, Direction.UP} <= directions for directions in steps)


def test_a_scenario_runs_the_same_each_time() -> None:
    (scenario, *_) = load_scenarios(SHIPPED / "balanced.test.yaml", SHIPPED)

    first, second = run_scenario(scenario), run_scenario(scenario)

    assert first.trace.samples == second.trace.samples
    assert first.trace.decisions == second.trace.decisions


SQUEEZE = """\
  - name: a squeeze
    for: 10min
    timeline:
      - {at: 2min, others: 6800MiB, over: 10s}
      - {at: 5min, others: 3GiB}
    expect:
      - %s
"""


@pytest.mark.parametrize(
    "expectation",
    [
        "{at: 1min, variant: fp32}",
        "{by: 1min, variant: fp32, context: 8192, pace: 100%}",
        "{from: 2m15s, until: 5min, parked: false}",
        "{from: 2m15s, available: {at_least: 512MiB}}",
        "{never: {parked: true}}",
        "{from: 5min, by: 8min, variant: fp32}",
        "{at_least: {down: 1, up: 1}, at_most: {parked: 0}}",
        "{at_most: {switches: 0}, until: 2min}",
        "{at: 1min, no_rule: memory stalls above 10 % for 5 s}",
    ],
)
def test_an_expectation_that_is_met_passes(tmp_path: Path, expectation: str) -> None:
    text = SQUEEZE % expectation
    if "at_least: {down" in expectation:
        text = text.replace(
            "{at_least: {down: 1, up: 1}, at_most: {parked: 0}}", "{at_least: {down: 1, up: 1}}"
        )

    assert _run(tmp_path, text).passed


@pytest.mark.parametrize(
    ("expectation", "expected", "found"),
    [
        ("{at: 3min, variant: fp32}", "at 3m: variant fp32", "it was int"),
        ("{from: 2min, by: 4min, variant: fp32, context: 512}", "between 2m and 4m", "never came"),
        ("{from: 2m10s, by: 3min, variant: fp32}", "variant fp32", "it came at 5m"),
        ("{from: 1min, until: 4min, variant: fp32}", "from 1m to 4m: variant fp32", "it was"),
        (
            "{never: {available: {at_most: 2GiB}}}",
            "never: available at most 2GiB",
            "iB available",
        ),
        ("{at_most: {down: 0}}", "at most 0 down", "there were"),
        ("{at_least: {switches: 9}}", "at least 9 switches", "there were"),
        ("{at: 3min, rule: memory stalls above 10 % for 5 s}", "rule 'memory", "in force: none"),
    ],
)
def test_an_expectation_that_is_missed_says_what_was_so_instead(
    tmp_path: Path, expectation: str, expected: str, found: str
) -> None:
    (miss,) = _run(tmp_path, SQUEEZE % expectation).misses

    assert miss.line == 12
    assert expected in miss.expected
    assert found in miss.found


def test_a_miss_is_drawn_as_the_timeline_around_it(tmp_path: Path) -> None:
    outcome = _run(tmp_path, SQUEEZE % "{from: 1min, until: 4min, variant: fp32}")

    drawn = draw_miss(outcome.trace, outcome.misses[0])

    lines = drawn.splitlines()
    assert lines[0] == "line 12: expected from 1m to 4m: variant fp32"
    assert "others take 6800 MiB over 10 s" in drawn
    assert "▼ down to int" in drawn
    assert len([line for line in lines if line.lstrip().startswith("✗")]) == 1
    assert "█" in drawn
    assert "┃" in drawn
    assert draw_decisions(outcome.trace).splitlines()[0].strip().startswith("0s")


def test_requests_wait_run_are_refused_and_have_their_latency(tmp_path: Path) -> None:
    text = """\
  - name: more than it can take
    for: 5min
    timeline:
      - {at: 10s, requests: {every: 1s, prompt: 400, answer: 200}}
      - {at: 1min, requests: none}
      - {at: 2min, request: {prompt: 9000, answer: 10}}
    expect:
      - {at_least: {refused: 5, answered: 3}}
"""

    outcome = _run(tmp_path, text)

    assert outcome.passed
    assert max(sample.waiting for sample in outcome.trace.samples) > 4
    assert outcome.trace.samples[-1].running == 0
    total = outcome.trace.samples[-1].refused + outcome.trace.samples[-1].answered
    assert total == 52


def test_a_variant_that_does_not_load_is_left_out(tmp_path: Path) -> None:
    text = """\
  - name: the best variant is damaged
    for: 3min
    timeline:
      - {at: 0s, fails: [fp32]}
    expect:
      - {by: 1min, variant: int8}
      - {never: {variant: fp32}}
"""

    assert _run(tmp_path, text).passed


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("  - {name: x, for: 1min, expect: []}", "at least 1"),
        ("  - {name: x, for: 1min, expects: []}", "Try: expect"),
        ("  - {name: x, for: 1min, expect: [{variant: int8}]}", "when? Say at, by, from or until"),
        ("  - {name: x, for: 1min, expect: [{at: 2min, variant: int8}]}", "over by then"),
        ("  - {name: x, for: 1min, expect: [{at: 1s, variant: int9}]}", "no variant 'int9'"),
        ("  - {name: x, for: 1min, expect: [{by: 1s}]}", "say one thing"),
        (
            "  - {name: x, for: 1min, expect: [{never: {parked: true}, at_most: {up: 1}}]}",
            "say one thing",
        ),
        (
            "  - {name: x, for: 1min, timeline: [{at: 1s, set: {memory.availble: 1GiB}}], "
            "expect: [{at: 1s, parked: true}]}",
            "Try: memory.available",
        ),
        (
            "  - {name: x, for: 1min, timeline: [{at: 1s, set: {memory.available: 5C}}], "
            "expect: [{at: 1s, parked: true}]}",
            "a size is wanted",
        ),
        (
            "  - {name: x, for: 1min, timeline: [{at: 1s, policy: nowhere}], "
            "expect: [{at: 1s, parked: true}]}",
            "there is no policy 'nowhere'",
        ),
        (
            "  - {name: x, for: 1min, timeline: [{at: 1s, pin: {varaint: int8}}], "
            "expect: [{at: 1s, parked: true}]}",
            "Try: variant",
        ),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(tmp_path: Path, text: str, part: str) -> None:
    assert part in _refused(tmp_path, text + "\n")


def test_an_unknown_catalog_or_policy_is_named(tmp_path: Path) -> None:
    text = "  - {name: x, for: 1min, expect: [{at: 1s, parked: true}]}\n"

    assert "known are 135m" in _refused(tmp_path, text, HEAD.replace("0.5b", "0.6b"))
    assert "there is no policy" in _refused(tmp_path, text, HEAD.replace("balanced", "balancd"))
    with pytest.raises(PolicyError, match="can't be read"):
        load_scenarios(tmp_path / "x.test.yaml", SHIPPED)


def test_a_catalog_may_be_written_out(tmp_path: Path) -> None:
    catalog = (
        "catalog: {context: 4096, kv_per_token: 20KiB, variants: {a: {memory: 1GiB, quality: 1.0, "
        "speed: 20, prefill: 200, load: 2s}, b: {memory: 300MiB, quality: 0.9, speed: 50, "
        "prefill: 500, load: 1s}}}"
    )
    path = tmp_path / "balanced.test.yaml"
    text = "  - {name: x, for: 1min, expect: [{by: 30s, variant: a, context: 4096}]}\n"
    path.write_text(HEAD.replace("catalog: 0.5b", catalog) + text)

    (scenario,) = load_scenarios(path, SHIPPED)

    assert run_scenario(scenario).passed
