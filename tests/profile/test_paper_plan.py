"""The arithmetic of `trimtab plan`, held against cases that are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trimtab.config.policies import shipped_policies
from trimtab.profile.known_models import KNOWN
from trimtab.profile.paper import (
    PRECISIONS,
    contexts_of,
    paper_point,
    paper_points,
    quality_ratio,
    tokens_of_a_round,
)
from trimtab.profile.picks import paper_model, picks
from trimtab.profile.shape import decode_tps, weight_bytes
from trimtab.profile.targets import BOARDS, Target

GB = 1e9
SEVEN_BILLION = 7_000_000_000

PUBLISHED_BILLIONS = {
    "smollm2-135m": 0.135,
    "smollm2-360m": 0.362,
    "smollm2-1.7b": 1.71,
    "tinyllama-1.1b": 1.10,
    "llama-2-7b": 6.74,
    "llama-3.1-8b": 8.03,
    "llama-3.2-1b": 1.24,
    "llama-3.2-3b": 3.21,
    "mistral-7b-v0.3": 7.25,
    "mixtral-8x7b": 46.7,
    "qwen2.5-0.5b": 0.494,
    "qwen2.5-1.5b": 1.54,
    "qwen2.5-3b": 3.09,
    "qwen2.5-7b": 7.62,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.72,
    "qwen3-4b": 4.02,
    "qwen3-8b": 8.19,
    "qwen3-30b-a3b": 30.5,
    "gemma-2-2b": 2.61,
    "gemma-3-1b": 1.00,
    "phi-3-mini-4k": 3.82,
}


@pytest.mark.parametrize(("bits", "gigabytes"), [(16, 14.0), (8, 7.0), (4, 3.5)])
def test_a_7b_takes_14_7_and_3_5_gb(bits: int, gigabytes: float) -> None:
    assert weight_bytes(SEVEN_BILLION, bits) == gigabytes * GB


def test_100_gb_a_second_and_14_gb_of_weights_give_7_tokens_a_second() -> None:
    assert decode_tps(100 * GB, 14 * GB) == pytest.approx(7, abs=0.2)


@pytest.mark.parametrize("name", KNOWN)
def test_each_known_model_has_the_parameters_that_its_publisher_states(name: str) -> None:
    billions = KNOWN[name].parameters / GB

    assert billions == pytest.approx(PUBLISHED_BILLIONS[name], rel=0.01)


@pytest.mark.parametrize(
    ("name", "tokens", "gibibytes"),
    [
        ("llama-2-7b", 8192, 4.0),  # full attention: half a mebibyte a token at 16 bits
        ("llama-3.1-8b", 8192, 1.0),  # 32 heads share 8
        ("llama-3.1-8b", 32768, 4.0),
        ("mistral-7b-v0.3", 32768, 4.0),
        ("qwen2.5-7b", 32768, 1.75),  # 28 heads share 4
    ],
)
def test_the_kv_cache_of_real_configurations_at_16_bits(
    name: str, tokens: int, gibibytes: float
) -> None:
    assert KNOWN[name].kv_bytes(tokens, "float16") == gibibytes * 2**30


def test_smollm2_adds_46080_bytes_a_token_as_was_measured() -> None:
    assert KNOWN["smollm2-135m"].kv_bytes_per_token("float32") == 46080


def test_a_7b_with_int8_kv_and_a_draft_takes_about_5_5_gb_on_an_8_gb_board() -> None:
    board = BOARDS["raspberry-pi-5"]

    point = paper_point(
        KNOWN["llama-2-7b"], board, "int4", 4096, "int8", draft=KNOWN["qwen2.5-1.5b"]
    )

    assert point.total_bytes / GB == pytest.approx(5.5, abs=0.2)
    assert point.fits


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.2-3b", "qwen2.5-1.5b", "tinyllama-1.1b"])
def test_on_a_raspberry_pi_5_size_times_speed_is_near_10_gb_a_second(name: str) -> None:
    shape = KNOWN[name]

    point = paper_point(shape, BOARDS["raspberry-pi-5"], "int4", 512, "float16")

    read = weight_bytes(shape.active_parameters, 4) * point.decode_tps
    assert read / GB == pytest.approx(10, rel=0.15)


def test_experts_count_all_for_memory_and_those_at_work_for_speed() -> None:
    device = Target("a device", 64 * 2**30, 100 * GB, None, "as given")

    mixture = paper_point(KNOWN["mixtral-8x7b"], device, "int4", 2048, "float16")
    dense = replace(KNOWN["mixtral-8x7b"], experts=None)
    seven = paper_point(dense, device, "int4", 2048, "float16")

    assert mixture.weights_bytes / GB == pytest.approx(46.7 / 2, rel=0.01)
    assert 1 < seven.decode_tps / mixture.decode_tps < 2.2  # 12.7 B at work against 7.2 B
    assert mixture.weights_bytes > 6 * seven.weights_bytes


def test_more_context_and_more_bits_never_take_less_memory_or_give_more_speed() -> None:
    points = paper_points(
        KNOWN["qwen2.5-7b"],
        BOARDS["rk3588"],
        contexts=(2048, 8192, 32768),
        kv_types=("float16",),
    )

    for worse, better in zip(points, points[3:], strict=False):
        assert worse.total_bytes >= better.total_bytes
        assert worse.decode_tps <= better.decode_tps
        assert worse.quality_ratio >= better.quality_ratio
    same = [point for point in points if point.precision == "int8"]
    assert [point.total_bytes for point in same] == sorted(point.total_bytes for point in same)


def test_a_small_model_loses_more_by_quantization_than_a_large_one() -> None:
    small = quality_ratio(KNOWN["smollm2-135m"], "int4")
    large = quality_ratio(KNOWN["llama-3.1-8b"], "int4")

    assert small == pytest.approx(0.696, abs=0.01)  # as was measured
    assert 0.9 < large < 1


def test_drafts_never_make_it_slower_since_they_are_turned_off() -> None:
    point = paper_point(
        KNOWN["qwen2.5-0.5b"], BOARDS["n100"], "int4", 2048, "int8", draft=KNOWN["qwen2.5-7b"]
    )

    assert point.speculative_tps == (point.decode_tps, point.decode_tps)
    assert tokens_of_a_round(0.5, 2) == 1.75


def test_contexts_stay_within_what_the_model_was_made_for() -> None:
    assert contexts_of(KNOWN["tinyllama-1.1b"]) == (2048,)
    assert contexts_of(KNOWN["llama-3.1-8b"]) == (2048, 8192, 32768)
    assert contexts_of(replace(KNOWN["llama-2-7b"], context_length=512)) == (512,)


def test_each_policy_picks_a_point_of_its_own_list_and_says_what_gives() -> None:
    shape = KNOWN["llama-3.1-8b"]
    board = BOARDS["raspberry-pi-5"]
    points = paper_points(shape, board, contexts=(2048, 8192), kv_types=("int8",))
    model = paper_model(shape, points, "int8")

    chosen = {
        one.policy: one
        for one in picks(
            model, board, shipped_policies(), ("latency-first", "accuracy-first", "memory-first")
        )
    }

    assert [variant.name for variant in model.variants] == ["fp32", "int8", "int4_mixed", "int4"]
    assert chosen["accuracy-first"].variant in ("int8", "")
    assert chosen["latency-first"].variant in ("int4_mixed", "int4")
    assert "accuracy" in chosen["latency-first"].gives
    assert "latency" in chosen["latency-first"].gives


def test_where_nothing_fits_the_policies_park_the_model() -> None:
    shape = KNOWN["mixtral-8x7b"]
    board = BOARDS["raspberry-pi-4"]
    points = paper_points(shape, board, contexts=(2048,), kv_types=("int8",))

    chosen = picks(paper_model(shape, points, "int8"), board, shipped_policies(), ("balanced",))

    assert not any(point.fits for point in points)
    assert chosen[0].point == "parked"
    assert PRECISIONS[0] == points[0].precision


def test_a_precision_that_wasnt_measured_reads_like_the_one_next_to_it() -> None:
    device = Target(
        "this device", 2**33, 14e9, None, "", by_precision={"fp32": 9e9, "int8": 5e9, "int4": 3e9}
    )

    assert device.weights_bandwidth("int4") == 3e9
    assert device.weights_bandwidth("int3") == 3e9
    assert device.weights_bandwidth("fp16") == 5e9
    assert replace(device, by_precision={}).weights_bandwidth("int3") == 14e9
