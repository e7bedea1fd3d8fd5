"""`trimtab models build`: from weights to a published model, step by step and resumable.

Everything happens in a hidden work folder beside the models. Each step's result gets its name only
when it is whole, so a build that was interrupted goes on after the last whole one. The model
appears under its id at the very end, in one rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from trimtab.catalog import build_env, build_process
from trimtab.catalog.assemble import (
    Candidate,
    Proven,
    Refusal,
    check_same_model,
    existing_manifest,
    inspect,
    kept_candidates,
    prove_all,
)
from trimtab.catalog.compose import manifest_of
from trimtab.catalog.disk import check_space, readable
from trimtab.catalog.manifest import Manifest
from trimtab.catalog.progress import Progress
from trimtab.catalog.proof import evaluation_text
from trimtab.catalog.publish import publish
from trimtab.catalog.recipes import RECIPES, VariantRecipe
from trimtab.catalog.sources import OFFLINE, Source, hugging_face_folder, weights_logits
from trimtab.errors import BuildError, CatalogError

BUILDER: Final = "onnxruntime_genai.models.builder"
QUANTIZER: Final = "trimtab.catalog.quantize_kv"


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What a person asked for.

    Attributes:
        model_id: The id to publish under.
        display_name: The name for people.
        source: Where the weights come from.
        variants: Names in `recipes.RECIPES`.
        models: The models folder.
        cache: The cache folder.
        threads: Engine threads of the proofs.
        force: Build again what is there.
    """

    model_id: str
    display_name: str
    source: Source
    variants: tuple[str, ...]
    models: Path
    cache: Path
    threads: int
    force: bool = False


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What came of it.

    Attributes:
        folder: The model's folder.
        manifest: Its manifest.
        built: Variants that were built now; empty when all were there.
        refused: Variants that were built and not published.
    """

    folder: Path
    manifest: Manifest
    built: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


def build_model(request: BuildRequest, progress: Progress) -> BuildResult:
    """Build the variants that aren't there yet, prove them, and publish the model.

    Raises:
        BuildError: A step failed, or no variant was good; what was made stays for the next time.
        CatalogError: There is no space, or the folder can't be used.
    """
    target = request.models / request.model_id
    there = existing_manifest(target) if not request.force else None
    have = {variant.name for variant in there.variants} if there else set()
    wanted = [RECIPES[name] for name in request.variants if name not in have]
    if there is not None and not wanted:
        return BuildResult(target, there)
    work = request.models / f".work-{request.model_id}"
    with _work_folder(work, request.source.key):
        candidates, weights = _build_from_weights(request, wanted, work, progress)
        candidates += [
            _quantize_kv(recipe, target, work, request.threads, progress)
            for recipe in wanted
            if recipe.base
        ]
        kept = kept_candidates(target, there)
        proven, refused = _prove(request, kept + candidates, work, weights, progress)
        manifest = manifest_of(
            proven,
            model_id=request.model_id,
            display_name=request.display_name,
            source=request.source.description,
            threads=request.threads,
        )
        with progress.step("Publish"):
            publish(manifest, [entry.inspected.candidate for entry in proven], target)
    shutil.rmtree(work, ignore_errors=True)
    published = {variant.name for variant in manifest.variants}
    built = tuple(recipe.name for recipe in wanted if recipe.name in published)
    return BuildResult(target, manifest, built, tuple(refused))


def _build_from_weights(
    request: BuildRequest, wanted: Sequence[VariantRecipe], work: Path, progress: Progress
) -> tuple[list[Candidate], Path | None]:
    """The variants that need the model's own weights, and an environment that can read them.

    Returns:
        The variants, and the file of what the weights say; None if nothing was built from them.
    """
    recipes = [recipe for recipe in wanted if not recipe.base]
    if not recipes:
        return [], None
    if not any(work.glob("*.built")):
        check_space(work, request.source.needs_bytes, f"Building {request.model_id}")
    python = build_env.ensure(request.cache, progress)
    weights = hugging_face_folder(request.source, work, python, progress)
    _warn_of_memory(request.source.memory_bytes, progress)
    built = [_build_variant(recipe, weights, work, python, progress) for recipe in recipes]
    return built, weights_logits(weights, work, python, progress)


def _quantize_kv(
    recipe: VariantRecipe, target: Path, work: Path, threads: int, progress: Progress
) -> Candidate:
    """A variant with an int8 KV cache, from the variant whose weights it has.

    Raises:
        BuildError: That variant is neither there nor being built, or can't be changed so.
    """
    options = {"precision": recipe.precision, **recipe.options, "kv_cache": "int8_per_channel"}
    folder = work / f"{recipe.name}.built"
    candidate = Candidate(recipe.name, folder, recipe.name, options)
    if folder.is_dir():
        progress.say(f"{recipe.name} was built before.")
        return candidate
    source = next(
        (
            place
            for place in (work / f"{recipe.base}.built", target / recipe.base)
            if place.is_dir()
        ),
        None,
    )
    if source is None:
        raise BuildError(
            f"{recipe.name} has the weights of {recipe.base}, which isn't there",
            hint=f"Build it too: `--variants {recipe.base} --kv int8`.",
        )
    partial = work / f"{recipe.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    argv = [sys.executable, "-m", QUANTIZER, str(source), str(partial), str(evaluation_text())]
    with progress.step(f"Measure and quantize the KV cache of {recipe.base}") as note:
        build_process.run([*argv, "--threads", str(threads)], f"build {recipe.name}", note)
        partial.rename(folder)
    return candidate


def _warn_of_memory(needed_bytes: int, progress: Progress) -> None:
    """Say it beforehand: when memory runs out, the kernel kills the builder without a word."""
    available = psutil.virtual_memory().available
    if needed_bytes > available:
        progress.say(
            f"The builder takes about {readable(needed_bytes)} of memory, and "
            f"{readable(available)} are available: it may be killed. A bigger machine can build "
            "the model, and its folder can be copied here."
        )


def _prove(
    request: BuildRequest,
    candidates: Sequence[Candidate],
    work: Path,
    weights: Path | None,
    progress: Progress,
) -> tuple[list[Proven], list[Refusal]]:
    inspected = [inspect(candidate, progress) for candidate in candidates]
    check_same_model(inspected)
    proven, refused = prove_all(inspected, work, request.threads, progress, weights)
    if not proven:
        reasons = "; ".join(refusal.reason for refusal in refused)
        raise BuildError(f"nothing to publish: {reasons}", code="variant_refused")
    return proven, refused


@contextlib.contextmanager
def _work_folder(work: Path, key: str) -> Iterator[None]:
    """Hold the work folder alone; throw away what was begun from another source.

    Raises:
        BuildError: Another build of this model runs.
        CatalogError: The folder can't be made.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = (work / "lock").open("w")
    except OSError as error:
        raise CatalogError(f"{work} can't be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BuildError(
                f"another build works in {work}", hint="Wait for it, or stop it first."
            ) from error
        marker = work / "source"
        if not marker.is_file() or marker.read_text(encoding="utf-8") != key:
            for entry in work.iterdir():
                if entry.name != "lock":
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            marker.write_text(key, encoding="utf-8")
        yield


def _build_variant(
    recipe: VariantRecipe, weights: Path, work: Path, python: Path, progress: Progress
) -> Candidate:
    folder = work / f"{recipe.name}.built"
    options = {"precision": recipe.precision, **recipe.options}
    candidate = Candidate(recipe.name, folder, recipe.name, options, origin=weights)
    if folder.is_dir():
        progress.say(f"{recipe.name} was built before.")
        return candidate
    partial = work / f"{recipe.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    argv = [str(python), "-m", BUILDER, "-i", str(weights), "-o", str(partial)]
    argv += ["-p", recipe.precision, "-e", "cpu", "-c", str(work / "builder-cache")]
    if recipe.options:
        argv += ["--extra_options", *(f"{key}={value}" for key, value in recipe.options.items())]
    with progress.step(f"Build {recipe.name}") as note:
        build_process.run(argv, f"build {recipe.name}", note, cwd=work, environ=OFFLINE)
        if not (partial / "genai_config.json").is_file():
            raise BuildError(f"the builder said that {recipe.name} is done, and made no folder")
        partial.rename(folder)
    return candidate
