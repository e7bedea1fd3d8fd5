import time
from pathlib import Path

import pytest
from policy_files import DESIGN_EXAMPLE, load_text

from trimtab.policy.document import plain
from trimtab.policy.read import MAX_BYTES, read_document
from trimtab.policy.scalars import core_value


def _messages(raw: bytes) -> str:
    return "\n".join(problem.text() for problem in read_document(raw, "f.yaml")[1])


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "22:30", "0b1", "1_000", "2024-01-01"])
def test_what_older_yaml_takes_for_something_else_is_text(word: str) -> None:
    assert core_value(word) == word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-7", -7),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        (".inf", float("inf")),
    ],
)
def test_the_core_types_are_those_of_yaml_1_2(text: str, value: object) -> None:
    assert core_value(text) == value
    assert type(core_value(text)) is type(value)


def test_a_quoted_number_is_text() -> None:
    document, _ = read_document(b"a: '12'\nb: \"true\"\nc: |\n  12\n", "f")

    assert document is not None
    assert plain(document) == {"a": "12", "b": "true", "c": "12\n"}


@pytest.mark.parametrize(
    ("raw", "place", "part"),
    [
        (b"", "f.yaml:", "empty"),
        (b"   \n# nothing\n", "f.yaml", "empty"),
        (b"a:\n\tb: 1", "f.yaml:2:1", "tab"),
        (b"\xff\xfea\x00", "f.yaml:", "UTF-16"),
        (b"a: b\nc: \xe9", "f.yaml:2:4", "UTF-8"),
        (b"a: \x00", "f.yaml:1:4", "U+0000"),
        (b"- a\n", "f.yaml:1:1", "a list"),
        (b"hello", "f.yaml:1:1", "a single value"),
        (b"a: 1\n---\nb: 2", "f.yaml:2:1", "second document"),
        (b"a: !!python/object:os.system x", "f.yaml:1:4", "tags"),
        (b"a: *x", "f.yaml:1:4", "no anchor"),
        (b"a: &x [*x]", "f.yaml:1:8", "no anchor"),
        (b"a: &x {b: 1}\nc:\n  <<: *x", "f.yaml:3:3", "merge keys"),
        (b"a: %5", "f.yaml:1:4", "25%"),
        (b"a: b: c", "f.yaml:1:5", "no field can begin"),
        (b"a: [1, 2", "f.yaml:", "not YAML"),
        (b"? [a]\n: b", "f.yaml:1:3", "must be a word"),
        (b"[" * 100_000, "f.yaml:1:25", "nested deeper"),
        (b"a: " + b"{b: " * 40, "f.yaml:1", "nested deeper"),
    ],
)
def test_bad_text_is_refused_with_its_place(raw: bytes, place: str, part: str) -> None:
    messages = _messages(raw)

    assert place in messages
    assert part in messages


def test_every_repeated_field_is_reported() -> None:
    messages = _messages(b"a: 1\na: 2\nb: {c: 1, c: 2}\n").splitlines()

    assert messages[0].startswith(
        "f.yaml:2:1: error: 'a' is here a second time; it stands in line 1"
    )
    assert messages[1].startswith("f.yaml:3:11:")


def test_aliases_work_and_a_bomb_of_them_does_not() -> None:
    document, problems = read_document(b"a: &x [1, 2]\nb: *x\n", "f")
    bomb = b"a: &a [1,1,1,1,1,1,1,1,1,1]\n" + b"".join(
        b"%c: &%c [%s]\n" % (97 + i, 97 + i, b",".join([b"*%c" % (96 + i)] * 10))
        for i in range(1, 10)
    )

    assert document is not None
    assert plain(document) == {"a": [1, 2], "b": [1, 2]}
    assert not problems
    assert "aliases" in _messages(bomb)


def test_a_file_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    result = load_text(b"# " + b"x" * MAX_BYTES, tmp_path)

    assert result.policy is None
    assert "larger than 256 KiB, so it wasn't read" in result.problems[0].message


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    text = DESIGN_EXAMPLE.replace("\n", "\r\n")

    result = load_text(b"\xef\xbb\xbf" + text.encode(), tmp_path, name="voice-assistant")

    assert result.problems == ()


@pytest.mark.parametrize(
    "raw",
    [
        b"a: 1\n" * 50_000,
        b"k%d: [" * 40_000,
        b"? " * 100_000,
        b"&a " * 80_000,
        b"'" * 200_000,
        b"a: |\n" + b" x\n" * 80_000,
        b"- " * 100_000,
        b"%" * 200_000,
        b'a: "' + b"\\n" * 100_000,
    ],
    ids=["fields", "flow", "keys", "anchors", "quotes", "block", "dashes", "directives", "escapes"],
)
def test_no_text_takes_long(raw: bytes) -> None:
    began = time.process_time()
    read_document(raw, "f")

    assert time.process_time() - began < 5
