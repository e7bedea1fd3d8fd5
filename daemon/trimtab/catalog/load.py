"""Which models are on this machine: read once, as values, without loading any of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec

from trimtab.catalog.chat_template import read_template
from trimtab.catalog.manifest import MANIFEST, Manifest, Rope, Variant, read
from trimtab.domain.models import ModelSpec, RopeSpec, VariantSpec
from trimtab.domain.tools import ToolFormat, tool_format_of
from trimtab.errors import CatalogError, NoModelError


@dataclass(frozen=True, slots=True)
class DamagedModel:
    """A model, or one variant of it, that can't be used, and why.

    Attributes:
        folder: The model's folder.
        variant: The variant's name; empty when the whole model is unusable.
        reason: One sentence.
        hint: The way out.
    """

    folder: str
    variant: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What was found. Immutable: look again by loading again.

    Attributes:
        models: By id; a model with no usable variant isn't among them.
        damaged: What was found and can't be used.
        folders: Where was looked, for messages.
        locations: The folder of each model, by id, damaged ones with a readable manifest too.
    """

    models: Mapping[str, ModelSpec]
    damaged: tuple[DamagedModel, ...] = ()
    folders: tuple[str, ...] = ()
    locations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def model(self, model_id: str) -> ModelSpec:
        """The model of that id.

        Raises:
            NoModelError: There is none; the hint says how to get one.
        """
        found = self.models.get(model_id)
        if found is not None:
            return found
        for entry in self.damaged:
            if Path(entry.folder).name == model_id:
                raise NoModelError(f"model {model_id} is damaged: {entry.reason}", hint=entry.hint)
        if self.models:
            raise NoModelError(
                f"there is no model {model_id} in {', '.join(self.folders)}",
                hint=f"There is: {', '.join(sorted(self.models))}.",
            )
        raise NoModelError(
            f"there is no model in {', '.join(self.folders)}",
            hint="`trimtab models build smollm2-135m` makes one.",
        )


def load_catalog(folders: Iterable[Path]) -> Catalog:
    """Read all manifests below some folders.

    A folder may be a models folder (one folder a model below it) or a model's own folder. Of two
    models with one id the first is taken and the second is listed as damaged.

    Args:
        folders: Where to look; those that don't exist hold no models.
    """
    folders = tuple(folders)
    models: dict[str, ModelSpec] = {}
    damaged: list[DamagedModel] = []
    locations: dict[str, str] = {}
    for folder in (model for root in folders for model in _model_folders(root)):
        try:
            manifest = read(folder)
            if manifest.id in locations:
                raise CatalogError(f"{folder}: a model {manifest.id} was found before this one")
            locations[manifest.id] = str(folder)
            model, broken = _spec(folder, manifest)
        except CatalogError as error:
            damaged.append(DamagedModel(str(folder), "", error.message, error.hint))
            continue
        damaged += broken
        if model.variants:
            models[model.model_id] = model
    looked = tuple(str(folder) for folder in folders)
    return Catalog(MappingProxyType(models), tuple(damaged), looked, MappingProxyType(locations))


def variant_folder(folder: Path, variant: Variant) -> Path:
    """Where a variant's files are: below the model's folder, or elsewhere if added in place."""
    return folder / variant.folder


def wrong_files(folder: Path, variant: Variant) -> list[str]:
    """A sentence for each file that is missing or has another size than the manifest says."""
    where = variant_folder(folder, variant)
    problems = []
    for name, file in variant.files.items():
        try:
            found = (where / name).stat().st_size
        except OSError as error:
            problems.append(f"{where / name}: {error.strerror}")
            continue
        if found != file.bytes:
            problems.append(f"{where / name} has {found} bytes instead of {file.bytes}")
    return problems


def _model_folders(root: Path) -> list[Path]:
    """The model folders in a folder.

    Hidden ones (builds that run) are left out, and so is what holds neither a manifest nor a
    variant: it isn't a model's.
    """
    if (root / MANIFEST).is_file():
        return [root]
    try:
        below = sorted(root.iterdir())
    except OSError:
        return []
    return [entry for entry in below if not entry.name.startswith(".") and _is_model(entry)]


def _is_model(folder: Path) -> bool:
    return (folder / MANIFEST).exists() or any(folder.glob("*/genai_config.json"))


def _spec(folder: Path, manifest: Manifest) -> tuple[ModelSpec, list[DamagedModel]]:
    usable: list[VariantSpec] = []
    broken: list[DamagedModel] = []
    edition = _edition(manifest)
    for variant in manifest.variants:
        problems = wrong_files(folder, variant)
        if problems:
            hint = "Build, fetch or add the variant again, or take it out of the manifest."
            broken.append(DamagedModel(str(folder), variant.name, "; ".join(problems), hint))
        else:
            usable.append(_variant_spec(folder, variant, edition))
    usable.sort(key=lambda spec: (-spec.quality, -spec.weights_bytes, spec.name))
    return (
        ModelSpec(
            model_id=manifest.id,
            display_name=manifest.name,
            architecture=manifest.architecture,
            # A conversation may go on with any variant, so the shortest decides.
            context_length=min([manifest.context_length, *(one.context_length for one in usable)]),
            layers=manifest.kv.layers,
            kv_heads=manifest.kv.heads,
            head_size=manifest.kv.head_size,
            tokenizer_hash=manifest.tokenizer_sha256,
            has_chat_template=manifest.chat_template,
            variants=tuple(usable),
            rope=rope_spec(manifest.rope),
            tool_format=_tool_format(usable),
        ),
        broken,
    )


def rope_spec(rope: Rope) -> RopeSpec | None:
    """How keys can be turned to other positions; None where they can't exactly."""
    if rope.theta is None or rope.rotary_dim is None:
        return None
    return RopeSpec(rope.theta, rope.rotary_dim, rope.interleaved)


def _tool_format(variants: list[VariantSpec]) -> ToolFormat | None:
    """All variants of a model have one tokenizer, and with it one template."""
    return tool_format_of(read_template(Path(variants[0].folder))) if variants else None


def _edition(manifest: Manifest) -> str:
    """Changes with any file of any variant: other weights may say other things under one name."""
    files = {variant.name: variant.files for variant in manifest.variants}
    return hashlib.sha256(msgspec.json.encode(files, order="sorted")).hexdigest()[:16]


def _variant_spec(folder: Path, variant: Variant, edition: str) -> VariantSpec:
    hints = variant.measured_at_build
    return VariantSpec(
        name=variant.name,
        precision=variant.precision,
        folder=str(variant_folder(folder, variant).absolute()),
        weights_bytes=variant.resident_bytes,
        disk_bytes=variant.disk_bytes,
        kv_bytes_per_token=variant.kv_bytes_per_token,
        quality=variant.quality,
        fingerprint=f"{variant.fingerprint}-{edition}",
        context_length=variant.context_length,
        load_s=hints.load_s if hints else None,
        decode_tps=hints.decode_tps if hints else None,
        prefill_tps=hints.prefill_tps if hints else None,
        proof_threads=hints.threads if hints else 1,
        proof_cpu=hints.cpu if hints else "",
        kv_dtype=variant.kv_dtype,
        indices_graph=variant.indices_graph,
    )
