"""`trimtab models add`, `list` and `verify` on real variants, as a person calls them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx
import pytest

from trimtab.catalog.assemble import Candidate, inspect
from trimtab.catalog.manifest import read

TINY = Path(__file__).parent.parent / "tiny"
FP16 = Path(__file__).parent / "fp16"
Run = Callable[..., Any]


def variant_copies(to: Path, *names: str) -> Path:
    """Variants as somebody else's build leaves them: no manifest, no second graph."""
    for name in names:
        shutil.copytree(TINY / name, to / name, ignore=shutil.ignore_patterns("*.indices.onnx"))
    return to


def test_ready_made_variants_become_a_model_and_stay_where_they_are(
    tmp_path: Path, run_models: Run
) -> None:
    built = variant_copies(tmp_path / "My Model", "fp32", "int4")
    out = tmp_path / "models"

    done = run_models("add", built, "--models", out, "--json")

    manifest = read(out / "my-model")
    int4 = manifest.variants[1]
    assert done.code == 0
    assert [variant.name for variant in manifest.variants] == ["fp32", "int4"]
    assert int4.folder == str(built / "int4")
    assert int4.proven
    assert 0.05 < (int4.mean_kl or 0) < 1
    assert int4.quality < manifest.variants[0].quality == 1.0
    assert int4.resident_bytes > 1_000_000
    assert (built / "int4" / int4.indices_graph).is_file()
    assert done.json["built"] == ["fp32", "int4"]


def test_a_second_add_extends_the_model_on_the_same_scale(tmp_path: Path, run_models: Run) -> None:
    built = variant_copies(tmp_path / "built", "int8", "int4")
    out = tmp_path / "models"
    options = ("--models", out, "--id", "m", "--copy", "--json")

    first = run_models("add", built / "int4", *options)
    second = run_models("add", built / "int8", *options)

    alone, both = first.json["model"]["variants"], second.json["model"]["variants"]
    assert [(v["name"], v["quality"]) for v in alone] == [("int4", 1.0)]
    assert [v["name"] for v in both] == ["int8", "int4"]
    assert both[0]["quality"] == 1.0
    assert both[1]["quality"] < 0.95
    assert (out / "m/int4/model.onnx.data").is_file()
    assert run_models("verify", "m", "--models", out, "--files-only").code == 0


def graph_of(folder: Path) -> tuple[str, bytes]:
    """The second graph that the manifest names for a variant, and its bytes."""
    variant = next(v for v in read(folder.parent).variants if v.folder == folder.name)
    return variant.indices_graph, (folder / variant.indices_graph).read_bytes()


def with_an_earlier_graph(folder: Path, *manifests: Path) -> None:
    """As if an earlier release had written the second graph of a published variant."""
    model = onnx.load(str(folder / "model.indices.onnx"), load_external_data=False)
    model.producer_name = "an earlier release"
    data = model.SerializeToString()
    (folder / "model.indices.onnx").write_bytes(data)
    for manifest in manifests or (folder.parent / "model.yaml",):
        lines = manifest.read_text().splitlines()
        at = next(n for n, line in enumerate(lines) if line.strip() == "model.indices.onnx:")
        lines[at + 1] = f"      bytes: {len(data)}"
        lines[at + 2] = f"      sha256: {sha256(data).hexdigest()}"
        manifest.write_text("\n".join(lines) + "\n")


def test_variants_that_are_there_keep_the_graph_that_their_manifest_names(
    tmp_path: Path, run_models: Run
) -> None:
    built = variant_copies(tmp_path / "built", "int8", "int4")
    out = tmp_path / "models"
    options = ("--models", out, "--id", "m", "--copy", "--json")
    run_models("add", built / "int8", *options)
    with_an_earlier_graph(out / "m/int8")
    before = graph_of(out / "m/int8")

    done = run_models("add", built / "int4", *options)

    assert [v["name"] for v in done.json["model"]["variants"]] == ["int8", "int4"]
    assert graph_of(out / "m/int8") == before
    assert run_models("verify", "m", "--models", out, "--files-only").code == 0


def test_one_that_is_added_again_has_a_new_graph_beside_the_old_one(
    tmp_path: Path, run_models: Run
) -> None:
    built = variant_copies(tmp_path / "built", "int8")
    out = tmp_path / "models"
    run_models("add", built / "int8", "--models", out, "--id", "m", "--copy")
    with_an_earlier_graph(out / "m/int8")
    first, before = graph_of(out / "m/int8")

    again = run_models("add", out / "m/int8", "--models", out)  # it is m's, whatever its name
    name, after = graph_of(out / "m/int8")
    kept = (out / "m/int8" / first).read_bytes()
    third = run_models("add", out / "m/int8", "--models", out)

    assert (again.code, third.code) == (0, 0)
    assert name != first
    assert (kept, graph_of(out / "m/int8")) == (before, (name, after))
    assert [path.name for path in out.iterdir()] == ["m"]
    assert run_models("verify", "m", "--models", out, "--files-only").code == 0


def test_a_folder_of_two_models_serves_both_when_one_is_added_again(
    tmp_path: Path, run_models: Run
) -> None:
    built = variant_copies(tmp_path / "built", "int8")
    out = tmp_path / "models"
    for model in ("a", "b"):
        run_models("add", built / "int8", "--models", out, "--id", model)
    with_an_earlier_graph(built / "int8", out / "a/model.yaml", out / "b/model.yaml")

    added = run_models("add", built / "int8", "--models", out, "--id", "a")

    assert added.code == 0
    for model in ("a", "b"):
        assert run_models("verify", model, "--models", out, "--files-only").code == 0


def test_a_folder_that_cannot_be_written_keeps_the_graph_that_it_has(
    tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = variant_copies(tmp_path, "int8") / "int8"
    (folder / "model.indices.onnx").write_bytes(b"of an earlier release")

    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refused)
    one = Candidate("int8", folder, "int8", second_graph="model.indices.onnx")

    assert inspect(one, progress).indices_graph == "model.indices.onnx"
    assert inspect(Candidate("int8", folder, "int8"), progress).indices_graph == ""


def test_one_for_other_hardware_is_left_to_the_engines_own_loop(
    tmp_path: Path, progress: Any
) -> None:
    folder = variant_copies(tmp_path, "int8") / "int8"
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"]["provider_options"] = [{"cuda": {}}]
    (folder / "genai_config.json").write_text(json.dumps(config))

    inspected = inspect(Candidate("int8", folder, "int8"), progress)

    assert inspected.facts.providers == ("cuda",)
    assert inspected.indices_graph == ""
    assert "it is built for cuda, so only onnxruntime-genai's own loop" in progress.said[0]


def test_fp16_builds_but_is_refused_when_it_is_proven(tmp_path: Path, run_models: Run) -> None:
    built = variant_copies(tmp_path / "built", "int8")
    shutil.copytree(FP16, built / "fp16")
    out = tmp_path / "models"

    both = run_models("add", built, "--models", out, "--json")
    alone = run_models("add", built / "fp16", "--models", out, "--id", "alone")

    assert both.code == 1
    assert [v["name"] for v in both.json["model"]["variants"]] == ["int8"]
    assert both.json["refused"][0]["variant"] == "fp16"
    assert "fails at its first prefill" in both.json["refused"][0]["reason"]
    assert alone.code == 1
    assert "nothing to add: fp16 is refused: it fails at its first prefill" in alone.err
    assert not (out / "alone").exists()


def test_a_variant_that_talks_noise_is_refused(tmp_path: Path, run_models: Run) -> None:
    built = variant_copies(tmp_path / "built", "fp32")
    weights = built / "fp32/model.onnx.data"
    data = bytearray(weights.read_bytes())
    data[-200_000:-100_000] = bytes(range(64, 128)) * 1562 + bytes(32)
    weights.write_bytes(data)

    done = run_models("add", built / "fp32", "--models", tmp_path / "models")

    assert done.code == 1
    assert "fp32 is refused: " in done.err
    assert "noise" in done.err or "aren't numbers" in done.err
    assert "Traceback" not in done.err


def test_without_a_proof_the_manifest_says_so(tmp_path: Path, run_models: Run) -> None:
    built = variant_copies(tmp_path / "built", "int4")
    out = tmp_path / "models"

    done = run_models("add", built / "int4", "--models", out, "--no-verify", "--id", "m")

    (variant,) = read(out / "m").variants
    assert done.code == 0
    assert not variant.proven
    assert variant.perplexity is None
    assert variant.measured_at_build is None
    assert "assumed" in done.out


def test_variants_of_two_models_arent_mixed(tmp_path: Path, run_models: Run) -> None:
    built = variant_copies(tmp_path / "built", "int8", "int4")
    tokenizer = built / "int4/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8") + "\n", encoding="utf-8")

    done = run_models("add", built, "--models", tmp_path / "models")

    assert done.code == 1
    assert "they differ in tokenizer" in done.err
    assert "--id" in done.err


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "genai_config.json").write_text("{"), "genai_config.json:1:2"),
        (lambda d: (d / "model.onnx.data").unlink(), "lacks model.onnx.data"),
        (lambda d: (d / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda d: os.truncate(d / "model.onnx", 4000), "not an onnx graph"),
        (shutil.rmtree, "there is no such folder"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_sentence(
    tmp_path: Path, run_models: Run, spoil: Callable[[Path], object], message: str
) -> None:
    folder = variant_copies(tmp_path / "built", "int4") / "int4"
    spoil(folder)

    done = run_models("add", folder, "--models", tmp_path / "models")

    assert done.code == 1
    assert message in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "models").exists() or list((tmp_path / "models").iterdir()) == []


def test_verify_passes_what_was_proven(models: Path, run_models: Run) -> None:
    done = run_models("verify", "tiny", "--models", models, "--json")

    verdicts = done.json["variants"]
    assert done.code == 0
    assert [verdict["problem"] for verdict in verdicts] == ["", "", ""]
    assert all(
        verdict["perplexity"] == pytest.approx(verdict["expected"], rel=0.05)
        for verdict in verdicts
    )


def test_verify_finds_one_changed_byte(models: Path, run_models: Run) -> None:
    weights = models / "tiny/int8/model.onnx.data"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)

    done = run_models("verify", "--models", models, "--files-only")

    assert done.code == 1
    assert "tiny int8" in done.out
    assert "its SHA-256 differs" in done.out.replace("\n", " ")
    assert done.out.count("✓") == 2


def test_verify_finds_a_perplexity_that_moved(models: Path, run_models: Run) -> None:
    manifest = models / "tiny/model.yaml"
    text = manifest.read_text(encoding="utf-8")
    for variant in ("int8", "int4"):
        start = text.index(f"- name: {variant}")
        end = text.find("- name:", start + 1)
        text = text[:start] + text[end if end > 0 else text.index("evaluation:") :]
    manifest.write_text(text.replace("perplexity: 1.4475", "perplexity: 1.2"), encoding="utf-8")

    done = run_models("verify", "tiny", "--models", models)

    assert done.code == 1
    assert "its perplexity is 1.4" in done.out
    assert "1.20 was proven" in done.out


def test_verify_of_a_model_that_isnt_there_says_how_to_get_one(
    tmp_path: Path, run_models: Run
) -> None:
    done = run_models("verify", "any", "--models", tmp_path)

    assert done.code == 1
    assert "there is no model in" in done.err
    assert "trimtab models build" in done.err


def test_list_shows_models_as_a_table_and_as_json(models: Path, run_models: Run) -> None:
    (models / "tiny/int4/tokenizer.json").unlink()

    table = run_models("list", TRIMTAB_MODELS=str(models))
    data = run_models("list", "--json", TRIMTAB_MODELS=str(models)).json

    assert table.code == 0
    assert "tiny test model, llama, context 2048" in table.out
    assert "damaged tiny int4" in table.out
    (model,) = data["models"]
    assert [v["name"] for v in model["variants"]] == ["fp32", "int8", "int4"]
    assert "files" not in model["variants"][0]
    assert data["damaged"][0]["variant"] == "int4"


def test_an_empty_list_says_what_to_do(tmp_path: Path, run_models: Run) -> None:
    done = run_models("list", XDG_DATA_HOME=str(tmp_path))

    assert done.code == 0
    assert f"No models in {tmp_path}/trimtab/models" in done.out
    assert "trimtab models build smollm2-135m" in done.out
