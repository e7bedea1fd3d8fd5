"""What the commands say, as people read it and as programs do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_gateway import ServedGateway, Told, run_command

from api_fakes import a_record, replace_policy
from trimtab.cli.chat import status_line
from trimtab.errors import RequestError
from trimtab.serving.control import WindowView

Run = Callable[..., Told]


def change(gateway: ServedGateway, **fields: Any) -> None:
    gateway.control.now = msgspec.structs.replace(gateway.control.now, **fields)


def test_status_shows_what_runs_on_one_screen(trimtab: Run, gateway: ServedGateway) -> None:
    change(gateway, last_decision=a_record(3), pinned={"variant": "int8"}, pin_expires_in_s=540.0)
    told = trimtab("status")

    assert told.code == 0
    assert "trimtab 0.1.0 is ready, serving tiny, up 62 s" in told.out
    assert "point    int8, 2048 tokens" in told.out
    assert "balanced (abc123def456)" in told.out
    assert "1 running, 0 queued, 41.5 tokens/s" in told.out
    assert "int8 ready, pid 77, 117 MiB, decoder kv, loaded in 400 ms" in told.out
    assert "variant=int8, for 9 min more" in told.out
    assert "Stepped down from int8 to int4" in told.out
    assert all(len(line) < 130 for line in told.out.splitlines())


def test_status_tells_a_stale_policy_and_a_parked_model(
    trimtab: Run, gateway: ServedGateway
) -> None:
    policy = replace_policy(gateway.control.now.policy, stale=True, error="balanced.yaml:3: bad")
    change(gateway, state="parked", reason="too hot: 90 °C", tokens_can_flow=False, policy=policy)
    told, checked = trimtab("status"), trimtab("status", "--check")

    assert "is parked" in told.out
    assert "too hot: 90 °C" in told.out
    assert "stale" in told.out
    assert "balanced.yaml:3: bad" in told.out
    assert (told.code, checked.code) == (0, 4)


def test_status_tells_what_is_forgotten_past_the_context(
    trimtab: Run, gateway: ServedGateway
) -> None:
    refusing = trimtab("status").out
    (worker,) = gateway.control.now.workers
    again = msgspec.structs.replace(worker, rereads="its KV cache is quantized (int8)")
    change(gateway, window=WindowView(True, None, 3, 1200), workers=[again])
    told = " ".join(trimtab("status").out.split())

    assert "window" not in refusing
    assert "past the context the oldest is forgotten, but for the system prompt" in told
    assert "3 shifts, 1200 tokens so far" in told
    assert "what stays is read again, since its KV cache is quantized (int8)" in told


def test_status_tells_which_draft_is_not_used(trimtab: Run, gateway: ServedGateway) -> None:
    (worker,) = gateway.control.now.workers
    alone = msgspec.structs.replace(worker, draft_lost="int4: its graph is damaged")
    change(gateway, workers=[alone])
    told = " ".join(trimtab("status").out.split())

    assert "loaded in 400 ms, without its draft (int4: its graph is damaged)" in told


def test_status_as_json_is_one_object(trimtab: Run) -> None:
    assert json.loads(trimtab("status", "--json").out)["point"]["variant"] == "int8"


def test_why_explains_the_last_decision_or_any(trimtab: Run, gateway: ServedGateway) -> None:
    last, second, missing = trimtab("why"), trimtab("why", "2"), trimtab("why", "99")
    gateway.control.records = []
    none = trimtab("why")

    assert "Stepped down from int8 to int4: 480 MiB of memory were available" in last.out
    assert second.code == 0
    assert missing.code == 1
    assert "There is no decision 99" in missing.err
    assert "No decision has been made yet" in none.out


def test_why_tells_what_is_kept_for_heat_now_and_not_of_an_older_decision(
    trimtab: Run, gateway: ServedGateway
) -> None:
    kept = "the pace is kept at 80%: at 100% it would reach 84 °C, over the limit of 80 °C"
    change(gateway, heat_kept=kept)
    last, second, program = trimtab("why"), trimtab("why", "2"), trimtab("why", "--json")
    status = " ".join(trimtab("status").out.split())

    assert f"Now {kept}." in " ".join(last.out.split())
    assert "kept" not in second.out
    assert "heat_kept" not in json.loads(program.out)
    assert f"heat {kept}" in status


def test_a_pinned_variant_that_is_left_out_is_told_by_status(
    trimtab: Run, gateway: ServedGateway
) -> None:
    change(gateway, pinned={"variant": "int4"}, pin_waits="it may be tried again in 50 s")
    told = " ".join(trimtab("status").out.split())

    assert "variant=int4, until it is unpinned; it may be tried again in 50 s" in told


def test_why_tells_what_was_left_out(trimtab: Run, gateway: ServedGateway) -> None:
    record = a_record(1)
    record["excluded"] = [{"point": record["source"], "reason": "it needs 90 MiB more"}]
    gateway.control.records = [record]

    assert "  int8, 2048 tokens: it needs 90 MiB more" in trimtab("why").out


def test_decisions_are_one_a_line_for_people_and_for_programs(trimtab: Run) -> None:
    people = trimtab("decisions", "-n", "2").out.splitlines()
    programs = trimtab("decisions", "--json").out.splitlines()

    assert [line.split()[0] for line in people] == ["#2", "#3"]
    assert [json.loads(line)["id"] for line in programs] == [1, 2, 3]


def test_decisions_can_be_followed(trimtab: Run, gateway: ServedGateway) -> None:
    gateway.soon(lambda: gateway.control.live.put_nowait(a_record(4)))
    gateway.soon(lambda: gateway.control.live.put_nowait(None))
    told = trimtab("decisions", "--follow", "--json")

    assert [json.loads(line)["id"] for line in told.out.splitlines()] == [1, 2, 3, 4]


def test_points_that_are_out_are_shown_with_their_reason_on_demand(trimtab: Run) -> None:
    few, all_ = trimtab("points"), trimtab("points", "--all")

    assert "▶  int8, 2048 tokens" in few.out
    assert "fp32" not in few.out
    assert "1 more are out now" in few.out
    assert "needs 90 MiB more memory" in all_.out


def test_pin_sends_numbers_as_numbers_and_percent_as_ratio(
    trimtab: Run, gateway: ServedGateway
) -> None:
    told = trimtab("pin", "variant=int8", "context=1024", "pace=40%", "--for", "10m")

    assert told.out == "Pinned variant=int8, context=1024, pace=0.4 for 10 min.\n"
    assert gateway.control.orders[0][1:3] == (
        {"variant": "int8", "context": 1024, "pace": 0.4},
        600.0,
    )


def test_unpin_pause_and_resume_say_what_they_did(trimtab: Run, gateway: ServedGateway) -> None:
    said = [trimtab(name).out for name in ("unpin", "pause", "resume")]

    assert said == [
        "Nothing is pinned.\n",
        "Steps are stopped, but for memory safety.\n",
        "Steps go on.\n",
    ]
    assert [order[0] for order in gateway.control.orders] == ["unpin", "pause", "pause"]


def test_a_refusal_is_told_in_the_daemons_words(trimtab: Run, gateway: ServedGateway) -> None:
    gateway.control.refuse = RequestError("int9 is no variant", hint="There are: fp32, int8.")
    told = trimtab("pin", "variant=int9")

    assert told.code == 1
    assert told.err == "int9 is no variant\nThere are: fp32, int8."


def test_a_knob_without_a_value_is_wrong_usage(trimtab: Run) -> None:
    told = trimtab("pin", "variant")

    assert told.code == 2
    assert "no KNOB=VALUE" in told.err


def test_chat_answers_a_prompt_and_a_pipe_with_the_text_alone(
    trimtab: Run, gateway: ServedGateway
) -> None:
    prompt = trimtab("chat", "--system", "Be kind.", "Hi", "there")
    pipe = trimtab("chat", "--max-tokens", "9", stdin="What is this?\n")

    assert prompt.out == pipe.out == "Hello wörld!\n"
    assert gateway.inference.requests[0].messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi there"},
    ]
    assert gateway.inference.requests[1].max_tokens == 9


def test_chat_without_a_model_says_how_to_get_one(trimtab: Run, gateway: ServedGateway) -> None:
    gateway.inference.served = None
    told = trimtab("chat", "Hi")

    assert told.code == 1
    assert "trimtab models build" in told.err


def test_the_line_under_an_answer_tells_point_and_speed() -> None:
    end = {
        "trimtab": {"variant": "int4", "context": 2048, "variants": ["int8", "int4"], "resumed": 1},
        "usage": {"completion_tokens": 41},
        "reason": "length",
    }

    assert status_line(end, 10.0, 10.08, 11.08) == (
        "  [int8 → int4, 2048 tokens of context, 40.0 tokens/s, first after 80 ms, "
        "cut off at the limit, resumed after a worker was lost]"
    )


def test_config_show_says_where_each_value_came_from(trimtab: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('policy = "night"\n')
    people = trimtab("--config", str(file), "--set", "api.idle=30s", "config", "show")
    programs = json.loads(trimtab("--config", str(file), "config", "show", "--json").out)

    lines = {line.split()[0]: line for line in people.out.splitlines()}
    assert lines["policy"].endswith(f"# file {file}:1")
    assert lines["api.idle"].split()[1] == "30s"
    assert lines["api.idle"].endswith("# flag --set api.idle")
    assert lines["sockets.folder"].endswith("# environment TRIMTAB_SOCKETS_FOLDER")
    assert lines["sockets.control_mode"].split()[1] == "0600"
    assert programs["policy"] == {"value": "night", "origin": "file", "where": f"{file}:1"}


def test_config_check_names_each_fault_and_exits_with_2(trimtab: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("tick = 5\n")
    bad = trimtab("--config", str(file), "config", "check")
    file.write_text('tick = "5s"\n')
    good = trimtab("--config", str(file), "config", "check")

    assert bad.code == 2
    assert f"{file}:1: tick: found 5 without a unit" in bad.err
    assert (good.code, good.out) == (0, f"{file}: the configuration is right.\n")


def test_without_a_daemon_every_command_says_so_and_exits_with_3(tmp_path: Path) -> None:
    for command in ("status", "why", "decisions", "points", "unpin", "pause", "chat"):
        told = run_command("--sockets", str(tmp_path / "none"), command)

        assert told.code == 3
        assert f"trimtab isn't running at {tmp_path}/none/" in told.err
        assert "trimtab run" in told.err


def test_a_socket_whose_daemon_is_dead_counts_as_not_running(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control.sock"))

    assert run_command("--sockets", str(tmp_path), "status").code == 3


def test_the_console_script_prints_one_line_and_the_way_out(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "trimtab", "--sockets", str(tmp_path), "status"],
        capture_output=True,
        text=True,
    )

    assert ended.returncode == 3
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[0] == (
        f"trimtab: trimtab isn't running at {tmp_path}/control.sock"
    )
    assert ended.stderr.splitlines()[1].startswith("  Start it with `trimtab run`")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell: str) -> None:
    import os

    environ = os.environ | {
        "_TRIMTAB_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "trimtab st",
        "COMP_CWORD": "1" if shell != "fish" else "st",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "trimtab"], capture_output=True, text=True, env=environ
    )

    assert "status" in ended.stdout
