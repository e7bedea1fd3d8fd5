import os
from pathlib import Path

import pytest
from policy_files import DESIGN_EXAMPLE, MINIMAL, load_text, rule

from trimtab.errors import PolicyError
from trimtab.policy.load import load_folder, load_policy
from trimtab.policy.problems import Severity, describe

BASE = """\
version: 1
name: base
description: The base.
protect: [latency, memory]
slo: {ttft_p95: 1s, tpot_p95: 100ms}
limits: {memory: {headroom: 1GiB, leave: 2GiB}}
rules:
  - name: hot
    when: {signal: temperature.max, above: 80C}
    leave: {below: 70C}
    then: {context: {at_most: 2048}}
  - name: stalls
    when: {signal: memory.psi.some_avg10, above: 10%}
    leave: {below: 2%}
    then: {context: {at_most: 1024}}
"""


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def test_extends_lays_one_policy_over_another(tmp_path: Path) -> None:
    _write(tmp_path, "base", BASE)
    own = """\
version: 1
name: own
extends: base
slo: {ttft_p95: 2s, tpot_p95: null}
limits: {memory: {leave: 3GiB}}
drop_rules: [stalls]
rules:
  - name: hot
    when: {signal: temperature.max, above: 75C}
    leave: {below: 65C}
    then: {context: {at_most: 4096}}
  - name: night
    when: {between: [22:00, 06:00]}
    then: {speculation: off}
"""

    policy = load_text(own, tmp_path, name="own").require()

    assert policy.name == "own"
    assert policy.description == ""
    assert (policy.slo.ttft_p95_s, policy.slo.tpot_p95_s) == (2, None)
    assert policy.memory is not None
    assert (policy.memory.headroom_bytes, policy.memory.leave_bytes) == (2**30, 3 * 2**30)
    assert [one.name for one in policy.rules] == ["hot", "night"]
    assert policy.rules[0].then.context_at_most == 4096


def test_a_fault_of_the_base_names_the_bases_file(tmp_path: Path) -> None:
    base = _write(tmp_path, "base", BASE.replace("leave: {below: 2%}", "leave: {below: 20%}"))

    result = load_text(MINIMAL + "extends: base\n", tmp_path)

    (problem,) = result.errors
    assert problem.file == str(base)
    assert (problem.line, problem.path) == (14, "rules[1].leave")


def test_the_revision_follows_every_file_that_a_policy_is_made_of(tmp_path: Path) -> None:
    _write(tmp_path, "base", BASE)
    before = load_text(MINIMAL + "extends: base\n", tmp_path).require()
    _write(tmp_path, "base", BASE + "# changed\n")

    after = load_policy("minimal", tmp_path, device=None)

    assert after.require().revision != before.revision
    assert {path.name for path in after.files} == {"minimal.yaml", "base.yaml"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"minimal": "extends: minimal"}, "a circle: minimal extends minimal"),
        ({"minimal": "extends: b", "b": "extends: minimal"}, "minimal extends b extends minimal"),
        ({"minimal": "extends: nowhere"}, "there is no policy 'nowhere'"),
        ({"minimal": "extends: ../../etc/passwd"}, "is no name of a policy"),
        ({"minimal": "extends: [a]"}, "extends: found a list; text is wanted"),
    ],
)
def test_extending_what_cannot_be_extended_is_an_error(
    tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    for name, line in files.items():
        _write(tmp_path, name, MINIMAL.replace("minimal", name) + line + "\n")

    result = load_policy("minimal", tmp_path, device=None)

    assert expected in describe(result.problems)


def test_dropping_a_rule_that_the_base_lacks_is_an_error(tmp_path: Path) -> None:
    _write(tmp_path, "base", BASE)

    result = load_text(MINIMAL + "extends: base\ndrop_rules: [stals]\n", tmp_path)

    assert "drop_rules[0]: the extended policy has no rule 'stals'. Try: stalls" in describe(
        result.problems
    )


def test_a_long_chain_of_extends_ends(tmp_path: Path) -> None:
    for number in range(12):
        text = MINIMAL.replace("minimal", f"p{number}") + f"extends: p{number + 1}\n"
        _write(tmp_path, f"p{number}", text)

    result = load_policy("p0", tmp_path, device=None)

    assert "more than 8 policies build on each other" in describe(result.problems)


def test_a_name_is_found_by_file_name_and_by_what_a_file_declares(tmp_path: Path) -> None:
    _write(tmp_path, "other", MINIMAL)

    result = load_policy("minimal", tmp_path, device=None)

    assert result.policy is not None
    (problem,) = result.problems
    assert problem.severity is Severity.WARNING
    assert problem.suggestion == "call the file minimal.yaml"


def test_an_unknown_name_lists_what_there_is(tmp_path: Path) -> None:
    _write(tmp_path, "minimal", MINIMAL)

    result = load_policy("minmal", tmp_path, device=None)

    assert "there is no policy 'minmal'" in result.problems[0].message
    assert result.problems[0].suggestion == "minimal"


def test_two_policies_with_one_name_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, "minimal", MINIMAL)
    _write(tmp_path, "other", MINIMAL)

    by_name = load_policy("minimal", tmp_path, device=None)
    folder = load_folder(tmp_path)

    assert "two policies are called 'minimal'" in describe(by_name.problems)
    assert all(result.policy is None for result in folder.values())


def test_a_symlink_to_a_policy_is_the_same_policy(tmp_path: Path) -> None:
    _write(tmp_path, "minimal", MINIMAL)
    (tmp_path / "current.yaml").symlink_to("minimal.yaml")

    results = load_folder(tmp_path)

    assert all(result.problems == () for result in results.values())


def test_links_that_lead_in_a_circle_or_nowhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("b.yaml")
    (tmp_path / "b.yaml").symlink_to("a.yaml")
    (tmp_path / "c.yaml").symlink_to("nowhere.yaml")

    for name in ("a", "b", "c"):
        assert load_policy(name, tmp_path, device=None).policy is None
    assert all(result.policy is None for result in load_folder(tmp_path).values())


def test_what_is_no_file_of_text_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()

    for name in ("pipe", "folder", "nowhere"):
        result = load_policy(tmp_path / f"{name}.yaml", tmp_path, device=None)
        assert result.policy is None
        assert "no" in result.problems[0].message


def test_a_folder_that_is_missing_empty_or_no_folder_is_an_error(tmp_path: Path) -> None:
    file = _write(tmp_path, "minimal", MINIMAL)
    empty = tmp_path / "empty"
    empty.mkdir()

    for folder, part in ((tmp_path / "x", "no folder"), (file, "no folder"), (empty, "no policy")):
        with pytest.raises(PolicyError, match=part):
            load_folder(folder)


SCHEDULE = 'schedule: [{{cron: "{cron}", for: {for_}, policy: {policy}, timezone: {zone}}}]\n'


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cron": "0 22 * *"}, "found 4 fields; five are wanted"),
        ({"cron": "61 22 * * *"}, "61 is no minute; allowed are 0 to 59"),
        ({"cron": "0 22 * * mun"}, "'mun' is no weekday"),
        ({"for_": "30s"}, "a schedule goes by the minute"),
        ({"policy": "nowhere"}, "there is no policy 'nowhere'"),
        ({"policy": "minimal"}, "a policy can't schedule itself"),
        ({"policy": "broken"}, "broken has errors"),
        ({"zone": "Mars/Olympus"}, "unknown time zone 'Mars/Olympus'"),
    ],
)
def test_a_schedule_is_checked_whole(tmp_path: Path, change: dict[str, str], expected: str) -> None:
    _write(tmp_path, "base", BASE)
    _write(tmp_path, "broken", "version: 1\nname: broken\n")
    sound = {"cron": "0 22 * * *", "for_": "8h", "policy": "base", "zone": "Europe/Berlin"}

    good = load_text(MINIMAL + SCHEDULE.format(**sound), tmp_path)
    bad = load_text(MINIMAL + SCHEDULE.format(**{**sound, **change}), tmp_path)

    assert good.problems == ()
    assert expected in describe(bad.errors)


def test_the_folders_of_tests_and_hidden_files_are_left_aside(tmp_path: Path) -> None:
    _write(tmp_path, "minimal", MINIMAL)
    _write(tmp_path, "minimal.test", "scenarios: []")
    _write(tmp_path, ".minimal", "half-written by an editor")

    assert [path.name for path in load_folder(tmp_path)] == ["minimal.yaml"]


def test_a_second_rule_of_one_name_is_refused(tmp_path: Path) -> None:
    text = rule("{between: [22:00, 06:00]}", None)
    twice = text + text[text.index("  - name") :]

    assert "a second rule is called 'a rule'" in describe(load_text(twice, tmp_path).problems)
    assert load_text(DESIGN_EXAMPLE, tmp_path, name="voice-assistant").policy is not None
