"""Proves a variant, in a process of its own: `python -m trimtab.catalog.prove_child REQUEST`.

The request is one JSON object, the only argument; answers are JSON lines on standard output:
`{"note": ...}` while it runs, then `{"result": ...}` or `{"refused": REASON}`. A crash of the
engine ends this process only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime_genai as og
import psutil

from trimtab.catalog.compare import Comparison, Reference, divergences, log_softmax
from trimtab.catalog.own_kv import indices_are_exact, logits_of
from trimtab.catalog.shift_loss import shift_loss
from trimtab.errors import BuildError

PIECE: Final = 64
WINDOW: Final = 1024
PROMPT: Final = 512
WARM_UP: Final = 32


def load(folder: str, threads: int) -> tuple[Any, Any, float, int]:
    """Load a variant.

    Returns:
        Model, tokenizer, seconds for it, and the resident bytes that it added to this process.
    """
    before = _resident_bytes()
    begun = time.perf_counter()
    try:
        config = og.Config(folder)
        options = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        model = og.Model(config)
        tokenizer = og.Tokenizer(model)
    except RuntimeError as error:
        raise BuildError(f"it doesn't load: {_first_line(error)}") from error
    seconds = time.perf_counter() - begun
    return model, tokenizer, seconds, max(1, _resident_bytes() - before)


def generate(model: Any, ids: Any, request: dict[str, Any]) -> dict[str, float]:
    """Read a prompt in pieces and generate past `generate` tokens, without stopping at an end.

    A build often runs on a machine that is busy with something else. So one thread is timed by
    the processor time that it takes, and rates come from the better quarter of pieces and tokens.

    Returns:
        The rates of both, in tokens a second.
    """
    clock = time.thread_time if request["threads"] == 1 else time.perf_counter
    wanted = int(request["generate"])
    room = int(request["context"]) - wanted - 1
    pieces = max(1, min(PROMPT, room) // PIECE)
    total = pieces * PIECE + wanted
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=total, min_length=total, do_sample=False)
    generator = og.Generator(model, params)
    read = [clock()]
    try:
        for piece in range(pieces):
            generator.append_tokens(ids[piece * PIECE : (piece + 1) * PIECE])
            read.append(clock())
    except RuntimeError as error:
        raise BuildError(f"it fails at its first prefill: {_first_line(error)}") from error
    made = _decode(generator, wanted, int(request["vocabulary"]), clock)
    return {
        "prefill_tps": PIECE / _better_quarter(read),
        "decode_tps": 1 / _better_quarter(made[WARM_UP:]),
    }


def _better_quarter(times: list[float]) -> float:
    """The lower quartile of the gaps between times, in seconds."""
    return float(np.percentile(np.diff(times), 25))


def _decode(
    generator: Any, wanted: int, vocabulary: int, clock: Callable[[], float]
) -> list[float]:
    """The time of each token; every one is checked."""
    times: list[float] = []
    while len(times) < wanted:
        if generator.is_done():
            raise BuildError(f"generation ended after {len(times)} of {wanted} tokens")
        try:
            generator.generate_next_token()
        except RuntimeError as error:
            raise BuildError(f"it fails at token {len(times)}: {_first_line(error)}") from error
        token = int(generator.get_next_tokens()[0])
        if not 0 <= token < vocabulary:
            raise BuildError(f"token {len(times)} is {token}, and there are {vocabulary}")
        times.append(clock())
    return times


def score(model: Any, ids: Any, request: dict[str, Any], answer: Any) -> Comparison:
    """Go over the text in windows and compare each prediction with the text and the reference."""
    window = min(WINDOW, int(request["context"]))
    path = Path(request["reference"]) if request.get("reference") else None
    reference = Reference(path, len(ids), int(request["vocabulary"]), bool(request["is_reference"]))
    comparison = Comparison(reference)
    for start in range(0, len(ids), window):
        part = ids[start : start + window]
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=window, do_sample=False)
        generator = og.Generator(model, params)
        for at in range(0, len(part), PIECE):
            piece = part[at : at + PIECE]
            generator.append_tokens(piece)
            logits = np.asarray(generator.get_output("logits"), dtype=np.float32)[0, -len(piece) :]
            if not np.isfinite(logits).all():
                raise BuildError(f"its logits aren't numbers at token {start + at}")
            following = part[at + 1 : at + 1 + len(piece)]
            comparison.add(start + at, at, logits[: len(following)], np.asarray(following))
        del generator
        answer({"note": f"{min(start + window, len(ids))} of {len(ids)} tokens scored"})
    reference.close()
    return comparison


def prove(request: dict[str, Any], answer: Any) -> dict[str, Any]:
    """All of it; raises `BuildError` with the reason."""
    threads = int(request["threads"])
    model, tokenizer, load_s, resident_bytes = load(request["folder"], threads)
    text = Path(request["text"]).read_text(encoding="utf-8")
    ids = np.asarray(tokenizer.encode(text), dtype=np.int32)[: int(request["max_tokens"])]
    if len(ids) < 2 * PIECE:
        raise BuildError(f"its tokenizer makes only {len(ids)} tokens of the evaluation text")
    answer({"note": f"loaded in {load_s:.1f} s, {resident_bytes / 1e6:.0f} MB"})
    result: dict[str, Any] = {"load_s": load_s, "resident_bytes": resident_bytes}
    result |= generate(model, ids, request)
    answer({"note": f"{result['decode_tps']:.0f} tokens/s"})
    result |= score(model, ids, request, answer).result()
    result["chat_template"] = _has_chat_template(tokenizer)
    result["tokens"] = len(ids)
    result["indices_exact"] = None
    result["shift"] = None
    del model, tokenizer
    gc.collect()
    if request.get("indices_graph"):
        result["indices_exact"] = indices_are_exact(request, ids[: 3 * PIECE])
    if request.get("shift"):
        answer({"note": "the window is shifted"})
        result["shift"] = shift_loss(request, ids.astype(np.int64))
    return result | _against_weights(request)


def _against_weights(request: dict[str, Any]) -> dict[str, float | None]:
    """How far the graph is from what the weights say; None where these aren't at hand."""
    if not request.get("weights"):
        return {"weights_difference": None, "weights_kl": None}
    with np.load(request["weights"]) as said:
        ids, wanted = said["ids"], said["logits"]
    vocabulary = min(wanted.shape[1], int(request["vocabulary"]))
    got = logits_of(request, ids, PIECE)[:, :vocabulary]
    wanted = wanted[:, :vocabulary]
    return {
        "weights_difference": float(np.abs(got - wanted).max()),
        "weights_kl": float(divergences(log_softmax(wanted), log_softmax(got)).mean()),
    }


def _has_chat_template(tokenizer: Any) -> bool:
    message = json.dumps([{"role": "user", "content": "Hello"}])
    try:
        return "Hello" in str(tokenizer.apply_chat_template(message, add_generation_prompt=True))
    except RuntimeError:
        return False


def _resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def main() -> None:
    """Answer on the real standard output; what libraries print there goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")

    og.disable_telemetry_events()
    try:
        answer({"result": prove(json.loads(sys.argv[1]), answer)})
    except BuildError as reason:
        answer({"refused": reason.message})


if __name__ == "__main__":
    main()
