"""`trimtab models verify`: what is on disk is still what was proven, and still works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from trimtab.catalog.fingerprint import file_sha256, tokenizer_sha256
from trimtab.catalog.gate import refuse_wrong
from trimtab.catalog.graph import read_graph
from trimtab.catalog.load import variant_folder, wrong_files
from trimtab.catalog.manifest import Manifest, Variant
from trimtab.catalog.progress import Progress
from trimtab.catalog.proof import evaluation_text, prove
from trimtab.errors import TrimtabError

GENERATE: Final = 128
TOLERANCE: Final = 0.05
"""Share by which perplexity may differ: kernels of another processor round differently."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one variant.

    Attributes:
        model_id: The model.
        variant: The variant.
        problem: What is wrong; empty when all is well.
        perplexity: As measured now; None if it didn't come to that.
        expected: As the manifest has it; None if it was never measured.
        decode_tps: Tokens a second, as measured now.
        shift: What a shift of the window costs, as `shift_loss` has it; None if it can't be told.
    """

    model_id: str
    variant: str
    problem: str = ""
    perplexity: float | None = None
    expected: float | None = None
    decode_tps: float | None = None
    shift: Mapping[str, Any] | None = None


def verify_variant(
    folder: Path,
    manifest: Manifest,
    variant: Variant,
    *,
    threads: int,
    files_only: bool,
    progress: Progress,
) -> Verdict:
    """Check one variant: sizes and hashes, then load, generate and score the text.

    Args:
        folder: The model's folder.
        manifest: Its manifest.
        variant: One of its variants.
        threads: Engine threads.
        files_only: Stop after the hashes.
        progress: Told as it goes.
    """
    try:
        with progress.step(f"Check the files of {manifest.id} {variant.name}"):
            problem = _file_problem(folder, manifest, variant)
        if problem or files_only:
            return Verdict(manifest.id, variant.name, problem, expected=variant.perplexity)
        return _run(folder, manifest, variant, threads, progress)
    except TrimtabError as error:
        return Verdict(manifest.id, variant.name, error.message, expected=variant.perplexity)


def _file_problem(folder: Path, manifest: Manifest, variant: Variant) -> str:
    where = variant_folder(folder, variant)
    problems = wrong_files(folder, variant)
    if not problems:
        problems = [
            f"{where / name} isn't what it was: its SHA-256 differs from the manifest's"
            for name, file in variant.files.items()
            if file_sha256(where / name) != file.sha256
        ]
    if not problems and tokenizer_sha256(where) != manifest.tokenizer_sha256:
        problems = [f"the tokenizer in {where} isn't the model's"]
    return "; ".join(problems)


def _run(
    folder: Path, manifest: Manifest, variant: Variant, threads: int, progress: Progress
) -> Verdict:
    where = variant_folder(folder, variant)
    facts = read_graph(where)
    refuse_wrong(where, facts)
    with progress.step(f"Run {manifest.id} {variant.name}") as note:
        proof = prove(
            variant.name,
            where,
            facts,
            threads=threads,
            reference=None,
            is_reference=False,
            weights=None,
            indices_graph="" if _same_engine(variant) else variant.indices_graph,
            on_note=note,
            generate=GENERATE,
            shift=True,
        )
    return Verdict(
        manifest.id,
        variant.name,
        _drift(manifest, variant, proof.perplexity),
        proof.perplexity,
        variant.perplexity,
        proof.decode_tps,
        proof.shift,
    )


def _same_engine(variant: Variant) -> bool:
    """Whether the engine that proved the second graph is the one that runs now."""
    return all(metadata.version(name) == version for name, version in variant.versions.items())


def _drift(manifest: Manifest, variant: Variant, perplexity: float) -> str:
    """Whether the perplexity left its tolerance; only the same text can be compared."""
    evaluation, expected = manifest.evaluation, variant.perplexity
    if evaluation is None or expected is None:
        return ""
    if evaluation.text_sha256 != file_sha256(evaluation_text()):
        return ""
    if abs(perplexity - expected) > TOLERANCE * expected:
        return f"its perplexity is {perplexity:.2f}, and {expected:.2f} was proven"
    return ""
