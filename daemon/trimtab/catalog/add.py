"""`trimtab models add`: a manifest for variants that somebody else built."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.catalog.assemble import (
    Candidate,
    Inspected,
    Proven,
    Refusal,
    by_precision,
    check_same_model,
    existing_manifest,
    inspect,
    kept_candidates,
    prove_all,
)
from trimtab.catalog.build import BuildResult
from trimtab.catalog.compose import manifest_of
from trimtab.catalog.disk import check_space, copy_bytes
from trimtab.catalog.graph import GENAI_CONFIG
from trimtab.catalog.manifest import MANIFEST, Manifest
from trimtab.catalog.progress import Progress
from trimtab.catalog.publish import publish, write_manifest
from trimtab.errors import BuildError, CatalogError


@dataclass(frozen=True, slots=True)
class AddRequest:
    """What a person asked for.

    Attributes:
        folders: Variants, or folders of variants.
        models: The models folder.
        model_id: The id to publish under; empty to take the folder's name.
        display_name: The name for people; empty to take the folder's name.
        copy: Copy the files into the models folder instead of leaving them where they are.
        verify: Prove each variant.
        threads: Engine threads of the proofs.
        source: For the manifest.
    """

    folders: tuple[Path, ...]
    models: Path
    model_id: str
    display_name: str
    copy: bool
    verify: bool
    threads: int
    source: dict[str, str]


def add_model(request: AddRequest, progress: Progress) -> BuildResult:
    """Prove ready-made variants and write their manifest.

    Variants that the model has already stay, and are proven again with the new ones on one scale.

    Raises:
        CatalogError: A folder isn't a variant, is damaged, or belongs to another model.
        BuildError: No variant was good.
    """
    folders = variant_folders(request.folders)
    model_id = request.model_id or _published_as(folders, request.models) or default_id(folders)
    target = request.models / model_id
    there = existing_manifest(target)
    new = _candidates(folders, target, request.copy, there)
    names = {candidate.name for candidate in new}
    kept = [entry for entry in kept_candidates(target, there) if entry.name not in names]
    if request.copy:
        needed = sum(copy_bytes(candidate.folder, request.models) for candidate in new)
        check_space(request.models, needed, f"Copying {model_id}")
    inspected = [inspect(candidate, progress) for candidate in kept + new]
    check_same_model(inspected)
    proven, refused = _prove(inspected, request, progress)
    default_name = there.name if there else model_id
    manifest = manifest_of(
        proven,
        model_id=model_id,
        display_name=request.display_name or default_name,
        source=_source(request, there),
        threads=request.threads,
        earlier=there,
    )
    candidates = [entry.inspected.candidate for entry in proven]
    if all(candidate.folder.parent == target for candidate in candidates):
        write_manifest(manifest, target)
    else:
        publish(manifest, candidates, target)
    added = tuple(entry.name for entry in candidates if entry.name in names)
    return BuildResult(target, manifest, added, tuple(refused))


def variant_folders(folders: Sequence[Path]) -> list[Path]:
    """The folders that hold a variant: those given, or those right below them.

    Raises:
        CatalogError: One of them holds none.
    """
    found: list[Path] = []
    for folder in folders:
        absolute = folder.absolute()
        if (absolute / GENAI_CONFIG).is_file() or not absolute.is_dir():
            found.append(absolute)
            continue
        below = sorted(path.parent for path in absolute.glob(f"*/{GENAI_CONFIG}"))
        found += [path for path in below if not path.name.startswith(".")] or [absolute]
    for folder in found:
        if not (folder / GENAI_CONFIG).is_file():
            raise CatalogError(
                f"{folder} has no {GENAI_CONFIG}"
                if folder.is_dir()
                else f"{folder}: there is no such folder",
                hint="Give folders that onnxruntime-genai's builder made; a Hugging Face folder "
                "or a GGUF is built with `trimtab models build --from`.",
            )
    return found


def _published_as(folders: Sequence[Path], models: Path) -> str:
    """The model that all of them are variants of; empty if there is none."""
    around = {folder.parent for folder in folders}
    if len(around) != 1:
        return ""
    (model,) = around
    inside = model.parent == models.absolute() and (model / MANIFEST).is_file()
    return model.name if inside else ""


def default_id(folders: Sequence[Path]) -> str:
    """An id from the folder's name, or from the name of the folder around several."""
    name = folders[0].name if len(folders) == 1 else folders[0].parent.name
    text = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")
    if not text:
        raise CatalogError(f"{folders[0]} gives no id", hint="Say one with --id.")
    return text


def _candidates(
    folders: Sequence[Path], target: Path, copy: bool, there: Manifest | None
) -> list[Candidate]:
    variants = {entry.name: entry for entry in there.variants} if there else {}
    candidates: list[Candidate] = []
    for folder in folders:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-._") or "variant"
        inside = folder.parent == target
        place = name if copy or inside else str(folder)
        before = variants.get(name)
        options = before.build_options if before else {}
        published = before.indices_graph if before and target / before.folder == folder else ""
        candidates.append(Candidate(name, folder, place, options, second_graph=published))
    names = [candidate.name for candidate in candidates]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled:
        raise CatalogError(
            f"two folders are called {doubled}",
            hint="A variant is called as its folder is: rename one of them.",
        )
    return candidates


def _source(request: AddRequest, there: Manifest | None) -> dict[str, str]:
    """Where it came from; what was built or fetched before stays so when it is added to."""
    if there is not None and there.source and request.source.get("kind") == "added":
        return there.source
    return request.source


def _prove(
    inspected: Sequence[Inspected], request: AddRequest, progress: Progress
) -> tuple[list[Proven], list[Refusal]]:
    if not request.verify:
        progress.say("Nothing was proven: memory and quality in the manifest are assumed.")
        ordered = sorted(inspected, key=by_precision)
        return [Proven(one, None, one.candidate.known) for one in ordered], []
    with tempfile.TemporaryDirectory(prefix="trimtab-proof-") as scratch:
        proven, refused = prove_all(inspected, Path(scratch), request.threads, progress)
    if not proven:
        reasons = "; ".join(refusal.reason for refusal in refused)
        raise BuildError(f"nothing to add: {reasons}", code="variant_refused")
    return proven, refused
