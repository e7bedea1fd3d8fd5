"""Hashes: of files, of a tokenizer, and of what two variants must share to share a KV cache."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from trimtab.catalog.manifest import Kv, Rope
from trimtab.errors import CatalogError

# The files that decide which token ids a text becomes. Chat templates aren't among them: they only
# decide the text.
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "added_tokens.json",
)
_BLOCK: Final = 1 << 20


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        CatalogError: The file can't be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CatalogError(f"{path}: {error.strerror}") from error


def tokenizer_sha256(folder: Path) -> str:
    """One hash over a folder's tokenizer files.

    Raises:
        CatalogError: The folder has none of them.
    """
    found = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not found:
        raise CatalogError(
            f"{folder} has no tokenizer ({', '.join(TOKENIZER_FILES[:2])})",
            hint="Copy the tokenizer's files beside genai_config.json.",
        )
    digest = hashlib.sha256()
    for name in found:
        digest.update(f"{name} {file_sha256(folder / name)}\n".encode())
    return digest.hexdigest()


def kv_fingerprint(
    model_id: str, tokenizer: str, kv: Kv, kv_dtype: str, rope: Rope, scales: str
) -> str:
    """A name for the meaning of a KV cache's bytes.

    Two variants with one fingerprint can continue each other's conversations. The model's id is
    part of it: two models of one shape don't understand each other's caches. So are the scales of a
    quantized cache, since a byte means another number with other ones.
    """
    parts = {
        "model": model_id,
        "tokenizer": tokenizer,
        "kv": [kv.layers, kv.heads, kv.head_size, kv_dtype],
        "rope": [rope.digest, rope.rotary_dim, rope.interleaved],
    }
    if scales:
        parts["scales"] = scales
    text = json.dumps(parts, sort_keys=True)
    return "kv1-" + hashlib.sha256(text.encode()).hexdigest()[:32]
