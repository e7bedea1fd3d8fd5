"""What benchmarks run on: the model, and a daemon that serves one variant of it and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trimtab.bench.child_daemon import Setup
from trimtab.catalog.load import load_catalog
from trimtab.catalog.locations import models_folder
from trimtab.domain.models import ModelSpec, VariantSpec
from trimtab.errors import CatalogError

MODEL: Final = "smollm2-135m"
CONTEXT_TOKENS: Final = 1024


def models() -> list[Path]:
    """The folders that hold models."""
    return [models_folder()]


def bench_model(quick: bool) -> ModelSpec:
    """SmolLM2; a quick run, which proves no figure, takes any model that is there.

    Raises:
        NoModelError: There is none.
    """
    catalog = load_catalog(models())
    if quick and MODEL not in catalog.models and catalog.models:
        return next(iter(catalog.models.values()))
    return catalog.model(MODEL)


def variant_of(model: ModelSpec, name: str) -> VariantSpec:
    """One variant of the model.

    Raises:
        CatalogError: The model hasn't got it.
    """
    variant = model.variant(name)
    if variant is None:
        raise CatalogError(
            f"model {model.model_id} has no variant {name}, which this benchmark needs",
            hint=f"`trimtab models build {MODEL}` makes it.",
        )
    return variant


def only(model: ModelSpec, variant: str) -> Setup:
    """A daemon with one engine thread that serves one variant, whatever memory does."""
    context = min(CONTEXT_TOKENS, model.context_length)
    policy = f"""\
version: 1
name: own
description: A benchmark. One variant, and nothing moves.
protect: [memory, latency]
limits:
  memory: {{headroom: 64MiB}}
knobs:
  variant: [{variant}]
  context: {{min: {context}, max: {context}}}
  speculation: [off]
"""
    return Setup(models(), model.model_id, policy, threads=1)
