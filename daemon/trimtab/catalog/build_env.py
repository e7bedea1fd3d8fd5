"""The environment that builds variants: torch and transformers, apart from what runs them.

It is made once, under the cache folder, and made again when its requirements change.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
from collections.abc import Callable
from importlib import metadata, resources
from pathlib import Path
from typing import Final

from trimtab.catalog import build_process
from trimtab.catalog.progress import Progress
from trimtab.errors import BuildError

TORCH: Final = "2.13.0"
REQUIREMENTS: Final = "build-requirements.txt"
COMPLETE: Final = "complete"
_PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--no-input")


def requirements() -> list[str]:
    """What the environment holds besides torch; the engine in the version that runs here."""
    path = Path(str(resources.files("trimtab.catalog") / "data" / REQUIREMENTS))
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pinned = [line for line in lines if line and not line.startswith("#")]
    engines = ("onnxruntime-genai", "onnxruntime", "onnx", "numpy")
    return pinned + [f"{name}=={metadata.version(name)}" for name in engines]


def environment_python(cache: Path) -> Path:
    """The interpreter of the build environment, there or not."""
    return cache / "build-env" / "bin" / "python"


def ensure(cache: Path, progress: Progress) -> Path:
    """Make the environment unless it is there and whole.

    Returns:
        Its interpreter.

    Raises:
        BuildError: It can't be made.
    """
    folder = cache / "build-env"
    python = environment_python(cache)
    key = environment_key()
    marker = folder / COMPLETE
    if marker.is_file() and marker.read_text(encoding="utf-8") == key and python.exists():
        return python
    progress.say(f"Preparing the build environment in {folder} (once; about 1.3 GB).")
    with progress.step("Make the environment"):
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BuildError(f"{folder.parent} can't be used: {error.strerror}") from error
        _make_venv(folder)
    _install_torch(python, progress)
    with progress.step("Install transformers and the builder") as note:
        _pip(python, ["install", *requirements()], "install the build requirements", note)
    marker.write_text(key, encoding="utf-8")
    return python


def download(python: Path, requirement: str, folder: Path, note: Callable[[str], None]) -> None:
    """Fetch one package's file with pip, without what it depends on."""
    arguments = ["download", "--no-deps", "--dest", str(folder), requirement]
    _pip(python, arguments, f"download {requirement}", note)


def environment_key() -> str:
    """Changes when the environment must be made again."""
    parts = [platform.python_version(), TORCH, *requirements()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _make_venv(folder: Path) -> None:
    try:
        argv = [sys.executable, "-m", "venv", str(folder)]
        build_process.run(argv, "make a virtual environment", lambda _: None)
    except BuildError as error:
        hint = "On Debian: `apt-get install python3-venv`, then try again."
        raise BuildError(error.message, hint=f"{error.hint}\n  {hint}".strip()) from error


def _install_torch(python: Path, progress: Progress) -> None:
    """Install the CPU build if pip can see one, else the general one, saying what is coming."""
    with progress.step(f"Install torch {TORCH} (CPU build)") as note:
        if _cpu_torch(python, note):
            return
    size = "about 200 MB"
    if platform.machine() == "x86_64":
        size = "several GB, since on this kind of machine it comes with CUDA's libraries"
    progress.say(
        f"pip sees no CPU build of torch {TORCH}; the general build is downloaded now: {size}. "
        "To spare it, stop with Ctrl-C, and name a folder or index that has the CPU build in "
        "PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL."
    )
    with progress.step(f"Install torch {TORCH} (general build)") as note:
        _pip(python, ["install", f"torch=={TORCH}"], "install torch", note)


def _cpu_torch(python: Path, note: Callable[[str], None]) -> bool:
    try:
        _pip(python, ["install", f"torch=={TORCH}+cpu"], "install torch's CPU build", note)
    except BuildError as error:
        if "No matching distribution" not in error.hint:
            raise
        return False
    return True


def _pip(python: Path, arguments: list[str], what: str, note: Callable[[str], None]) -> None:
    build_process.run([str(python), *_PIP, *arguments, "--progress-bar=off"], what, note)
