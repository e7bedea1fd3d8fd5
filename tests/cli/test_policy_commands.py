"""`trimtab policy`: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from ruamel.yaml import YAML

from api_fakes import a_trial, replace_policy
from trimtab.cli.policy_trial import report_text
from trimtab.policy.shelf import policy_files, shipped_folder
from trimtab.runtime.policy_library import show_values

# pytest imports every conftest under one name, so the command is run through the fixture.
Run = Callable[..., Any]

MINE = "version: 1\nname: mine\nprotect: [latency, memory]\nextends: base\n"
BASE = "version: 1\nname: base\nprotect: [latency, memory]\nslo: {ttft_p95: 1s}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy folder that the configuration names."""
    place = tmp_path / "mine"
    place.mkdir()
    (place / "base.yaml").write_text(BASE)
    (place / "mine.yaml").write_text(MINE)
    monkeypatch.setenv("TRIMTAB_POLICIES", str(place))
    monkeypatch.setenv("TRIMTAB_POLICY", "mine")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    return place


def test_check_says_ok_with_the_revision(trimtab: Run, folder: Path) -> None:
    told = trimtab("policy", "check")

    assert told.code == 0
    assert "mine.yaml: ok (revision " in told.out
    assert told.out.endswith("2 policies, 0 errors, 0 warnings\n")


def test_check_lists_every_error_and_ends_with_1(trimtab: Run, folder: Path) -> None:
    bad = folder / "mine.yaml"
    bad.write_text(MINE + "floor: {qualty: 0.5}\nadmission: {queue: x}\n")

    told = trimtab("policy", "check", str(bad))
    as_json = json.loads(trimtab("policy", "check", str(bad), "--json").out)

    assert told.code == 1
    assert f"{bad}:5:9: error: floor.qualty: unknown field 'qualty'" in told.out
    assert f"{bad}:6:20: error: admission.queue: found 'x'" in told.out
    assert "1 policy, 2 errors, 0 warnings" in told.out
    (result,) = as_json["policies"]
    assert [problem["line"] for problem in result["problems"]] == [5, 6]


def test_check_is_strict_about_warnings_when_asked(trimtab: Run, folder: Path) -> None:
    (folder / "mine.yaml").rename(folder / "other.yaml")

    assert trimtab("policy", "check").code == 0
    assert trimtab("policy", "check", "--strict").code == 1


def test_check_of_a_missing_folder_or_name_is_one_clear_error(trimtab: Run, folder: Path) -> None:
    told = trimtab("policy", "check", "nowhere")

    assert told.code == 1
    assert "there is no policy 'nowhere'" in told.out


def test_show_gives_every_value_its_origin_and_is_a_policy_itself(
    trimtab: Run, folder: Path, tmp_path: Path
) -> None:
    told = trimtab("policy", "show", "mine")
    copy = tmp_path / "mine.yaml"
    copy.write_text(told.out)

    lines = {
        line.split("#")[0].strip(): line.split("#")[1].strip()
        for line in told.out.splitlines()
        if "#" in line
    }
    assert lines["ttft_p95: 1s"] == f"{folder}/base.yaml:4"
    assert lines["name: mine"] == f"{folder}/mine.yaml:2"
    assert lines["window: 60s"] == "default"
    assert lines["sacrifice: accuracy"] == "follows from protect"
    assert trimtab("policy", "check", str(copy)).code == 0
    assert trimtab("policy", "diff", str(copy), "mine").code == 0


def test_diff_shows_what_counts_differently(trimtab: Run, folder: Path) -> None:
    (folder / "mine.yaml").write_text(MINE + "slo: {ttft_p95: 2s}\nfloor: {quality: 0.5}\n")

    told = trimtab("policy", "diff", "base", "mine")
    changes = json.loads(trimtab("policy", "diff", "base", "mine", "--json").out)

    assert told.code == 1
    assert told.out == "slo.ttft_p95\n  - 1s\n  + 2s\nfloor.quality\n  - 0\n  + 0.5\n"
    assert [change["path"] for change in changes] == ["slo.ttft_p95", "floor.quality"]


def test_list_marks_the_configured_policy(trimtab: Run, folder: Path) -> None:
    told = trimtab("policy", "list")

    assert "* mine" in told.out
    assert "  balanced" in told.out


def test_the_committed_json_schema_is_current(trimtab: Run) -> None:
    committed = (shipped_folder() / "policy.schema.json").read_text()

    assert trimtab("policy", "schema").out == committed


@pytest.mark.parametrize("path", policy_files(shipped_folder()), ids=lambda path: path.name)
def test_editors_find_nothing_wrong_with_a_shipped_policy(path: Path) -> None:
    schema = json.loads((shipped_folder() / "policy.schema.json").read_text())

    jsonschema.validate(YAML(typ="safe", pure=True).load(path.read_text()), schema)


def test_the_tests_of_a_policy_run_by_its_name(trimtab: Run) -> None:
    told = trimtab("policy", "test", str(shipped_folder() / "night.yaml"))

    assert told.code == 0
    assert "✓ night: the backup has the memory" in told.out
    assert "1 passed, 0 failed (60 simulated minutes in" in told.out


def test_a_scenario_that_fails_shows_its_timeline_and_ends_with_1(
    trimtab: Run, folder: Path
) -> None:
    scenario = folder / "mine.test.yaml"
    scenario.write_text(
        "version: 1\ndevice: {memory: 4GiB, others: 2GiB}\ncatalog: 135m\nscenarios:\n"
        "  - {name: too much to ask, for: 1min, expect: [{by: 30s, variant: int4}]}\n"
    )

    told = trimtab("policy", "test")
    as_json = json.loads(trimtab("policy", "test", "--json").out)

    assert told.code == 1
    assert "✗ mine: too much to ask" in told.out
    assert f"{scenario}, line 5: expected by 30s: variant int4" in told.out
    assert as_json["failed"] == 1


def test_use_and_reload_go_to_the_daemon(trimtab: Run, gateway: Any) -> None:
    used, again = trimtab("policy", "use", "latency-first"), trimtab("policy", "reload")

    assert used.out == "In force: latency-first, revision abc123def456.\n"
    assert again.code == 0
    assert [order[0] for order in gateway.control.orders] == ["use_policy", "reload"]


def test_a_trial_sends_the_whole_policy_and_none_is_an_error(
    trimtab: Run, gateway: Any, folder: Path
) -> None:
    nothing = trimtab("policy", "trial")
    told = trimtab("policy", "trial", "mine", "--for", "5m", "--detach", "--json")

    assert nothing.code == 2
    assert "no policy has been tried" in nothing.err
    assert json.loads(told.out)["running"] is True
    ((_, text, for_s, _),) = gateway.control.orders
    assert "ttft_p95: 1s" in text
    assert "extends" not in text
    assert for_s == 300


def test_a_trials_report_reads_well() -> None:
    text = report_text(a_trial(running=False))

    assert "mine was tried in shadow for 10min." in text
    assert "elsewhere for 2min (20%)" in text
    assert "10s to 130s: int4, 4096 tokens instead of int8, 4096 tokens (300 MiB" in text
    assert "400MiB" in text


def served(gateway: Any, **view: Any) -> None:
    """Let the gateway's daemon go by `mine` as it is on disk."""
    folder = Path(os.environ["TRIMTAB_POLICIES"])
    told = show_values("mine", folder, None)
    gateway.control.values = told["values"]
    policy = replace_policy(gateway.control.now.policy, name="mine", **view)
    gateway.control.now = msgspec.structs.replace(gateway.control.now, policy=policy)


def test_show_without_a_name_shows_what_the_daemon_goes_by_not_what_the_file_says_now(
    trimtab: Run, folder: Path, gateway: Any, tmp_path: Path
) -> None:
    served(gateway)
    (folder / "base.yaml").write_text(BASE.replace("1s", "7s"))

    told = trimtab("policy", "show")
    copy = tmp_path / "mine.yaml"
    copy.write_text(told.out)

    assert told.out.startswith("# In force: mine, revision abc123def456.\n")
    assert "ttft_p95: 1s" in told.out
    assert "ttft_p95: 7s" in trimtab("policy", "show", "mine").out
    assert trimtab("policy", "check", str(copy)).code == 0


def test_show_says_that_the_file_is_bad_and_that_another_policy_is_configured(
    trimtab: Run, folder: Path, gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(gateway, stale=True, error="1 error in the policy\nmine.yaml:3: no")
    monkeypatch.setenv("TRIMTAB_POLICY", "base")

    told = trimtab("policy", "show")
    as_json = json.loads(trimtab("policy", "show", "--json").out)

    assert "# Its file says otherwise and is bad (1 error in the policy), so" in told.out
    assert "# The configuration names base; a schedule or `trimtab policy use` chose" in told.out
    assert as_json["in_force"] is True
    assert len(as_json["notes"]) == 4
    assert as_json["values"][0] == {
        "path": ["version"],
        "text": "1",
        "origin": f"{folder}/mine.yaml:1",
    }


def test_show_without_a_daemon_says_that_it_is_the_configured_policy(
    trimtab: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_SOCKETS_FOLDER", str(tmp_path / "nobody"))

    told = trimtab("policy", "show")

    assert told.code == 0
    assert told.out.startswith("# No daemon runs: this is mine, the policy that the configuration")
    assert "name: mine" in told.out


def test_check_against_a_model_warns_of_a_draft_that_is_too_large(
    trimtab: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_MODELS", str(Path(__file__).parent.parent))
    file = folder / "mine.yaml"
    file.write_text(MINE + "knobs:\n  speculation: [off, 'draft:int4']\n")
    told = trimtab("policy", "check", str(file), "--model", "tiny")
    alone = trimtab("policy", "check", str(file))

    assert told.code == 0
    assert f"{file}:6:22: warning: knobs.speculation[1]: int4 never drafts: none of " in told.out
    assert "Try: draft:fp32" in told.out
    assert "1 policy, 0 errors, 0 warnings" in alone.out
