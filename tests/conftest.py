"""What tests of several areas share: the tiny model, a policy, a workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.domain.models import ModelSpec, RopeSpec, VariantSpec

TINY = Path(__file__).parent / "tiny"


@pytest.fixture(scope="session")
def tiny() -> ModelSpec:
    """The tiny model of tests/tiny, as the planner sees it (written down, not read)."""
    return ModelSpec(
        model_id="tiny",
        display_name="tiny",
        architecture="llama",
        context_length=2048,
        layers=2,
        kv_heads=2,
        head_size=16,
        tokenizer_hash="",
        has_chat_template=True,
        variants=tuple(
            VariantSpec(
                name=name,
                precision=name,
                folder=str(TINY / name),
                weights_bytes=weights,
                disk_bytes=weights,
                kv_bytes_per_token=512,
                quality=quality,
                fingerprint="tiny",
                context_length=2048,
            )
            for name, weights, quality in (
                ("fp32", 600_000, 1.0),
                ("int8", 400_000, 0.99),
                ("int4", 200_000, 0.9),
            )
        ),
        rope=RopeSpec(10000.0, 16),
    )
