"""The whole way: official clients, sockets, controller, a real worker with the tiny model."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from odd_requests import fuzz

from real_daemon import RealDaemon

MESSAGES: Any = [{"role": "user", "content": "Tell me about the sea."}]
LONG: Any = {
    "model": "tiny",
    "prompt": "Once",
    "stream": True,
    "max_tokens": 1200,
    "temperature": 0,
    "trimtab": {"ignore_eos": True},
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    running = RealDaemon(folder, API_READ_DEADLINE="1s", API_RATE="0").start()
    yield running
    running.end()


@pytest.fixture
def slowly(daemon: RealDaemon) -> Iterator[None]:
    """The tiny model at a tenth of its speed, so that there is something to watch."""
    daemon.slow_down()
    yield
    daemon.unpin()


def test_streamed_and_whole_answers_are_the_same_text(client: openai.OpenAI) -> None:
    options: Any = {
        "model": "tiny",
        "messages": MESSAGES,
        "temperature": 0,
        "max_completion_tokens": 40,
    }
    whole = client.chat.completions.create(**options)
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert whole.choices[0].message.content == text
    assert text
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens <= 40
    assert chunks[-2].model_extra is not None
    assert chunks[-2].model_extra["trimtab"]["variants"] == ["fp32"]


def test_a_seed_makes_a_sampled_answer_repeatable(client: openai.OpenAI) -> None:
    texts = {
        client.completions.create(
            model="tiny", prompt="Once upon", max_tokens=20, temperature=1, seed=seed
        )
        .choices[0]
        .text
        for seed in (7, 7, 8)
    }

    assert len(texts) == 2


def test_a_stop_string_ends_the_answer_and_isnt_in_it(client: openai.OpenAI) -> None:
    free = client.completions.create(model="tiny", prompt="Once", max_tokens=40, temperature=0)
    stop = free.choices[0].text[10:13]
    held = client.completions.create(
        model="tiny", prompt="Once", max_tokens=40, temperature=0, stop=[stop]
    )

    assert held.choices[0].finish_reason == "stop"
    assert held.choices[0].text == free.choices[0].text.split(stop)[0]


def test_logprobs_are_the_models_own(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        temperature=0,
        max_tokens=5,
        logprobs=True,
        top_logprobs=3,
    )

    assert answer.choices[0].logprobs is not None
    tokens = answer.choices[0].logprobs.content
    assert tokens is not None
    assert len(tokens) == 5
    assert all(one.logprob == one.top_logprobs[0].logprob < 0 for one in tokens)
    assert "".join(one.token for one in tokens) == answer.choices[0].message.content


def test_a_prompt_over_the_context_is_refused_with_the_context(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="word " * 5000)

    assert caught.value.code == "context_length_exceeded"
    assert "2048" in caught.value.message


def test_what_only_the_engine_can_refuse_is_400_too(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bias:
        client.completions.create(model="tiny", prompt="x", logit_bias={"99999": 1})
    with pytest.raises(openai.BadRequestError) as empty:
        client.completions.create(model="tiny", prompt="")

    assert "logit_bias" in bias.value.message
    assert empty.value.code == "prompt_empty"


def test_an_empty_prompt_is_400_and_names_the_field_that_was_sent(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="")

    assert (refused.value.code, refused.value.param) == ("prompt_empty", "prompt")


def test_another_model_is_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="fp32", messages=MESSAGES)


def test_curl_gets_a_stream(daemon: RealDaemon) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "stream": True, "max_tokens": 8}
    told = subprocess.run(
        [
            "curl", "-sSN", "--unix-socket", str(daemon.sockets / "inference.sock"),
            "http://trimtab/v1/chat/completions", "-d", json.dumps(body),
        ],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip

    events = [line for line in told.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] in {"stop", "length"}


def test_a_client_that_leaves_frees_its_slot(daemon: RealDaemon, slowly: None) -> None:
    with daemon.client() as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        running = daemon.status()["running"]
    until_s = time.monotonic() + 5
    while daemon.status()["running"] and time.monotonic() < until_s:
        time.sleep(0.02)

    assert running == 1
    assert daemon.status()["running"] == 0


def test_an_answer_that_changes_its_variant_on_the_way_says_so(
    daemon: RealDaemon, slowly: None
) -> None:
    with daemon.client() as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        daemon.pin(pace=0.1, variant="int4")
        events = [line[6:] for line in lines if line.startswith("data: ")]
    why = daemon.command("why")

    assert events[-1] == "[DONE]"
    told = json.loads(events[-2])["trimtab"]
    assert told["variants"] == ["fp32", "int4"]
    assert told["switches"] == 1
    assert "from fp32 to int4" in why.stdout


async def test_odd_requests_find_no_fault_behind_the_api_either(daemon: RealDaemon) -> None:
    sockets = [daemon.sockets / "inference.sock", daemon.sockets / "control.sock"]
    statuses = await fuzz(sockets, 250)
    daemon.unpin()

    assert not [status for status in statuses if status >= 500]
    assert statuses[200] > 10
    assert daemon.status()["state"] == "ready"
    assert daemon.status()["restarts_total"] == 0


def test_the_commands_read_the_real_daemon(daemon: RealDaemon) -> None:
    status = daemon.command("status")
    points = daemon.command("points", "--json")
    decisions = daemon.command("decisions")
    chat = daemon.command("chat", "--max-tokens", "5", "--temperature", "0", "Hello")

    assert "serving tiny" in status.stdout
    assert {one["point"]["variant"] for one in json.loads(points.stdout)} == {
        "fp32",
        "int8",
        "int4",
    }
    assert "Started fp32" in decisions.stdout
    assert chat.returncode == 0
    assert chat.stdout.strip()


def test_a_second_daemon_on_the_same_sockets_says_so_and_leaves_them(daemon: RealDaemon) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "trimtab", "run"],
        env=daemon.environ,
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert second.returncode == 1
    assert "a running daemon answers there" in second.stderr
    assert "Traceback" not in second.stderr
    assert daemon.status()["state"] == "ready"


def test_after_kill_9_the_next_daemon_takes_over_and_sigterm_ends_it_cleanly(
    tmp_path: Path,
) -> None:
    killed = RealDaemon(tmp_path).start()
    killed.end(signal.SIGKILL)
    stale = (tmp_path / "run" / "control.sock").is_socket()
    daemon = RealDaemon(tmp_path, API_DRAIN="100ms").start()
    decisions = daemon.command("decisions", "--json").stdout.splitlines()
    daemon.slow_down()
    with daemon.client() as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        daemon.tell(signal.SIGTERM)
        events = [line[6:] for line in lines if line.startswith("data: ")]
    code, said = daemon.end()

    assert stale
    assert [json.loads(line)["id"] for line in decisions][:2] == [1, 2]
    assert json.loads(events[-1])["error"]["code"] == "shutting_down"
    assert "[DONE]" not in events
    assert code == 0
    assert "Traceback" not in said
    assert list(daemon.sockets.iterdir()) == []


def test_without_a_model_the_daemon_serves_and_says_how_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    daemon = RealDaemon(tmp_path, models=tmp_path / "none").start(ready=("no_model",))
    with daemon.client() as client:
        listed = client.get("/v1/models").json()
        ready = client.get("/readyz")
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
    status = daemon.command("status", "--check")
    daemon.end()

    assert listed["data"] == []
    assert ready.status_code == 503
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_model"
    assert "trimtab models build smollm2-135m" in answer.json()["error"]["message"]
    assert status.returncode == 4


def test_systemds_sockets_are_served_and_left_in_place(tmp_path: Path) -> None:
    as_systemd_does = (
        "import os, sys\n"
        "for number, given in enumerate(sys.argv[1:], start=3): os.dup2(int(given), number)\n"
        "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '2',"
        " 'LISTEN_FDNAMES': 'control:inference'}\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'trimtab', 'run'])\n"
    )
    (tmp_path / "none").mkdir()
    daemon = RealDaemon(tmp_path, models=tmp_path / "none")
    daemon.sockets.mkdir()
    passed = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for listening, name in zip(passed, ("control", "inference"), strict=True):
        listening.bind(str(daemon.sockets / f"{name}.sock"))
        listening.listen()
    numbers = [listening.fileno() for listening in passed]
    daemon.argv = [sys.executable, "-c", as_systemd_does, *map(str, numbers)]
    daemon.pass_fds = tuple(numbers)
    daemon.start(ready=("no_model",))
    with daemon.client() as client:
        listed = client.get("/v1/models")
    code, _ = daemon.end()
    for listening in passed:
        listening.close()

    assert listed.status_code == 200
    assert code == 0
    assert sorted(path.name for path in daemon.sockets.iterdir()) == [
        "control.sock",
        "inference.sock",
    ]


def test_a_wrong_configuration_is_told_in_lines_without_a_traceback(tmp_path: Path) -> None:
    daemon = RealDaemon(tmp_path, TICK="soon", ENGINE_DECODER="fast")
    told = daemon.command("run")

    assert told.returncode == 2
    assert "TRIMTAB_TICK: tick: found 'soon'" in told.stderr
    assert "TRIMTAB_ENGINE_DECODER: engine.decoder:" in told.stderr
    assert "Traceback" not in told.stderr
