"""Variants that are there become one model: each proven against the best, one manifest for all."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

from trimtab import __version__
from trimtab.catalog.disk import readable
from trimtab.catalog.fingerprint import file_sha256, kv_fingerprint, tokenizer_sha256
from trimtab.catalog.graph import GraphFacts, read_graph
from trimtab.catalog.indices import write_indices_graph
from trimtab.catalog.manifest import MANIFEST, VERSION, Evaluation, File, Manifest, Variant, read
from trimtab.catalog.progress import Progress
from trimtab.catalog.proof import Proof, evaluation_text, prove
from trimtab.domain.models import kv_bytes_per_token
from trimtab.errors import BuildError, CatalogError

# Where nothing was measured (`models add --no-verify`), the quality that the planner starts from.
ASSUMED_QUALITY: Final[dict[str, float]] = {"fp32": 1.0, "bf16": 1.0, "fp16": 1.0, "int8": 0.99}
ASSUMED_QUALITY_OTHERWISE: Final = 0.75
PRECISION_ORDER: Final = ("fp32", "bf16", "fp16", "int8", "int4")
IGNORED: Final = (".cache", ".locks")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A folder that may become a variant.

    Attributes:
        name: The variant's name.
        folder: Where its files are.
        place: What the manifest says for its folder: a name, or an absolute path.
        options: How it was built, where that is known.
    """

    name: str
    folder: Path
    place: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inspected:
    """A candidate with what its graph says, ready to be proven."""

    candidate: Candidate
    facts: GraphFacts
    tokenizer: str
    indices_graph: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A candidate that isn't published, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Proven:
    """A candidate that passed; `proof` is None where the person wanted none."""

    inspected: Inspected
    proof: Proof | None


def existing_manifest(target: Path) -> Manifest | None:
    """The manifest of what is there; a damaged one counts as nothing, and is replaced."""
    if not (target / MANIFEST).is_file():
        return None
    try:
        return read(target)
    except CatalogError:
        return None


def kept_candidates(target: Path, there: Manifest | None) -> list[Candidate]:
    """Variants that are there already; they are proven again with the new ones, on one scale."""
    if there is None:
        return []
    return [
        Candidate(variant.name, target / variant.folder, variant.folder, variant.build_options)
        for variant in there.variants
    ]


def inspect(candidate: Candidate, progress: Progress) -> Inspected:
    """Read a candidate's graph, and write the graph with `logits_indices` beside it.

    A folder that can't be written, or a graph whose head isn't found, has no second graph; that
    is said, and the variant is good without.

    Raises:
        CatalogError: The folder isn't a variant, or is damaged.
    """
    facts = read_graph(candidate.folder)
    tokenizer = tokenizer_sha256(candidate.folder)
    unknown = sorted(set(facts.inputs) - {"input_ids", "attention_mask"})
    indices_graph = ""
    if unknown:
        progress.say(
            f"{candidate.name}: its graph also wants {', '.join(unknown)}, so only "
            "onnxruntime-genai's own loop can run it: no KV hand-over between variants."
        )
    else:
        try:
            indices_graph = write_indices_graph(candidate.folder, facts.graph)
        except CatalogError as error:
            progress.say(f"{candidate.name}: no graph with logits_indices: {error.message}")
    return Inspected(candidate, facts, tokenizer, indices_graph)


def check_same_model(inspected: Sequence[Inspected]) -> None:
    """Variants of one model share tokenizer, vocabulary and shape of the KV cache.

    Raises:
        CatalogError: Two of them don't; the message says in what.
    """
    first = inspected[0]
    for other in inspected[1:]:
        differences = [
            what
            for what, a, b in (
                ("tokenizer", first.tokenizer, other.tokenizer),
                ("vocabulary", first.facts.vocabulary, other.facts.vocabulary),
                ("architecture", first.facts.architecture, other.facts.architecture),
                ("shape of the KV cache", first.facts.kv, other.facts.kv),
                ("rope settings", *_comparable_ropes(first.facts, other.facts)),
            )
            if a != b
        ]
        if differences:
            raise CatalogError(
                f"{first.candidate.folder} and {other.candidate.folder} aren't variants of one "
                f"model: they differ in {' and '.join(differences)}",
                hint="Add them as two models, each with an --id of its own.",
            )


def _comparable_ropes(a: GraphFacts, b: GraphFacts) -> tuple[object, object]:
    """Tables of two number types round differently; their caches differ anyway."""
    return (a.rope, b.rope) if a.kv_dtype == b.kv_dtype else (None, None)


def by_precision(inspected: Inspected) -> tuple[int, int, str]:
    """A key that sorts the most precise variant first; of two int4 the mixed one."""
    order = {name: index for index, name in enumerate(PRECISION_ORDER)}
    facts = inspected.facts
    return order.get(facts.precision, len(order)), -int(facts.mixed), inspected.candidate.name


def prove_all(
    inspected: Sequence[Inspected], scratch: Path, threads: int, progress: Progress
) -> tuple[list[Proven], list[Refusal]]:
    """Prove each; the most precise that passes is what the others are compared with.

    Args:
        inspected: The candidates, in any order.
        scratch: A folder for the reference's predictions (tokens × vocabulary × 2 bytes).
        threads: Engine threads.
        progress: Told of each.

    Returns:
        Those that passed, the reference first, and those that didn't.
    """
    reference = scratch / "reference.f16"
    proven: list[Proven] = []
    refused: list[Refusal] = []
    try:
        for one in sorted(inspected, key=by_precision):
            try:
                proof = _prove_one(one, reference, not proven, threads, progress)
            except BuildError as error:
                refused.append(Refusal(one.candidate.name, error.message))
                progress.say(error.message)
            else:
                proven.append(Proven(one, proof))
                progress.say(f"{one.candidate.name}: {_sentence(proof)}")
    finally:
        reference.unlink(missing_ok=True)
    return proven, refused


def _prove_one(
    one: Inspected, reference: Path, is_reference: bool, threads: int, progress: Progress
) -> Proof:
    with progress.step(f"Prove {one.candidate.name}") as note:
        return prove(
            one.candidate.name,
            one.candidate.folder,
            one.facts,
            threads=threads,
            reference=reference,
            is_reference=is_reference,
            indices_graph=one.indices_graph,
            on_note=note,
        )


def _sentence(proof: Proof) -> str:
    return (
        f"perplexity {proof.perplexity:.2f}, mean KL {proof.mean_kl:.4f}, same first choice "
        f"{proof.top1_agreement:.1%}, {readable(proof.resident_bytes)} resident, "
        f"{proof.decode_tps:.0f} tokens/s"
    )


def manifest_of(
    proven: Sequence[Proven],
    *,
    model_id: str,
    display_name: str,
    source: dict[str, str],
    threads: int,
) -> Manifest:
    """The manifest of variants that passed.

    Args:
        proven: At least one, the reference first.
        model_id: The model's id.
        display_name: The model's name for people.
        source: Where it came from.
        threads: Engine threads of the proofs.

    Raises:
        CatalogError: They aren't variants of one model.
    """
    check_same_model([entry.inspected for entry in proven])
    first = proven[0].inspected
    variants = [_variant(entry, model_id, threads) for entry in proven]
    proofs = [entry.proof for entry in proven if entry.proof is not None]
    text = evaluation_text()
    evaluation = None
    if proofs:
        digest = file_sha256(text)
        evaluation = Evaluation(text.name, digest, proofs[0].tokens, first.candidate.name)
    has_template = proofs[0].chat_template if proofs else _template_file(first.candidate.folder)
    return Manifest(
        version=VERSION,
        id=model_id,
        name=display_name,
        architecture=first.facts.architecture,
        context_length=max(entry.inspected.facts.context_length for entry in proven),
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
        fingerprint=kv_fingerprint(model_id, one.tokenizer, kv, facts.kv_dtype, facts.rope),
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


def _template_file(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    config = folder / "tokenizer_config.json"
    return config.is_file() and "chat_template" in config.read_text(encoding="utf-8")
