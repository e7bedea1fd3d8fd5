"""The manifest of variants that were proven."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from trimtab import __version__
from trimtab.catalog.assemble import Proven, check_same_model
from trimtab.catalog.chat_template import read_template
from trimtab.catalog.fingerprint import file_sha256, kv_fingerprint
from trimtab.catalog.manifest import VERSION, Evaluation, File, Manifest, Variant
from trimtab.catalog.proof import evaluation_text
from trimtab.domain.models import kv_bytes_per_token

# Where nothing was measured (`models add --no-verify`), the quality that the planner starts from.
ASSUMED_QUALITY: Final[dict[str, float]] = {"fp32": 1.0, "bf16": 1.0, "fp16": 1.0, "int8": 0.99}
ASSUMED_QUALITY_OTHERWISE: Final = 0.75
IGNORED: Final = (".cache", ".locks")


def manifest_of(
    proven: Sequence[Proven],
    *,
    model_id: str,
    display_name: str,
    source: dict[str, str],
    threads: int,
    earlier: Manifest | None = None,
) -> Manifest:
    """The manifest of variants that passed.

    Args:
        proven: At least one, the reference first.
        model_id: The model's id.
        display_name: The model's name for people.
        source: Where it came from.
        threads: Engine threads of the proofs.
        earlier: The model's manifest so far, whose evaluation holds where nothing was proven now.

    Raises:
        CatalogError: They aren't variants of one model.
    """
    check_same_model([entry.inspected for entry in proven])
    first = proven[0].inspected
    variants = [_variant(entry, model_id, threads) for entry in proven]
    proofs = [entry.proof for entry in proven if entry.proof is not None]
    text = evaluation_text()
    evaluation = earlier.evaluation if earlier else None
    if proofs:
        digest = file_sha256(text)
        evaluation = Evaluation(text.name, digest, proofs[0].tokens, first.candidate.name)
    has_template = (
        proofs[0].chat_template if proofs else bool(read_template(first.candidate.folder))
    )
    return Manifest(
        version=VERSION,
        id=model_id,
        name=display_name,
        architecture=first.facts.architecture,
        context_length=min(entry.inspected.facts.context_length for entry in proven),
        vocabulary=first.facts.vocabulary,
        chat_template=has_template,
        tokenizer_sha256=first.tokenizer,
        fingerprint=variants[0].fingerprint,
        kv=first.facts.kv,
        rope=first.facts.rope,
        variants=variants,
        evaluation=evaluation,
        source=source,
        made={
            "by": f"trimtab {__version__}",
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
    )


def _variant(entry: Proven, model_id: str, threads: int) -> Variant:
    if entry.known is not None:
        return entry.known
    one, proof = entry.inspected, entry.proof
    facts, folder = one.facts, one.candidate.folder
    files = _files(folder)
    disk_bytes = sum(file.bytes for file in files.values())
    kv = facts.kv
    quality = ASSUMED_QUALITY.get(facts.precision, ASSUMED_QUALITY_OTHERWISE)
    return Variant(
        name=one.candidate.name,
        folder=one.candidate.place,
        precision=facts.precision,
        kv_dtype=facts.kv_dtype,
        kv_bytes_per_token=kv_bytes_per_token(
            layers=kv.layers, kv_heads=kv.heads, head_size=kv.head_size, kv_dtype=facts.kv_dtype
        ),
        fingerprint=kv_fingerprint(
            model_id, one.tokenizer, kv, facts.kv_dtype, facts.rope, facts.scales
        ),
        context_length=facts.context_length,
        disk_bytes=disk_bytes,
        resident_bytes=proof.resident_bytes if proof else disk_bytes,
        quality=_rounded_quality(proof.mean_kl) if proof else quality,
        proven=proof is not None,
        perplexity=round(proof.perplexity, 4) if proof else None,
        mean_kl=round(proof.mean_kl, 6) if proof else None,
        top1_agreement=round(proof.top1_agreement, 4) if proof else None,
        measured_at_build=proof.hints(threads) if proof else None,
        build_options=one.candidate.options,
        versions={name: metadata.version(name) for name in ("onnxruntime-genai", "onnxruntime")},
        graph=facts.graph,
        indices_graph=one.indices_graph,
        files=files,
    )


def _rounded_quality(mean_kl: float) -> float:
    return max(1e-6, round(math.exp(-mean_kl), 6))


def _files(folder: Path) -> dict[str, File]:
    """Size and hash of each file of a variant, by its path below the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    kept = [path for path in paths if not any(p in IGNORED for p in path.parts)]
    return {
        str(path.relative_to(folder)): File(path.stat().st_size, file_sha256(path))
        for path in kept
        if not path.name.endswith(".partial")
    }
