"""The manifest: what is written is read back, and every error says where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.catalog.manifest import MAX_BYTES, Manifest, dump, parse, read
from trimtab.errors import CatalogError

TINY = Path(__file__).parent.parent / "tiny"


@pytest.fixture(scope="module")
def text() -> str:
    return (TINY / "model.yaml").read_text(encoding="utf-8")


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), start=1) if part in line)


def test_what_is_written_is_read_back_equal() -> None:
    manifest = read(TINY)

    again = parse(dump(manifest), "again")

    assert again == manifest
    assert isinstance(again, Manifest)


@pytest.mark.parametrize(
    ("before", "after", "field", "problem"),
    [
        ("layers: 2", "layers: two", "kv.layers", "Expected `int`"),
        ("layers: 2", "layers: 0", "kv.layers", ">= 1"),
        ("quality: 0.76571", "quality: 1.2", "variants[2].quality", "<= 1"),
        ("quality: 0.76571", "quality: .nan", "variants[2].quality", "> 0.0"),
        ("perplexity: 1.952", "perplexity: .inf", "variants[2].perplexity", "<= 1"),
        ("quality: 0.76571", "qualty: 0.7", "variants[2]", "qualty"),
        ("id: tiny", "id: ../tiny", "id", "Expected `str` matching regex"),
        ("- name: int4", "- name: int8", "variants[2].name", "int8 is there twice"),
        ("  folder: int4", "  folder: ../int4", "variants[2].folder", "out of the folder"),
        ("    model.onnx:", "    ../model.onnx:", "variants[0].folder", "out of the folder"),
        ("kv_bytes_per_token: 512", "kv_bytes_per_token: 500", "kv_bytes_per_token", "gives 512"),
        ("kv_dtype: float32", "kv_dtype: float31", "variants[0].kv_dtype", "Invalid enum value"),
        ("version: 1", "version: 2", "version", "reads version 1, the file has 2"),
    ],
)
def test_an_error_names_file_line_and_field(
    text: str, before: str, after: str, field: str, problem: str
) -> None:
    wrong = text.replace(before, after, 1)

    with pytest.raises(CatalogError) as caught:
        parse(wrong, "some/model.yaml")

    assert caught.value.message.startswith("some/model.yaml:")
    assert field in caught.value.message
    assert problem in caught.value.message
    assert caught.value.hint


def test_the_line_is_the_line_of_the_field(text: str) -> None:
    wrong = text.replace("perplexity: 1.952", "perplexity: -1")

    with pytest.raises(CatalogError) as caught:
        parse(wrong, "m.yaml")

    assert caught.value.message.startswith(f"m.yaml:{line_of(wrong, 'perplexity: -1')}: ")


def test_a_missing_field_is_named_at_its_parent(text: str) -> None:
    wrong = text.replace("  head_size: 16\n", "")

    with pytest.raises(CatalogError, match=r"m\.yaml:\d+: kv: .*head_size"):
        parse(wrong, "m.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a manifest is a mapping"),
        ("- a\n- b\n", "a manifest is a mapping"),
        ("version: 1\n\tid: x\n", "m.yaml:2"),
        ("version: 1\nversion: 1\n", "m.yaml:2"),
        ("a: &a [*a]\n", "reads version 1"),
        ("{" * 5000, "more than 1000 brackets"),
        ("[" * 300, "m.yaml"),
    ],
)
def test_what_isnt_a_manifest_is_refused_in_one_sentence(text: str, expected: str) -> None:
    with pytest.raises(CatalogError) as caught:
        parse(text, "m.yaml")

    assert expected in caught.value.message


def test_a_file_that_cant_be_a_manifest_isnt_read(tmp_path: Path) -> None:
    huge, binary, missing = tmp_path / "huge", tmp_path / "binary", tmp_path / "missing"
    for folder in (huge, binary, missing):
        folder.mkdir()
    (huge / "model.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    (binary / "model.yaml").write_bytes(b"id: \xff\xfe")

    problems = []
    for folder in (huge, binary, missing):
        with pytest.raises(CatalogError) as caught:
            read(folder)
        problems.append(caught.value.message)

    assert "larger than" in problems[0]
    assert "not UTF-8 at byte 4" in problems[1]
    assert "has no model.yaml" in problems[2]
