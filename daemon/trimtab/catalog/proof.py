"""Proving a variant: it loads, generates, and predicts a text about as well as the best one does.

A builder that exits with 0 proves nothing: some variants fail at their first prefill, some
generate noise. So nothing is published before it has been through this.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Final

from trimtab.catalog import build_process
from trimtab.catalog.graph import GraphFacts
from trimtab.catalog.load import rope_spec
from trimtab.catalog.manifest import Hints
from trimtab.catalog.processor import parse_cpu_name
from trimtab.errors import BuildError

GENERATE: Final = 620
MAX_TOKENS: Final = 4096
MIN_CONTEXT: Final = 256
MAX_MEAN_KL: Final = 2.5
MAX_LATE_RATIO: Final = 4.0
MAX_WEIGHTS_DIFFERENCE: Final = 1e-2
WEIGHTS_TOKENS: Final = 128
EVALUATION_TEXT: Final = "evaluation.txt"


@dataclass(frozen=True, slots=True)
class Proof:
    """What a proof measured.

    Attributes:
        resident_bytes: What loading added to an empty process with the engine imported.
        load_s: Seconds to load, the files being in the page cache.
        decode_tps: Tokens a second, generating.
        prefill_tps: Tokens a second, reading a prompt of 512.
        perplexity: Over the text, in windows of 1024 tokens.
        perplexity_early: At positions 32 to 255 of the windows; None if there are none.
        perplexity_late: At positions from 512 on; None if there are none.
        mean_kl: To the reference, in nats for each token; 0 for the reference itself.
        top1_agreement: Share of positions with the reference's likeliest token.
        chat_template: Whether the folder's template makes a prompt of messages.
        tokens: Tokens of the text.
        indices_exact: Whether the graph with `logits_indices` gives the same bits; None if it
            wasn't asked for.
        shift: What a shift of the window costs, as `shift_loss` has it; None if it wasn't asked
            for, or can't be measured.
        weights_difference: Furthest that a logit is from what the weights say; None if these
            weren't at hand.
        weights_kl: Mean KL to what the weights say, likewise.
    """

    resident_bytes: int
    load_s: float
    decode_tps: float
    prefill_tps: float
    perplexity: float
    perplexity_early: float | None
    perplexity_late: float | None
    mean_kl: float
    top1_agreement: float
    chat_template: bool
    tokens: int
    indices_exact: bool | None
    shift: dict[str, Any] | None
    weights_difference: float | None
    weights_kl: float | None

    def hints(self, threads: int) -> Hints:
        """The speeds, as the manifest has them."""
        rates = (round(self.load_s, 3), round(self.decode_tps, 1), round(self.prefill_tps, 1))
        return Hints(threads, *rates, cpu=_cpu_name())


def evaluation_text() -> Path:
    """The text that ships with the package."""
    return Path(str(resources.files("trimtab.catalog") / "data" / EVALUATION_TEXT))


def proof_threads() -> int:
    """Threads for a proof where nobody says otherwise: all cores of ours but one."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def prove(
    name: str,
    folder: Path,
    facts: GraphFacts,
    *,
    threads: int,
    reference: Path | None,
    is_reference: bool,
    indices_graph: str,
    weights: Path | None,
    on_note: Callable[[str], None],
    generate: int = GENERATE,
    shift: bool = False,
) -> Proof:
    """Prove one variant in a process of its own.

    Args:
        name: The variant's name, for messages.
        folder: The variant's folder.
        facts: What its graph says.
        threads: Engine threads.
        reference: The file of the best variant's log-probabilities, or None for no comparison.
        is_reference: Whether this variant writes that file.
        indices_graph: The graph to compare with the original; empty for none.
        weights: What its weights say (scripts/weights_logits.py); None if they aren't at hand. A
            graph whose inputs aren't all known can't be held against it, and has no second graph.
        on_note: Called with a few words as it goes.
        generate: Tokens to generate.
        shift: Whether to measure what a shift of the window costs.

    Raises:
        BuildError: It doesn't load, generate or predict; with the reason.
    """
    if facts.context_length < MIN_CONTEXT:
        raise BuildError(
            f"{name} is refused: a context of {facts.context_length} tokens is too short "
            f"to be proven; {MIN_CONTEXT} is the least",
            code="variant_refused",
        )
    request = {
        "folder": str(folder),
        "graph": facts.graph,
        "text": str(evaluation_text()),
        "context": facts.context_length,
        "vocabulary": facts.vocabulary,
        "kv": [facts.kv.layers, facts.kv.heads, facts.kv.head_size],
        "kv_dtype": facts.kv_dtype,
        "threads": threads,
        "generate": min(generate, facts.context_length - 128),
        "max_tokens": MAX_TOKENS,
        "reference": str(reference) if reference else "",
        "is_reference": is_reference,
        "indices_graph": indices_graph,
        "shift": shift,
        "rope": asdict(rope) if (rope := rope_spec(facts.rope)) is not None else None,
        "weights": str(weights) if weights and indices_graph else "",
    }
    result = _run(request, name, on_note)
    proof = Proof(**{field.name: result[field.name] for field in fields(Proof)})
    _judge(proof, name, facts)
    return proof


def _run(request: dict[str, Any], name: str, on_note: Callable[[str], None]) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []

    def on_line(line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return  # the engine's own words, on standard error
        if "note" in message:
            on_note(message["note"])
        else:
            answers.append(message)

    argv = [sys.executable, "-m", "trimtab.catalog.prove_child", json.dumps(request)]
    build_process.run(argv, f"prove {name}", on_line)
    if not answers:
        raise BuildError(f"the proof of {name} ended without an answer")
    if "refused" in answers[-1]:
        raise BuildError(f"{name} is refused: {answers[-1]['refused']}", code="variant_refused")
    result: dict[str, Any] = answers[-1]["result"]
    return result


def _judge(proof: Proof, name: str, facts: GraphFacts) -> None:
    """Refuse what runs but talks nonsense, or what another model would say."""
    early, late = proof.perplexity_early, proof.perplexity_late
    vocabulary = facts.vocabulary
    reason = _another_model(proof, facts.precision)
    if reason:
        pass  # what comes below follows from it
    elif proof.perplexity > vocabulary / 2:
        reason = f"it predicts noise: perplexity {proof.perplexity:.0f} of {vocabulary} words"
    elif proof.mean_kl > MAX_MEAN_KL:
        reason = (
            f"its mean KL to the best variant is {proof.mean_kl:.2f}, "
            f"and {MAX_MEAN_KL} is the most that can be used"
        )
    elif early and late and late > MAX_LATE_RATIO * early:
        reason = (
            f"it loses its thread: perplexity {early:.1f} near the beginning, "
            f"{late:.1f} after 512 tokens"
        )
    elif proof.indices_exact is False:
        reason = "its graph with logits_indices gives other logits than the original"
    if reason:
        raise BuildError(f"{name} is refused: {reason}", code="variant_refused")


def _another_model(proof: Proof, precision: str) -> str:
    """Why the graph isn't that of its weights; empty if it is, or if these aren't at hand."""
    difference, kl = proof.weights_difference, proof.weights_kl
    if difference is None or kl is None:
        return ""
    if precision == "fp32" and difference > MAX_WEIGHTS_DIFFERENCE:
        return (
            f"its logits differ from its weights' by up to {difference:.2g}, and rounding makes "
            f"{MAX_WEIGHTS_DIFFERENCE} at most: the builder made another model of it"
        )
    if kl > MAX_MEAN_KL:
        return (
            f"its mean KL to its own weights is {kl:.2f}, and {MAX_MEAN_KL} is the most that "
            "quantization makes: the builder made another model of it"
        )
    return ""


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return parse_cpu_name(text)
