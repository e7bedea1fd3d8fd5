"""`trimtab plan`, `trimtab profile` and `trimtab bench prediction` as a person types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from trimtab.cli.root import root
from trimtab.errors import UsageError

TINY = Path(__file__).parent.parent / "tiny"


def trimtab(tmp_path: Path, *words: str) -> Result:
    env = {
        "TRIMTAB_STATE": str(tmp_path / "state"),
        "TRIMTAB_MODELS": str(TINY),
        "TRIMTAB_CACHE": str(tmp_path / "cache"),
        "COLUMNS": "120",
    }
    return CliRunner(env=env).invoke(root, words)


def answer(done: Result) -> Any:
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout.splitlines()[-1])


def refusal(done: Result) -> UsageError:
    """What `main` prints as a line, with the way out below it."""
    assert isinstance(done.exception, UsageError), done.output
    return done.exception


def test_a_plan_is_a_table_json_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "plan.png"
    words = ("plan", "qwen2.5-1.5b", "--device", "raspberry-pi-5")

    table = trimtab(tmp_path, *words)
    found = answer(trimtab(tmp_path, *words, "--json", "--plot", str(picture)))

    assert table.exit_code == 0, table.exception
    assert "int4_mixed" in table.stdout
    assert "balanced" in table.stdout
    assert found["model"]["parameters"] == pytest.approx(1.54e9, rel=0.01)
    assert {one["precision"] for one in found["points"]} >= {"fp16", "int8", "int4"}
    assert found["policies"][0]["policy"] == "latency-first"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("zebra",), "neither a file nor a model"),
        (("llama-2-7b", "--device", "toaster"), "there is no board toaster"),
        (("llama-2-7b", "--memory", "8", "--bandwidth", "17GB/s"), "--memory"),
        (("llama-2-7b", "--memory", "8GiB", "--bandwidth", "17"), "--bandwidth"),
        (("llama-2-7b", "--memory", "4000TiB", "--bandwidth", "1GB/s"), "no size"),
        (("llama-2-7b", "--device", "n100", "--context", "99999"), "1 to 4096 tokens"),
        ((str(TINY / "model.yaml"),), "neither a GGUF nor JSON"),
    ],
)
def test_a_wrong_word_is_answered_in_a_line(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    error = refusal(trimtab(tmp_path, "plan", *words))

    assert said in error.message


def test_nothing_measured_yet_is_said_with_the_command(tmp_path: Path) -> None:
    error = refusal(trimtab(tmp_path, "profile", "--show"))

    assert "trimtab profile --quick" in error.hint


def test_show_doesnt_measure_and_says_so(tmp_path: Path) -> None:
    error = refusal(trimtab(tmp_path, "profile", "--show", "--quality"))

    assert "measures nothing" in error.message


def test_variants_are_recommended_for_this_device_and_for_another(tmp_path: Path) -> None:
    here = answer(trimtab(tmp_path, "models", "recommend", "--json"))
    words = ("models", "recommend", "qwen2.5-7b", "--device", "raspberry-pi-5", "--json")
    there = answer(trimtab(tmp_path, *words, "--policy", "latency-first"))

    assert here["model"] == "tiny"
    assert all(one["here"] for one in here["variants"])
    assert here["command"] == ""
    taken = [one["variant"] for one in there["variants"] if one["take"]]
    assert taken
    assert set(taken) <= {"int8", "int4_mixed", "int4"}
    assert there["command"].endswith(",".join(taken))


def test_bench_prediction_holds_points_out_of_the_fit(tmp_path: Path) -> None:
    found = answer(trimtab(tmp_path, "bench", "prediction", "--quick", "--json"))

    assert found["points"] == len(found["held_out"]) >= 3
    assert 0 <= found["memory_error"] < 0.2
    for field in ("decode_error", "ttft_error"):  # tokens of microseconds: no figure counts here
        assert found[field] >= 0
    assert found["machine"]["cores"] >= 1
    assert {one["tokens"] for one in found["held_out"]} == {192}
