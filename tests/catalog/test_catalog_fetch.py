"""`trimtab models fetch` against a hub on loopback, over real HTTP."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from hub import COMMIT, Hub, read_files, serve

from trimtab.catalog.fetch import fetch
from trimtab.catalog.load import load_catalog
from trimtab.errors import CatalogError

TINY = Path(__file__).parent.parent / "tiny"
REPOSITORY = "someone/Tiny-Model-onnx"
DATA = "int4/model.onnx.data"


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = read_files(TINY / "int8", "int8/") | read_files(TINY / "int4", "int4/")
    files["README.md"] = b"# A model\n"
    with serve(Hub(REPOSITORY, files)) as running:
        yield running


def test_a_repository_becomes_a_model_with_two_commands_worth_of_work(
    hub: Hub, tmp_path: Path, run_models: Callable[..., Any]
) -> None:
    out = tmp_path / "models"

    done = run_models("fetch", REPOSITORY, "--models", out, "--json", HF_ENDPOINT=hub.address)

    model = load_catalog([out]).model("tiny-model-onnx")
    assert done.code == 0
    assert [variant.name for variant in model.variants] == ["int8", "int4"]
    assert done.json["model"]["source"]["commit"] == COMMIT
    assert "README.md" not in [path for _, path, _ in hub.requests]
    assert [path.name for path in out.iterdir()] == ["tiny-model-onnx"]


def test_a_connection_that_breaks_is_taken_up_where_it_broke(
    hub: Hub, tmp_path: Path, progress: Any
) -> None:
    hub.files[DATA] = random.Random(7).randbytes(25 << 20)
    hub.cut_after[DATA] = 15 << 20

    fetch(REPOSITORY, "", ["int4/*"], tmp_path, progress, endpoint=hub.address)

    asked = [r for method, path, r in hub.requests if path == DATA and method == "GET"]
    assert asked == ["", f"bytes={10 << 20}-"]  # huggingface_hub writes 10 MiB at a time
    assert (tmp_path / DATA).read_bytes() == hub.files[DATA]


def test_the_next_run_goes_on_from_what_the_last_one_left(
    hub: Hub, tmp_path: Path, progress: Any
) -> None:
    partial = tmp_path / "int4/model.onnx.data.partial"
    partial.parent.mkdir()
    partial.write_bytes(hub.files[DATA][:50_000])
    shutil.copy(TINY / "int4/tokenizer.json", tmp_path / "int4")

    fetch(REPOSITORY, "", ["int4/*"], tmp_path, progress, endpoint=hub.address)

    asked = {path: r for method, path, r in hub.requests if method == "GET"}
    assert asked[DATA] == "bytes=50000-"
    assert "int4/tokenizer.json" not in asked
    assert (tmp_path / DATA).read_bytes() == hub.files[DATA]
    assert not partial.exists()


@pytest.mark.parametrize("path", [DATA, "int4/genai_config.json"])
def test_a_file_with_a_wrong_hash_is_thrown_away(
    hub: Hub, tmp_path: Path, progress: Any, path: str
) -> None:
    hub.corrupt.add(path)

    with pytest.raises(CatalogError) as caught:
        fetch(REPOSITORY, "", ["int4/*"], tmp_path, progress, endpoint=hub.address)

    assert caught.value.code == "checksum_mismatch"
    assert path in caught.value.message
    assert not (tmp_path / path).exists()
    assert not (tmp_path / f"{path}.partial").exists()


def test_too_small_a_disk_is_said_before_the_first_byte(
    hub: Hub, tmp_path: Path, progress: Any
) -> None:
    hub.sizes[DATA] = 10**17

    with pytest.raises(CatalogError) as caught:
        fetch(REPOSITORY, "", (), tmp_path / "s", progress, endpoint=hub.address)

    assert caught.value.code == "disk_full"
    assert "100000000 GB" in caught.value.message
    assert hub.requests == []
    assert not (tmp_path / "s").exists()


def test_only_variants_for_cpus_are_taken_where_the_repository_tells_them_apart(
    tmp_path: Path, progress: Any
) -> None:
    files = read_files(TINY / "int4", "cpu/int4/") | read_files(TINY / "int8", "cuda/int8/")
    with serve(Hub(REPOSITORY, files)) as hub:
        fetched = fetch(REPOSITORY, "", (), tmp_path, progress, endpoint=hub.address)

    assert fetched.folders == (tmp_path / "cpu/int4",)
    assert not (tmp_path / "cuda").exists()


def test_include_that_leaves_nothing_names_what_there_is(
    hub: Hub, tmp_path: Path, progress: Any
) -> None:
    with pytest.raises(CatalogError) as caught:
        fetch(REPOSITORY, "", ["int3/*"], tmp_path, progress, endpoint=hub.address)

    assert "--include int3/* leaves no variant" in caught.value.message
    assert "int4, int8" in caught.value.hint or "int8, int4" in caught.value.hint


def test_a_repository_without_variants_is_refused(tmp_path: Path, progress: Any) -> None:
    with serve(Hub(REPOSITORY, {"model.safetensors": b"x", "config.json": b"{}"})) as hub:
        with pytest.raises(CatalogError) as caught:
            fetch(REPOSITORY, "", (), tmp_path, progress, endpoint=hub.address)

    assert "has no genai_config.json" in caught.value.message
    assert "models build --from" in caught.value.hint


def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path, progress: Any) -> None:
    files = {"../evil/genai_config.json": b"{}"}
    with serve(Hub(REPOSITORY, files)) as hub:
        with pytest.raises(CatalogError, match="which leads elsewhere"):
            fetch(REPOSITORY, "", (), tmp_path / "s", progress, endpoint=hub.address)

    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("repository", "revision", "message"),
    [
        ("someone/else", "", "no model someone/else"),
        (REPOSITORY, "v9", "no revision v9"),
        ("a/b/c", "", "a/b/c"),
    ],
)
def test_what_the_hub_doesnt_have_is_said_in_one_sentence(
    hub: Hub, tmp_path: Path, progress: Any, repository: str, revision: str, message: str
) -> None:
    with pytest.raises(CatalogError) as caught:
        fetch(repository, revision, (), tmp_path, progress, endpoint=hub.address)

    assert message in caught.value.message


def test_a_hub_that_cant_be_reached_is_one_sentence_with_the_way_out(
    tmp_path: Path, run_models: Callable[..., Any]
) -> None:
    done = run_models("fetch", REPOSITORY, "--models", tmp_path, HF_ENDPOINT="http://127.0.0.1:9")

    assert done.code == 1
    assert "the hub can't be reached" in done.err
    assert "trimtab models add" in done.err
    assert "Traceback" not in done.err
