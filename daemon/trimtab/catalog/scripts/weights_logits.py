"""What a model's own weights say, to hold a built graph against. Runs in the build environment.

    python weights_logits.py FOLDER TEXT COUNT OUT.npz

Writes the first ``COUNT`` tokens of the text as ``ids`` and the logits after each of them as
``logits`` (tokens, vocabulary), in float32 as Hugging Face computes them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def write_logits(folder: Path, text: Path, count: int, out: Path) -> None:
    """Compute them; the file gets its name when it is whole."""
    _say("reading the weights")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text.read_text(encoding="utf-8"))["input_ids"][:count]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    _say(f"computing {len(ids)} tokens")
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float().numpy()
    partial = out.with_suffix(".partial.npz")
    np.savez(partial, ids=np.asarray(ids, np.int64), logits=logits)
    partial.rename(out)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    write_logits(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
