"""Turns a GGUF into a Hugging Face folder. Runs in the build environment: it needs torch.

    python convert_gguf.py FILE.gguf OUT

transformers refuses to save a model that it loaded from a GGUF, since it takes it for quantized;
the weights are plain float32 by then, so the traces of the quantizer are taken off.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(gguf: Path, out: Path) -> None:
    """Read the GGUF, dequantize it, and write weights, configuration and tokenizer."""
    _say(f"reading {gguf.name}")
    source = str(gguf.parent)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf.name, dtype=torch.float32)
    for attribute in ("hf_quantizer", "quantization_method"):
        if hasattr(model, attribute):
            setattr(model, attribute, None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    _say("writing weights")
    model.save_pretrained(out)
    _say("writing the tokenizer")
    AutoTokenizer.from_pretrained(source, gguf_file=gguf.name).save_pretrained(out)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
