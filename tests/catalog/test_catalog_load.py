"""Finding models: whole ones as values, damaged ones with the reason, and cheaply."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.catalog import cache_folder, load_catalog, models_folder
from trimtab.errors import NoModelError


def test_variants_come_best_first_with_what_the_planner_needs(models: Path) -> None:
    catalog = load_catalog([models])

    model = catalog.model("tiny")

    assert [variant.name for variant in model.variants] == ["fp32", "int8", "int4"]
    assert [variant.quality for variant in model.variants] == sorted(
        (variant.quality for variant in model.variants), reverse=True
    )
    assert {variant.fingerprint for variant in model.variants} == {model.variants[0].fingerprint}
    assert all(variant.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4 for variant in model.variants)
    assert all(Path(variant.folder, variant.indices_graph).is_file() for variant in model.variants)
    assert model.has_chat_template
    assert catalog.damaged == ()


def test_other_files_under_the_same_names_are_another_models_kv(models: Path) -> None:
    before = load_catalog([models]).model("tiny").variants
    manifest = models / "tiny/model.yaml"
    text = manifest.read_text()
    digest = re.findall(r"\n      sha256: (\w{64})", text)[-1]
    manifest.write_text(text.replace(digest, "ab" * 32))
    after = load_catalog([models]).model("tiny").variants

    assert len({variant.fingerprint for variant in after}) == 1
    assert {one.fingerprint for one in before}.isdisjoint(one.fingerprint for one in after)
    assert [one.name for one in before] == [one.name for one in after]


def test_a_models_own_folder_can_be_given(models: Path) -> None:
    assert list(load_catalog([models / "tiny"]).models) == ["tiny"]


def test_a_variant_with_a_missing_file_is_damaged_and_the_others_stay(models: Path) -> None:
    (models / "tiny/int8/tokenizer.json").unlink()

    catalog = load_catalog([models])

    assert [v.name for v in catalog.model("tiny").variants] == ["fp32", "int4"]
    (damage,) = catalog.damaged
    assert damage.variant == "int8"
    assert "tokenizer.json" in damage.reason
    assert damage.hint


def test_weights_that_were_cut_off_are_seen_without_reading_them(models: Path) -> None:
    weights = models / "tiny/fp32/model.onnx.data"
    os.truncate(weights, 1000)

    catalog = load_catalog([models])

    assert [v.name for v in catalog.model("tiny").variants] == ["int8", "int4"]
    assert "has 1000 bytes instead of 558336" in catalog.damaged[0].reason


def test_a_model_without_a_usable_variant_isnt_there(models: Path) -> None:
    for name in ("fp32", "int8", "int4"):
        (models / "tiny" / name / "model.onnx").unlink()

    catalog = load_catalog([models])

    assert catalog.models == {}
    assert len(catalog.damaged) == 3
    with pytest.raises(NoModelError, match="tiny is damaged"):
        catalog.model("tiny")


def test_a_broken_manifest_is_listed_and_other_models_are_used(models: Path) -> None:
    other = models / "other"
    other.mkdir()
    (other / "model.yaml").write_text("version: 1\nid: other\n", encoding="utf-8")

    catalog = load_catalog([models])

    assert list(catalog.models) == ["tiny"]
    assert "other/model.yaml" in catalog.damaged[0].reason


def test_of_two_models_with_one_id_the_second_is_damaged(models: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "tiny").symlink_to(models / "tiny")

    catalog = load_catalog([models, second])

    assert catalog.locations["tiny"] == str(models / "tiny")
    assert "was found before" in catalog.damaged[0].reason


def test_folders_that_hold_no_model_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / ".work-x/int8").mkdir(parents=True)
    (tmp_path / ".work-x/int8/genai_config.json").touch()
    (tmp_path / "file").touch()

    catalog = load_catalog([tmp_path, tmp_path / "absent"])

    assert catalog.models == {}
    assert catalog.damaged == ()
    with pytest.raises(NoModelError) as caught:
        catalog.model("any")
    assert "trimtab models build smollm2-135m" in caught.value.hint


def test_variants_without_a_manifest_are_told_how_to_get_one(models: Path) -> None:
    (models / "tiny/model.yaml").unlink()

    (damage,) = load_catalog([models]).damaged

    assert "has no model.yaml" in damage.reason
    assert "trimtab models add" in damage.hint


def test_the_controllers_import_brings_no_engine_and_no_screen() -> None:
    code = "import sys, trimtab.catalog; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "trimtab.catalog.load" in loaded
    assert not loaded & {"numpy", "onnx", "onnxruntime", "onnxruntime_genai", "rich", "torch"}


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"TRIMTAB_MODELS": "/from/environment", "HOME": "/home/ann"}

    assert models_folder(Path("/from/flag"), environ) == Path("/from/flag")
    assert models_folder(None, environ) == Path("/from/environment")


@pytest.mark.parametrize(
    ("environ", "system_wide", "expected"),
    [
        ({"HOME": "/home/ann"}, False, "/home/ann/.local/share/trimtab/models"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/data"}, False, "/data/trimtab/models"),
        ({"HOME": "/h", "XDG_DATA_HOME": "relative"}, False, "/h/.local/share/trimtab/models"),
        ({"HOME": "/root"}, True, "/var/lib/trimtab/models"),
    ],
)
def test_models_have_one_default_place(
    environ: dict[str, str], system_wide: bool, expected: str
) -> None:
    assert models_folder(None, environ, system_wide=system_wide) == Path(expected)


def test_the_cache_follows_xdg_or_the_system() -> None:
    assert cache_folder({"HOME": "/h"}, system_wide=False) == Path("/h/.cache/trimtab")
    assert cache_folder({"HOME": "/h"}, system_wide=True) == Path("/var/cache/trimtab")


def test_the_shortest_variant_decides_how_long_a_conversation_may_be(models: Path) -> None:
    manifest = models / "tiny" / "model.yaml"
    head, variants, rest = manifest.read_text(encoding="utf-8").partition("variants:")
    shorter = re.sub(r"context_length: \d+", "context_length: 1024", rest, count=1)
    manifest.write_text(head + variants + shorter, encoding="utf-8")

    model = load_catalog([models]).model("tiny")

    assert len({one.context_length for one in model.variants}) == 2
    assert model.context_length == 1024
