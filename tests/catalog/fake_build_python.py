"""Stands in for the build environment's interpreter: a real process that builds by copying.

It knows the four calls that a build makes (pip download, the conversion, the model builder, the run
of the weights themselves), writes each into FAKE_CALLS, and fails in the ways that FAKE_FAIL names:
`int8` (the builder dies with a traceback after a half-written folder), `int8:silent` (it exits with
0 and makes nothing), `int8:hang` (it never comes to an end), `weights` (the weights say something
else than the graphs).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

TESTS = Path(os.environ["FAKE_TESTS"])


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def build(arguments: list[str]) -> str:
    precision, out = option(arguments, "-p"), Path(option(arguments, "-o"))
    fail, _, how = os.environ.get("FAKE_FAIL", "").partition(":")
    if fail == precision:
        if how == "silent":
            return precision
        out.mkdir()
        (out / "model.onnx").write_bytes(b"half")
        if how == "hang":
            (out / "pid.partial").write_text(str(os.getpid()))
            (out / "pid.partial").rename(out / "pid")
            time.sleep(60)
        raise MemoryError("no memory for the weights")
    source = TESTS / "catalog/fp16" if precision == "fp16" else TESTS / "tiny" / precision
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("*.indices.onnx"))
    return precision


def convert(file: Path, out: Path) -> str:
    assert file.read_bytes()[:4] == b"GGUF"
    out.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (out / "config.json").write_text(json.dumps(config))
    return "convert"


def download(arguments: list[str]) -> str:
    folder = Path(option(arguments, "--dest"))
    folder.mkdir(exist_ok=True)
    shutil.copy(os.environ["FAKE_WHEEL"], folder)
    return "download"


def run_weights(text: Path, count: int, out: Path) -> str:
    """The tiny model's fp32 graph is what its weights say."""
    import numpy as np

    from trimtab.catalog.own_kv import logits_of

    folder = TESTS / "tiny/fp32"
    ids = np.frombuffer(text.read_bytes()[:count], np.uint8).astype(np.int64) + 3
    request = {"folder": str(folder), "graph": "model.onnx", "threads": 1}
    logits = logits_of(request | {"kv": [2, 2, 16], "kv_dtype": "float32"}, ids, 64)
    if os.environ.get("FAKE_FAIL") == "weights":
        logits = logits[::-1]
    np.savez(out, ids=ids, logits=logits)
    return "weights"


def main(arguments: list[str]) -> None:
    if arguments[:2] == ["-m", "pip"]:
        did = download(arguments)
    elif arguments[:2] == ["-m", "onnxruntime_genai.models.builder"]:
        did = build(arguments)
    elif arguments[0].endswith("weights_logits.py"):
        did = run_weights(Path(arguments[2]), int(arguments[3]), Path(arguments[4]))
    else:
        did = convert(Path(arguments[1]), Path(arguments[2]))
    with open(os.environ["FAKE_CALLS"], "a") as calls:
        calls.write(did + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
