"""Models that scenarios name: sizes and speeds on a device with 10 GB/s of memory bandwidth.

Sizes follow from parameters and bits per weight, speeds from `bandwidth / bytes per token` at nine
tenths of it; prefill reads some ten tokens in the time of one generated; loading reads the weights
at 500 MB/s. KV is float32. They are round figures for scenarios, not measurements.
"""

from __future__ import annotations

from typing import Final

from trimtab.domain.models import ModelSpec, VariantSpec

MIB: Final = 2**20
BANDWIDTH: Final = 10e9
_USED_RATIO: Final = 0.9
_PREFILL_FACTOR: Final = 10.0
_LOAD_BYTES_S: Final = 500e6


def _model(
    name: str,
    kv_bytes_per_token: int,
    context: int,
    variants: dict[str, tuple[int, float]],
) -> ModelSpec:
    """A model from sizes in MiB and qualities, best variant first."""
    return ModelSpec(
        model_id=name,
        display_name=name,
        architecture="llama",
        context_length=context,
        layers=1,
        kv_heads=1,
        head_size=64,
        tokenizer_hash="",
        has_chat_template=True,
        variants=tuple(
            VariantSpec(
                name=variant,
                precision=variant,
                folder="",
                weights_bytes=size * MIB,
                disk_bytes=size * MIB,
                kv_bytes_per_token=kv_bytes_per_token,
                quality=quality,
                fingerprint=name,
                context_length=context,
                load_s=size * MIB / _LOAD_BYTES_S,
                decode_tps=BANDWIDTH * _USED_RATIO / (size * MIB),
                prefill_tps=BANDWIDTH * _USED_RATIO * _PREFILL_FACTOR / (size * MIB),
            )
            for variant, (size, quality) in variants.items()
        ),
    )


CATALOGS: Final[dict[str, ModelSpec]] = {
    # SmolLM2-135M: 30 layers, 3 KV heads of 64. Quality as `models build` measured it.
    "135m": _model(
        "135m",
        46_080,
        8192,
        {
            "fp32": (600, 1.0),
            "int8": (160, 0.996),
            "int4_mixed": (150, 0.841),
            "int4": (110, 0.696),
        },
    ),
    # 24 layers, 2 KV heads of 64.
    "0.5b": _model(
        "0.5b",
        24_576,
        32_768,
        {"fp32": (1980, 1.0), "int8": (640, 0.99), "int4_mixed": (450, 0.9), "int4": (350, 0.8)},
    ),
    # 28 layers, 2 KV heads of 128.
    "1.5b": _model(
        "1.5b",
        57_344,
        32_768,
        {
            "fp32": (6200, 1.0),
            "int8": (1800, 0.99),
            "int4_mixed": (1300, 0.92),
            "int4": (1000, 0.85),
        },
    ),
}
