"""`trimtab models fetch`: ready-made variants from a model hub, checked and resumable.

huggingface_hub speaks the protocol. What it doesn't do is done here: the space is checked before
the first byte, a file that was cut off goes on from where it stopped, in this run or the next, and
each file's hash is compared with the hub's before it gets its name.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers, disable_progress_bars
from huggingface_hub.utils.logging import set_verbosity_error

from trimtab.catalog.disk import check_space, readable
from trimtab.catalog.graph import GENAI_CONFIG
from trimtab.catalog.progress import Progress
from trimtab.errors import CatalogError

BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository.

    Attributes:
        path: Below the repository's root.
        bytes: Its size.
        sha256: For large files; empty otherwise.
        git_sha1: Of small files: the hash that git gives the blob.
    """

    path: str
    bytes: int
    sha256: str
    git_sha1: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was fetched.

    Attributes:
        folders: The variants' folders.
        commit: The repository's commit.
    """

    folders: tuple[Path, ...]
    commit: str


def fetch(
    repository: str,
    revision: str,
    include: Sequence[str],
    staging: Path,
    progress: Progress,
    *,
    endpoint: str = "",
) -> Fetched:
    """Download variants into a staging folder, which the next run goes on from.

    Args:
        repository: `owner/name`.
        revision: Branch, tag or commit; empty for the main branch.
        include: Patterns of paths; none for every variant that is made for CPUs.
        staging: Where the files go.
        progress: Told of each file.
        endpoint: The hub's address; empty for HF_ENDPOINT, or the default of huggingface_hub.

    Raises:
        CatalogError: The hub says no, there is no variant, no space, or a hash is wrong.
    """
    disable_progress_bars()
    set_verbosity_error()
    endpoint = endpoint or os.environ.get("HF_ENDPOINT", "")
    commit, files = _list(repository, revision, endpoint)
    chosen = choose(files, include, repository)
    missing = [file for file in chosen if not _is_there(staging / file.path, file)]
    needed = sum(file.bytes - _partial_bytes(staging / file.path) for file in missing)
    total = readable(sum(file.bytes for file in chosen))
    progress.say(f"{repository} at {commit[:12]}: {len(chosen)} files, {total}.")
    check_space(staging, needed, f"Fetching {repository}")
    for file in missing:
        with progress.step(f"Fetch {file.path} ({readable(file.bytes)})") as note:
            url = hf_hub_url(repository, file.path, revision=commit, endpoint=endpoint or None)
            _download(url, file, staging / file.path, note)
    folders = {staging / _folder(file.path) for file in chosen if _is_config(file.path)}
    return Fetched(tuple(sorted(folders)), commit)


def choose(
    files: Sequence[RemoteFile], include: Sequence[str], repository: str
) -> list[RemoteFile]:
    """The files of the variants that are wanted.

    A variant is a folder with a genai_config.json. Without patterns these are the ones with `cpu`
    in their path, or all if none has.

    Raises:
        CatalogError: There is no variant, or none that the patterns name.
    """
    folders = [_folder(file.path) for file in files if _is_config(file.path)]
    if not folders:
        raise CatalogError(
            f"{repository} has no {GENAI_CONFIG}: it holds no variants for onnxruntime-genai",
            hint="Download it with another tool and build it: `trimtab models build --from DIR`.",
        )
    for_cpu = [folder for folder in folders if "cpu" in folder.lower()]
    wanted = folders if include else (for_cpu or folders)
    chosen = [file for file in files if _folder(file.path) in wanted]
    if include:
        chosen = [f for f in chosen if any(fnmatch.fnmatch(f.path, p) for p in include)]
    if not any(_is_config(file.path) for file in chosen):
        names = ", ".join(folder or "(the root)" for folder in folders)
        raise CatalogError(
            f"--include {' '.join(include)} leaves no variant of {repository}",
            hint=f"Its variants: {names}. For one of them: --include 'FOLDER/*'.",
        )
    return chosen


def _is_config(path: str) -> bool:
    return PurePosixPath(path).name == GENAI_CONFIG


def _folder(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent


def _list(repository: str, revision: str, endpoint: str) -> tuple[str, list[RemoteFile]]:
    """The commit and its files; a path that leads out of the folder is refused."""
    try:
        api = HfApi(endpoint=endpoint or None)
        info = api.model_info(repository, revision=revision or None, files_metadata=True)
    except GatedRepoError as error:
        raise CatalogError(
            f"{repository} is gated: its owners ask for an agreement",
            hint="Agree on its page, and set HF_TOKEN.",
        ) from error
    except RevisionNotFoundError as error:
        raise CatalogError(f"{repository} has no revision {revision}") from error
    except RepositoryNotFoundError as error:
        raise CatalogError(
            f"the hub has no model {repository}, or it is private",
            hint="Names are OWNER/NAME. For a private one set HF_TOKEN.",
        ) from error
    except HFValidationError as error:
        raise CatalogError(f"{repository}: {error}", hint="Names are OWNER/NAME.") from error
    except (HfHubHTTPError, OfflineModeIsEnabled, HTTPError, OSError) as error:
        raise _unreachable(error) from error
    files = [_remote(sibling) for sibling in info.siblings or ()]
    for file in files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts:
            raise CatalogError(f"{repository} has a file {file.path}, which leads elsewhere")
    return str(info.sha), files


def _remote(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    size = sibling.size if sibling.size is not None else (lfs.size if lfs else 0)
    sha256 = str(lfs.sha256) if lfs else ""
    return RemoteFile(sibling.rfilename, int(size), sha256, str(sibling.blob_id or ""))


def _unreachable(error: Exception) -> CatalogError:
    return CatalogError(
        f"the hub can't be reached: {error}",
        hint="Behind a mirror set HF_ENDPOINT. On a machine that has been there, copy the folder "
        "and use `trimtab models add DIR`.",
    )


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _partial_bytes(path: Path) -> int:
    try:
        return _partial(path).stat().st_size
    except OSError:
        return 0


def _is_there(path: Path, file: RemoteFile) -> bool:
    """Whether the file is whole; one that isn't is fetched again."""
    return path.is_file() and path.stat().st_size == file.bytes and _hash_is_right(path, file)


class _Counted:
    """A file that says how far it is; what else it can is the file's own."""

    def __init__(self, file: BinaryIO, total: int, note: Callable[[str], None]) -> None:
        self._file = file
        self._total = total
        self._note = note

    def write(self, data: bytes) -> int:
        written = self._file.write(data)
        self._note(f"{readable(self._file.tell())} of {readable(self._total)}")
        return written

    def seek(self, offset: int) -> int:
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()

    def truncate(self) -> int:
        return self._file.truncate()


def _download(url: str, file: RemoteFile, path: Path, note: Callable[[str], None]) -> None:
    """One file, from where it stopped; it gets its name when its hash is right."""
    partial = _partial(path)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if _partial_bytes(path) > file.bytes:
            partial.unlink()
        with partial.open("ab") as out:
            http_get(
                url,
                _Counted(out, file.bytes, note),
                resume_size=out.tell(),
                headers=headers,
                expected_size=file.bytes,
            )
    except (HfHubHTTPError, HTTPError) as error:
        raise _unreachable(error) from error
    except OSError as error:
        raise CatalogError(
            f"{file.path} wasn't fetched: {error}", hint="Run the same command again to go on."
        ) from error
    if not _hash_is_right(partial, file):
        partial.unlink()
        raise CatalogError(
            f"{file.path} isn't what the hub says it is: its hash differs",
            hint="It has been deleted. Run the same command again to fetch it anew.",
            code="checksum_mismatch",
        )
    partial.rename(path)


def _hash_is_right(path: Path, file: RemoteFile) -> bool:
    """Compare with the hub's hash; a file for which the hub has none is taken by its size."""
    if file.sha256:
        return _digest(path, hashlib.sha256()) == file.sha256
    if file.git_sha1:
        header = f"blob {path.stat().st_size}\0".encode()
        return _digest(path, hashlib.sha1(header, usedforsecurity=False)) == file.git_sha1
    return True


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return str(digest.hexdigest())
