"""Where a build gets its model from: a package, a GGUF, or a Hugging Face folder.

Each becomes a Hugging Face folder, which is what the engine's builder reads. What can't be built
is refused before anything is downloaded or converted.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.catalog import build_env, build_process, gguf
from trimtab.catalog.disk import folder_bytes
from trimtab.catalog.fingerprint import file_sha256
from trimtab.catalog.progress import Progress
from trimtab.catalog.proof import WEIGHTS_TOKENS, evaluation_text
from trimtab.catalog.recipes import (
    ARCHITECTURES,
    BROKEN_ARCHITECTURES,
    GGUF_ARCHITECTURES,
    WheelRecipe,
)
from trimtab.errors import BuildError

CONVERT: Final = Path(__file__).parent / "scripts" / "convert_gguf.py"
LOGITS: Final = Path(__file__).parent / "scripts" / "weights_logits.py"
BUILDER_PEAK: Final = 4
"""The builder's peak memory over the weights in fp32: measured between 3 and 5."""
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True, slots=True)
class Source:
    """A model to build from.

    Attributes:
        key: Changes when the source changes; work that was begun for another key is thrown away.
        description: For the manifest.
        needs_bytes: Disk that a build of all variants takes at its peak.
        memory_bytes: Memory that the builder takes at its peak, about.
        name: What the model is called, if nobody says otherwise.
        recipe: The package, if it comes from one.
        path: The GGUF or the folder, otherwise.
    """

    key: str
    description: dict[str, str]
    needs_bytes: int
    memory_bytes: int
    name: str
    recipe: WheelRecipe | None = None
    path: Path | None = None


def from_recipe(recipe: WheelRecipe) -> Source:
    """A model that comes out of a Python package."""
    description = {
        "kind": "package",
        "package": recipe.package,
        "version": recipe.version,
        "file": recipe.gguf,
        "sha256": recipe.wheel_sha256,
        "licence": recipe.licence,
    }
    return Source(
        f"{recipe.package} {recipe.version}",
        description,
        recipe.needs_bytes,
        recipe.memory_bytes,
        recipe.display_name,
        recipe=recipe,
    )


def from_path(path: Path) -> Source:
    """A Hugging Face folder or a GGUF on disk, checked up front.

    Raises:
        BuildError: It is neither, or of an architecture that can't be built right.
    """
    path = path.absolute()
    if path.is_dir():
        check_config(path)
        size = folder_bytes(path)
        kind = "hugging-face"
        needs, memory = 4 * size, 2 * size * BUILDER_PEAK
    elif path.is_file():
        _check_gguf(path)
        size = path.stat().st_size
        kind = "gguf"
        needs, memory = 24 * size, 6 * size * BUILDER_PEAK
    else:
        raise BuildError(f"{path}: no such file or folder")
    name = path.name if kind == "hugging-face" else path.stem
    key = f"{path} {size} {path.stat().st_mtime_ns}"
    return Source(key, {"kind": kind, "path": str(path)}, needs, memory, name, path=path)


def check_config(folder: Path) -> None:
    """Refuse a Hugging Face folder that the builder can't turn into a right graph.

    Raises:
        BuildError: With the reason.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        architecture = str(config["architectures"][0])
    except FileNotFoundError as error:
        raise BuildError(
            f"{folder} has no config.json: it isn't a Hugging Face folder",
            hint="A folder that already has genai_config.json is taken in by `models add`.",
        ) from error
    except json.JSONDecodeError as error:
        raise BuildError(f"{path}:{error.lineno}:{error.colno}: {error.msg}") from error
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise BuildError(f"{path}: architectures: missing or not a list of names") from error
    _check_architecture(architecture, path)
    _check_window(config, path)


def _check_architecture(architecture: str, path: Path) -> None:
    if architecture in BROKEN_ARCHITECTURES:
        reason = BROKEN_ARCHITECTURES[architecture]
        raise BuildError(f"{path}: {architecture} can't be built: {reason}")
    if architecture not in ARCHITECTURES:
        raise BuildError(
            f"{path}: architectures: {architecture} isn't one that can be built",
            hint=f"These can: {', '.join(ARCHITECTURES)}.",
        )


def _check_window(config: dict[str, Any], path: Path) -> None:
    """A sliding window shorter than the context would be left out of mistral's and phi3's graph."""
    window, context = config.get("sliding_window"), config.get("max_position_embeddings")
    kind = config.get("model_type")
    if kind not in ("mistral", "phi3") or not isinstance(window, int):
        return
    if isinstance(context, int) and window < context:
        raise BuildError(
            f"{path}: sliding_window: {window} is shorter than the context of {context}, and the "
            f"builder leaves it out of the graph of {kind}: the model would go wrong past it",
            hint=f"Build a copy of the folder with max_position_embeddings set to {window}.",
        )


def _check_gguf(path: Path) -> None:
    architecture = str(gguf.read_header(path).values.get("general.architecture", ""))
    if architecture not in GGUF_ARCHITECTURES:
        raise BuildError(
            f"{path}: general.architecture: {architecture or 'missing'}: can't be built",
            hint=f"These can: {', '.join(GGUF_ARCHITECTURES)}.",
        )


def hugging_face_folder(source: Source, work: Path, python: Path, progress: Progress) -> Path:
    """The folder for the builder: made in the work folder unless it is there from before.

    Args:
        source: What to build.
        work: The build's own folder.
        python: The build environment's interpreter.
        progress: Told of each step.

    Raises:
        BuildError: A download or conversion fails, or the result can't be built.
    """
    if source.path is not None and source.path.is_dir():
        return source.path
    folder = work / "hf"
    if folder.is_dir():
        progress.say("The weights were converted before.")
    else:
        file = source.path or _from_wheel(source.recipe, work, python, progress)
        with progress.step(f"Convert {file.name}") as note:
            _convert(file, folder, python, note)
    check_config(folder)
    return folder


def weights_logits(weights: Path, work: Path, python: Path, progress: Progress) -> Path:
    """What the weights say of the beginning of the evaluation text, as Hugging Face runs them.

    Args:
        weights: A Hugging Face folder.
        work: The build's own folder.
        python: The build environment's interpreter.
        progress: Told of it.

    Returns:
        The file that `scripts/weights_logits.py` writes; one that is there from before is kept.

    Raises:
        BuildError: They can't be run.
    """
    path = work / "weights-logits.npz"
    if not path.is_file():
        argv = [str(python), str(LOGITS), str(weights), str(evaluation_text())]
        with progress.step("Run the weights themselves, to hold the graphs against") as note:
            argv += [str(WEIGHTS_TOKENS), str(path)]
            build_process.run(argv, "run the weights", note, environ=OFFLINE)
    return path


def _convert(file: Path, folder: Path, python: Path, note: Callable[[str], None]) -> None:
    partial = folder.with_name("hf.partial")
    argv = [str(python), str(CONVERT), str(file), str(partial)]
    build_process.run(argv, f"convert {file.name}", note, environ=OFFLINE)
    partial.rename(folder)


def _from_wheel(recipe: WheelRecipe | None, work: Path, python: Path, progress: Progress) -> Path:
    """The GGUF out of the package, with both kept for a next time."""
    assert recipe is not None
    gguf_file = work / Path(recipe.gguf).name
    if gguf_file.is_file():
        return gguf_file
    with progress.step(f"Download {recipe.package} {recipe.version}") as note:
        wheels = work / "wheel"
        build_env.download(python, f"{recipe.package}=={recipe.version}", wheels, note)
        wheel = next(iter(sorted(wheels.glob("*.whl"))), None)
        if wheel is None:
            raise BuildError(f"pip downloaded no wheel of {recipe.package} {recipe.version}")
        found = file_sha256(wheel)
        if found != recipe.wheel_sha256:
            wheel.unlink()
            raise BuildError(
                f"{wheel.name} has SHA-256 {found}, and {recipe.wheel_sha256} was expected",
                hint="It was changed on its way, or by its makers. It has been deleted.",
            )
    with progress.step(f"Unpack {gguf_file.name}"):
        _unpack(wheel, recipe.gguf, gguf_file)
    wheel.unlink()
    return gguf_file


def _unpack(wheel: Path, member: str, target: Path) -> None:
    partial = target.with_suffix(".partial")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
            with partial.open("wb") as out:
                while block := packed.read(1 << 20):
                    out.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise BuildError(f"{wheel.name}: {member} can't be unpacked: {error}") from error
    except OSError as error:
        raise BuildError(f"{target} can't be written: {error.strerror}") from error
    partial.rename(target)
