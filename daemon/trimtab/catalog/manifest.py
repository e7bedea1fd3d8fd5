"""The manifest of a model, `model.yaml`: its fields, and reading and writing it.

Values are checked when they are read; an error names the file, the line and the field.
"""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from trimtab.domain.models import KV_DTYPE_BYTES
from trimtab.errors import CatalogError

MANIFEST: Final = "model.yaml"
VERSION: Final = 1
MAX_BYTES: Final = 1 << 20
MAX_BRACKETS: Final = 1000

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(gt=0)]
Size = Annotated[int, msgspec.Meta(ge=0)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]  # the bound keeps infinity out
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
Quality = Annotated[float, msgspec.Meta(gt=0, le=1)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
KvDtype = Literal["float32", "float16", "bfloat16", "int8", "int4"]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What all parts share: no field may be misspelt, and what is unset isn't written."""


class Rope(_Strict, frozen=True):
    """How positions are turned into the keys, as the graph has it.

    Attributes:
        digest: SHA-256 over the first rows of the tables of cosines and sines, rounded.
        theta: The base of the angles; None where they follow no single base in all layers.
        rotary_dim: Numbers of a key that are turned; the rest stay.
        interleaved: Pairs lie side by side (true) or half a key apart (false).
    """

    digest: Text
    theta: Rate | None = None
    rotary_dim: Count | None = None
    interleaved: bool = False


class Kv(_Strict, frozen=True):
    """The shape of the KV cache, shared by all variants; its type belongs to the variant."""

    layers: Count
    heads: Count
    head_size: Count


class Evaluation(_Strict, frozen=True):
    """What the quality was measured on."""

    text: Text
    text_sha256: Sha256
    tokens: Count
    reference: Name


class File(_Strict, frozen=True):
    """One file of a variant, as it was when the variant was proven."""

    bytes: Size
    sha256: Sha256


class Hints(_Strict, frozen=True):
    """Speeds seen once, on the machine that proved the variant. They say nothing about another."""

    threads: Count
    load_s: Rate
    decode_tps: Rate
    prefill_tps: Rate
    cpu: str = ""


class Variant(_Strict, frozen=True):
    """One variant: files, memory, quality.

    Where `proven` is false nothing was measured: `resident_bytes` is the size of its files and
    `quality` is what its precision usually gives.
    """

    name: Name
    folder: Text
    precision: Name
    kv_dtype: KvDtype
    kv_bytes_per_token: Count
    fingerprint: Text
    context_length: Count
    disk_bytes: Count
    resident_bytes: Count
    quality: Quality
    proven: bool
    perplexity: Rate | None = None
    mean_kl: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    top1_agreement: Ratio | None = None
    measured_at_build: Hints | None = None
    build_options: dict[str, str] = {}
    versions: dict[str, str] = {}
    graph: Text = "model.onnx"
    indices_graph: str = ""
    files: dict[str, File] = {}


class Manifest(_Strict, frozen=True):
    """A whole `model.yaml`."""

    version: Literal[1]
    id: Name
    name: Text
    architecture: Text
    context_length: Count
    vocabulary: Count
    chat_template: bool
    tokenizer_sha256: Sha256
    fingerprint: Text
    kv: Kv
    rope: Rope
    variants: Annotated[list[Variant], msgspec.Meta(min_length=1)]
    evaluation: Evaluation | None = None
    source: dict[str, str] = {}
    made: dict[str, str] = {}


def parse(text: str, name: str) -> Manifest:
    """Read a manifest from text.

    Args:
        text: The YAML.
        name: The file's name, for messages.

    Raises:
        CatalogError: Anything is wrong; the message names file, line and field.
    """
    if (
        text.count("[") + text.count("{") > MAX_BRACKETS
    ):  # the parser's time grows with their square
        raise CatalogError(f"{name}: more than {MAX_BRACKETS} brackets: not a manifest", hint=_HINT)
    yaml = YAML(typ="rt", pure=True)
    try:
        tree = yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise CatalogError(f"{name}{where}: {error.problem or 'not YAML'}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise CatalogError(f"{name}: not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise CatalogError(f"{name}:1: a manifest is a mapping of fields", hint=_HINT)
    if tree.get("version") != VERSION:
        raise CatalogError(
            f"{name}{_line(tree, ('version',))}: version: this trimtab reads version {VERSION}, "
            f"the file has {tree.get('version')!r}",
            hint=_HINT,
        )
    try:
        manifest = msgspec.convert(_plain(tree), Manifest, strict=True)
    except msgspec.ValidationError as error:
        message, path = _split(str(error))
        field = _dotted(path)
        where = f"{name}{_line(tree, path)}"
        raise CatalogError(
            f"{where}: {field + ': ' if field else ''}{message}", hint=_HINT
        ) from error
    _check(manifest, tree, name)
    return manifest


def read(folder: Path) -> Manifest:
    """The manifest in a model's folder.

    Raises:
        CatalogError: It is missing, unreadable, too large, or wrong.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CatalogError(f"{path}: larger than {MAX_BYTES} bytes: not a manifest")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CatalogError(f"{folder} has no {MANIFEST}", hint=_HINT) from error
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path}: not UTF-8 at byte {error.start}", hint=_HINT) from error
    except OSError as error:
        raise CatalogError(f"{path}: {error.strerror}") from error
    return parse(text, str(path))


def dump(manifest: Manifest) -> str:
    """The manifest as YAML that `parse` reads back to an equal value."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 1000
    out = io.StringIO()
    yaml.dump(msgspec.to_builtins(manifest), out)
    return _HEADER + out.getvalue()


_HINT = "`trimtab models add DIR...` writes a new manifest for folders that are whole."
_HEADER = (
    "# Written by `trimtab models`. Sizes are bytes, rates are tokens a second.\n"
    "# quality is exp(-mean KL to the best variant), measured over the evaluation text.\n"
)


def _plain(node: object) -> object:
    """The tree without ruamel's own types, which carry the lines."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _check(manifest: Manifest, tree: object, name: str) -> None:
    """What one field alone can't show."""
    names: set[str] = set()
    for index, variant in enumerate(manifest.variants):
        at = ("variants", index)
        if variant.name in names:
            raise _wrong(name, tree, (*at, "name"), f"{variant.name} is there twice")
        names.add(variant.name)
        numbers = 2 * manifest.kv.layers * manifest.kv.heads * manifest.kv.head_size
        expected = math.ceil(numbers * KV_DTYPE_BYTES[variant.kv_dtype])
        if variant.kv_bytes_per_token != expected:
            problem = f"{variant.kv_bytes_per_token} doesn't follow from kv, which gives {expected}"
            raise _wrong(name, tree, (*at, "kv_bytes_per_token"), problem)
        for key, value in (("folder", variant.folder), *((f, f) for f in variant.files)):
            if ".." in Path(value).parts or (key != "folder" and Path(value).is_absolute()):
                raise _wrong(name, tree, (*at, "folder"), f"{value} leads out of the folder")


def _wrong(name: str, tree: object, path: tuple[str | int, ...], problem: str) -> CatalogError:
    return CatalogError(f"{name}{_line(tree, path)}: {_dotted(path)}: {problem}", hint=_HINT)


def _split(message: str) -> tuple[str, tuple[str | int, ...]]:
    """The message of msgspec, and the path in it: "Expected `int` - at `$.variants[0].name`"."""
    text, _, at = message.partition(" - at `")
    parts = re.findall(r"\.([A-Za-z0-9_]+)|\[(\d+|\.\.\.)\]", at)
    path = tuple(key or (int(index) if index.isdigit() else index) for key, index in parts)
    return text, path


def _dotted(path: tuple[str | int, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _line(tree: object, path: tuple[str | int, ...]) -> str:
    """Where the deepest part of the path is that the file has, as `:LINE`."""
    line = 1
    for part in path:
        marks = getattr(getattr(tree, "lc", None), "data", None)
        if not isinstance(marks, dict) or part not in marks:
            break
        line = marks[part][0] + 1
        tree = tree[part]  # type: ignore[index]
    return f":{line}"
