"""Variants whose KV cache is quantized: from the tiny model, by the real engine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantized_kv import quantize_kv as give_quantized_kv

from trimtab.catalog.build import BuildRequest, build_model
from trimtab.catalog.graph import read_graph
from trimtab.catalog.indices import INDICES_GRAPH
from trimtab.catalog.load import load_catalog
from trimtab.catalog.manifest import Rope
from trimtab.catalog.quantize_kv import key_limits, pair_lengths, quantize_kv
from trimtab.catalog.recipes import QUANTIZED_KV
from trimtab.catalog.sources import from_path
from trimtab.errors import BuildError

TINY = Path(__file__).parent.parent / "tiny"


def request(models: Path, *variants: str) -> BuildRequest:
    weights = models.parent / "weights"
    weights.mkdir(exist_ok=True)
    (weights / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return BuildRequest(
        model_id="tiny",
        display_name="tiny",
        source=from_path(weights),
        variants=variants,
        models=models,
        cache=models.parent / "cache",
        threads=1,
    )


def test_a_published_variant_gets_a_sibling_with_a_quarter_of_the_kv(
    tmp_path: Path, progress: Any
) -> None:
    models = tmp_path / "models"
    shutil.copytree(TINY, models / "tiny")
    result = build_model(request(models, "int8_kv8"), progress)
    model = load_catalog([models]).models["tiny"]
    plain, quantized = model.variant("int8"), model.variant("int8_kv8")
    assert plain is not None
    assert quantized is not None

    assert result.built == ("int8_kv8",)
    assert (plain.kv_bytes_per_token, quantized.kv_bytes_per_token) == (512, 128)
    assert quantized.kv_dtype == "int8"
    assert quantized.fingerprint != plain.fingerprint
    assert quantized.indices_graph == "model.indices.onnx"
    assert abs(quantized.quality - plain.quality) < 0.03
    assert not (tmp_path / "cache").exists()  # no torch for this


def test_a_variant_that_is_not_there_has_no_kv_to_quantize(tmp_path: Path, progress: Any) -> None:
    models = tmp_path / "models"
    models.mkdir()

    with pytest.raises(BuildError, match="the weights of int4, which isn't there") as refused:
        build_model(request(models, "int4_kv8"), progress)

    assert "--variants int4 --kv int8" in refused.value.hint


def test_a_cache_is_quantized_once(tmp_path: Path) -> None:
    quantize_kv(TINY / "int4", tmp_path / "once", "The sea was calm. " * 40, 1)

    with pytest.raises(BuildError, match="its KV cache is int8"):
        quantize_kv(tmp_path / "once", tmp_path / "twice", "The sea was calm.", 1)


def test_the_graph_says_what_it_is(tmp_path: Path) -> None:
    quantize_kv(TINY / "fp32", tmp_path / "v", "The sea was calm. " * 40, 1)
    before, after = read_graph(TINY / "fp32"), read_graph(tmp_path / "v")

    assert (before.kv_dtype, after.kv_dtype) == ("float32", "int8")
    assert (before.kv, before.rope, before.precision) == (after.kv, after.rope, after.precision)


def test_second_graphs_of_the_other_cache_stay_behind(tmp_path: Path) -> None:
    shutil.copytree(TINY / "fp32", tmp_path / "source")
    for name in (INDICES_GRAPH, "model.indices-0a1b2c3d.onnx"):
        (tmp_path / "source" / name).write_bytes(b"of the fp32 cache")
    quantize_kv(tmp_path / "source", tmp_path / "v", "The sea was calm. " * 40, 1)

    assert not [file for file in (tmp_path / "v").iterdir() if "indices" in file.name]


@pytest.mark.parametrize("interleaved", [True, False])
def test_numbers_that_are_turned_together_share_a_limit(interleaved: bool) -> None:
    rope = Rope(digest="x", rotary_dim=4, interleaved=interleaved)
    keys = np.array(
        [[[3, 0, 4, -1, 7]]], np.float32
    )  # one head, one position, the last isn't turned
    pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]
    limits = key_limits(pair_lengths(keys, rope).max(axis=1), rope)
    expected = np.abs(keys[0]).copy()
    for first, second in pairs:
        expected[0, [first, second]] = np.hypot(keys[0, 0, first], keys[0, 0, second])

    np.testing.assert_allclose(limits, expected)


def test_every_ordinary_variant_has_a_recipe_with_quantized_kv() -> None:
    assert QUANTIZED_KV["int4_mixed"].name == "int4_mixed_kv8"
    assert QUANTIZED_KV["int4_mixed"].base == "int4_mixed"
    assert "fp16" not in QUANTIZED_KV


def test_siblings_with_other_scales_do_not_read_each_others_kv(
    tmp_path: Path, progress: Any
) -> None:
    models = tmp_path / "models"
    shutil.copytree(TINY, models / "tiny")
    build_model(request(models, "int8_kv8", "int4_kv8"), progress)
    model = load_catalog([models]).models["tiny"]
    one, other = model.variant("int8_kv8"), model.variant("int4_kv8")
    assert one is not None
    assert other is not None

    assert read_graph(Path(one.folder)).scales != read_graph(Path(other.folder)).scales
    assert one.fingerprint != other.fingerprint  # a hand-over between them computes KV again


def test_kv_of_half_a_byte_has_a_second_graph_that_is_proven(
    tmp_path: Path, run_models: Any
) -> None:
    prompt = [(7 * n) % 500 + 4 for n in range(200)]
    (tmp_path / "built").mkdir()
    give_quantized_kv(TINY / "int8", tmp_path / "built" / "int8_kv4", prompt, 4)
    shutil.copytree(TINY / "fp32", tmp_path / "built" / "fp32")
    models = tmp_path / "models"

    done = run_models("add", tmp_path / "built", "--models", models, "--id", "m")
    variant = load_catalog([models]).models["m"].variant("int8_kv4")

    assert done.code == 0
    assert variant is not None
    assert variant.kv_dtype == "int4"
    assert variant.indices_graph.startswith("model.indices-")  # beside that of other KV
