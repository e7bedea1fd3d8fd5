"""Variants that are there become one model: each proven against the best, one manifest for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trimtab.catalog.disk import readable
from trimtab.catalog.fingerprint import file_sha256, tokenizer_sha256
from trimtab.catalog.gate import refuse_wrong
from trimtab.catalog.graph import GraphFacts, read_graph
from trimtab.catalog.indices import write_indices_graph
from trimtab.catalog.manifest import MANIFEST, Manifest, Variant, read
from trimtab.catalog.progress import Progress
from trimtab.catalog.proof import Proof, evaluation_text, prove
from trimtab.errors import BuildError, CatalogError

OWN_KV_DTYPES: Final = ("float32", "float16", "int8", "int4")
PRECISION_ORDER: Final = ("fp32", "bf16", "fp16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A folder that may become a variant.

    Attributes:
        name: The variant's name.
        folder: Where its files are.
        place: What the manifest says for its folder: a name, or an absolute path.
        options: How it was built, where that is known.
        known: What was measured before; None for a new one.
        measured_against: The reference of that measurement.
        origin: The Hugging Face folder that it was built from, where that is at hand.
        second_graph: File name of the graph with `logits_indices` that the manifest names.
        stays: True for one that is there already: its files aren't touched.
    """

    name: str
    folder: Path
    place: str
    options: dict[str, str] = field(default_factory=dict)
    known: Variant | None = None
    measured_against: str = ""
    origin: Path | None = None
    second_graph: str = ""
    stays: bool = False


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
    """A candidate that passed.

    Attributes:
        inspected: The candidate.
        proof: What was measured now; None if nothing was.
        known: What was measured before and still holds; it wins over `proof`.
    """

    inspected: Inspected
    proof: Proof | None
    known: Variant | None = None


def existing_manifest(target: Path) -> Manifest | None:
    """The manifest of what is there; a damaged one counts as nothing, and is replaced."""
    if not (target / MANIFEST).is_file():
        return None
    try:
        return read(target)
    except CatalogError:
        return None


def kept_candidates(target: Path, there: Manifest | None) -> list[Candidate]:
    """Variants that are there already.

    What was measured of them holds as long as the reference and the text are the same; otherwise
    they are proven again with the new ones, so that all are on one scale.
    """
    if there is None:
        return []
    text = there.evaluation
    same_text = text is not None and text.text_sha256 == file_sha256(evaluation_text())
    against = text.reference if text is not None and same_text else ""
    return [
        Candidate(
            variant.name,
            target / variant.folder,
            variant.folder,
            variant.build_options,
            variant if variant.proven else None,
            against,
            second_graph=variant.indices_graph,
            stays=True,
        )
        for variant in there.variants
    ]


def inspect(candidate: Candidate, progress: Progress) -> Inspected:
    """Read a candidate's graph, and write the graph with `logits_indices` beside it.

    A folder that can't be written, or a graph whose head isn't found, has no second graph; that
    is said, and the variant is good without.

    Raises:
        CatalogError: The folder isn't a variant, is damaged, or its graph leaves out a part of its
            model.
    """
    facts = read_graph(candidate.folder)
    refuse_wrong(candidate.folder, facts, candidate.origin)
    tokenizer = tokenizer_sha256(candidate.folder)
    second = candidate.folder / candidate.second_graph
    if candidate.stays and (not candidate.second_graph or second.is_file()):
        return Inspected(candidate, facts, tokenizer, candidate.second_graph)
    obstacle = _only_for_the_generator(facts)
    if obstacle:
        progress.say(
            f"{candidate.name}: {obstacle}, so only onnxruntime-genai's own loop can run it, "
            "and conversations are replayed when they come or go."
        )
        return Inspected(candidate, facts, tokenizer, "")
    try:
        indices_graph = write_indices_graph(
            candidate.folder, facts.graph, facts.kv.head_size, candidate.second_graph
        )
    except CatalogError as error:
        progress.say(
            f"{candidate.name}: {error.message}, so it has no second graph, and a prompt is read "
            "a sixth slower."
        )
        indices_graph = ""
    return Inspected(candidate, facts, tokenizer, indices_graph)


def _only_for_the_generator(facts: GraphFacts) -> str:
    """Why the decoder that owns its KV can't run the graph; empty if it can."""
    unknown = sorted(set(facts.inputs) - {"input_ids", "attention_mask"})
    if facts.providers:
        return f"it is built for {' and '.join(facts.providers)}"
    if unknown:
        return f"its graph also wants {', '.join(unknown)}"
    if facts.kv_dtype not in OWN_KV_DTYPES:
        return f"its KV cache is of type {facts.kv_dtype}"
    return ""


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
    inspected: Sequence[Inspected],
    scratch: Path,
    threads: int,
    progress: Progress,
    weights: Path | None = None,
) -> tuple[list[Proven], list[Refusal]]:
    """Prove each; the most precise that passes is what the others are compared with.

    Args:
        inspected: The candidates, in any order.
        scratch: A folder for the reference's predictions (tokens × vocabulary × 2 bytes).
        threads: Engine threads.
        progress: Told of each.
        weights: What the weights that they were built from say (scripts/weights_logits.py), where
            these are at hand.

    Returns:
        Those that passed, the reference first, and those that didn't.
    """
    reference = scratch / "reference.f16"
    proven: list[Proven] = []
    refused: list[Refusal] = []
    try:
        for one in sorted(inspected, key=by_precision):
            if _still_holds(one.candidate, proven):
                proven.append(Proven(one, None, one.candidate.known))
                continue
            try:
                proof = _prove_one(one, reference, not proven, threads, progress, weights)
            except BuildError as error:
                refused.append(Refusal(one.candidate.name, error.message))
                progress.say(error.message)
            else:
                known = None if proven else _known_reference(one.candidate)
                proven.append(Proven(one, proof, known))
                progress.say(f"{one.candidate.name}: {_sentence(proof)}")
    finally:
        reference.unlink(missing_ok=True)
    return proven, refused


def _still_holds(candidate: Candidate, proven: Sequence[Proven]) -> bool:
    """Whether an old measurement can stand: the reference that it was made against is in force."""
    if candidate.known is None or not proven:
        return False
    return proven[0].inspected.candidate.name == candidate.measured_against


def _known_reference(candidate: Candidate) -> Variant | None:
    """The old measurement of a reference that only ran again to be compared with."""
    return candidate.known if candidate.measured_against == candidate.name else None


def _prove_one(
    one: Inspected,
    reference: Path,
    is_reference: bool,
    threads: int,
    progress: Progress,
    weights: Path | None,
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
            weights=weights,
            on_note=note,
        )


def _sentence(proof: Proof) -> str:
    return (
        f"perplexity {proof.perplexity:.2f}, mean KL {proof.mean_kl:.4f}, same first choice "
        f"{proof.top1_agreement:.1%}, {readable(proof.resident_bytes)} resident, "
        f"{proof.decode_tps:.0f} tokens/s"
    )
