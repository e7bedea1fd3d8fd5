"""Forms that answers are held to: every path through the masks ends in what was asked for."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from worker_peer import TINY

from trimtab.domain.tools import SHAPES, ToolFormat
from trimtab.errors import EngineError
from trimtab.worker.guide_grammar import GuideError
from trimtab.worker.guides import CostlyFormError, GuidedAnswer, Guides
from trimtab.worker.vocabulary import Vocabulary, parse_vocabulary
from trimtab.workers.protocol import Guide, Tool

EOS = 2
SIZE = 512
ORDER: Any = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["buy", 'a "quoted" one']},
        "pieces": {"type": "integer", "minimum": 1, "maximum": 40},
        "notes": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
        "day": {"type": "string", "format": "date"},
        "price": {"$ref": "#/$defs/price"},
    },
    "required": ["kind", "pieces", "notes", "day", "price"],
    "additionalProperties": False,
    "$defs": {"price": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0}]}},
}
BUY = Tool("buy", json.dumps(ORDER))
WAIT = Tool("wait", json.dumps({"type": "object", "additionalProperties": False}))


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    path = TINY / "fp32" / "tokenizer.json"
    return parse_vocabulary(path.read_bytes(), str(path))


@pytest.fixture(scope="module")
def guides(vocabulary: Vocabulary) -> Guides:
    return Guides(vocabulary, SIZE, frozenset({EOS}))


def vocabulary_of_bytes(*special: str) -> Vocabulary:
    """Token n is byte n; special ones from 256 on, the end of the answer last of them."""
    names = dict(enumerate([*special, "<|end|>"], 256))
    letters = ["\u2581" if n == 32 else f"<0x{n:02X}>" for n in range(256)]
    return Vocabulary(letters, byte_level=False, added=names, special=frozenset(names))


def walk(answer: GuidedAnswer, seed: int, *, most: int = 900) -> list[int]:
    """Draw among what is allowed, at random, until the form is complete or the answer ends."""
    random = np.random.default_rng(seed)
    tokens: list[int] = []
    while not answer.complete and len(tokens) < most:
        logits = random.normal(size=SIZE).astype(np.float32)
        answer.mask(logits)
        token = int(logits.argmax())
        assert np.isfinite(logits[token])
        answer.accept(token)
        tokens.append(token)
    return tokens


def text_of(vocabulary: Vocabulary, tokens: list[int]) -> str:
    return b"".join(vocabulary.text_bytes(token) for token in tokens).decode()


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_follows_its_schema(guides: Guides, vocabulary: Vocabulary, seed: int) -> None:
    answer = guides.follow(Guide(schema=json.dumps(ORDER)))
    found = json.loads(text_of(vocabulary, walk(answer, seed)))

    jsonschema.validate(found, ORDER)
    assert list(found) == list(ORDER["properties"])


TEXTS = st.sampled_from(["a", "b // c", "# x", 'é"q\\', "\n", "{", "%json", "<|im_end|>", "日本"])
LEAVES = st.one_of(
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 12)),
    st.builds(lambda n: {"type": "integer", "minimum": n, "maximum": n + 50}, st.integers(-60, 60)),
    st.builds(lambda values: {"enum": values}, st.lists(TEXTS | st.none(), min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, TEXTS | st.booleans() | st.integers(-9, 9)),
    st.just({"type": ["null", "boolean"]}),
    st.just({"type": "string", "pattern": "^[a-c]{1,4}-\\d$"}),
    st.just({"type": "string", "format": "date"}),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
        st.dictionaries(TEXTS, inner, max_size=3).map(
            lambda properties: {
                "type": "object",
                "properties": properties,
                "required": list(properties)[:2],
                "additionalProperties": False,
            }
        ),
    ),
    max_leaves=6,
)


@given(schema=SCHEMAS, seed=st.integers(0, 99))
def test_whatever_the_schema_says_holds(
    guides: Guides, vocabulary: Vocabulary, schema: Any, seed: int
) -> None:
    answer = guides.follow(Guide(schema=json.dumps(schema)))
    tokens = walk(answer, seed, most=3000)
    assume(answer.complete or EOS in tokens)

    jsonschema.validate(json.loads(text_of(vocabulary, tokens)), schema)


@pytest.mark.parametrize("tool_format", ToolFormat)
@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_must_be_made_follows_the_tools_schema(
    guides: Guides, vocabulary: Vocabulary, tool_format: ToolFormat, seed: int
) -> None:
    guide = Guide(tools=(BUY,), tool_format=tool_format, calls_least=1)
    text = text_of(vocabulary, walk(guides.follow(guide), seed))
    shape = SHAPES[tool_format]
    begin, end = shape.first + shape.head("buy"), shape.tail + shape.last

    assert text.startswith(begin)
    assert text.endswith(end)
    jsonschema.validate(json.loads(text[len(begin) : len(text) - len(end)]), ORDER)


@pytest.mark.parametrize("tool_format", ToolFormat)
def test_text_is_free_until_a_call_begins_and_calls_follow_their_tools(
    tool_format: ToolFormat,
) -> None:
    markers = SHAPES[tool_format].markers
    vocabulary = vocabulary_of_bytes(*markers)
    end = 256 + len(markers)
    guides = Guides(vocabulary, end + 1, frozenset({end}))
    guide = Guide(tools=(BUY, WAIT), tool_format=tool_format, calls_most=4)
    shape = SHAPES[tool_format]
    call = shape.first + shape.head("wait") + "{}" + shape.tail + shape.last
    wrong = shape.first + shape.head("sell")

    assert allowed(guides, guide, "Let me see: 1 < 2.\n", markers)
    assert allowed(guides, guide, call, markers)
    assert not allowed(guides, guide, wrong, markers)
    assert allowed(guides, guide, "So.\n" + call, markers) or not shape.trigger


def allowed(guides: Guides, guide: Guide, text: str, markers: tuple[str, ...]) -> bool:
    """Whether an answer may be this text; each byte a token, and each marker."""
    answer = guides.follow(guide)
    while text:
        marker = next((one for one in markers if text.startswith(one)), None)
        token = 256 + markers.index(marker) if marker else text.encode()[0]
        try:
            answer.accept(token)
        except EngineError:
            return False
        text = text.removeprefix(marker) if marker else text[1:]
    return True


def test_markers_that_are_special_tokens_are_shown() -> None:
    guides = Guides(vocabulary_of_bytes("[TOOL_CALLS]"), 258, frozenset({257}))
    with_tools = Guide(tools=(WAIT,), tool_format=ToolFormat.MISTRAL)

    assert guides.shown(with_tools) == {256}
    assert guides.shown(Guide(schema="{}")) == frozenset()


def test_an_answer_that_is_json_and_calls_go_together_where_they_can_be_told_apart(
    guides: Guides,
) -> None:
    schema = '{"type":"object"}'
    guides.check(Guide(schema=schema, tools=(WAIT,), tool_format=ToolFormat.HERMES))
    tagged = Guides(vocabulary_of_bytes("<|python_tag|>"), 258, frozenset({257}))
    llama = Guide(schema=schema, tools=(WAIT,), tool_format=ToolFormat.LLAMA)
    tagged.check(llama)

    with pytest.raises(GuideError, match="told from an answer") as caught:
        guides.check(llama)
    assert caught.value.field == "response_format"


def test_the_end_is_allowed_when_the_form_is_whole_and_only_then(guides: Guides) -> None:
    answer = guides.follow(Guide(tools=(WAIT,), tool_format=ToolFormat.HERMES, calls_least=1))
    at_the_beginning = np.zeros(SIZE, np.float32)
    answer.mask(at_the_beginning)
    free = guides.follow(Guide(tools=(WAIT,), tool_format=ToolFormat.HERMES))
    in_text = np.zeros(SIZE, np.float32)
    free.mask(in_text)

    assert not np.isfinite(at_the_beginning[EOS])
    assert np.isfinite(in_text[EOS])


def test_what_was_only_foreseen_leaves_no_trace(guides: Guides, vocabulary: Vocabulary) -> None:
    guide = Guide(schema=json.dumps(ORDER))
    plain = guides.follow(guide)
    tokens = walk(plain, 5)
    drafted = guides.follow(guide)
    for at, token in enumerate(tokens):
        for ahead in tokens[at : at + 4]:
            drafted.mask(np.zeros(SIZE, np.float32))
            drafted.foresee(ahead)
        if drafted.complete:
            drafted.mask(np.zeros(SIZE, np.float32))
            drafted.foresee(EOS)  # what a draft does that looks beyond the end
        drafted.accept(token)

    assert drafted.complete
    assert text_of(vocabulary, tokens).endswith("}")


def test_what_cant_be_foreseen_leaves_the_form_whole(guides: Guides) -> None:
    answer, whole = (guides.follow(Guide(schema=json.dumps(ORDER))) for _ in range(2))
    after, expected = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    with pytest.raises(CostlyFormError):
        answer.foresee(EOS)
    answer.forget_foreseen()
    answer.mask(after)
    whole.mask(expected)

    assert (after == expected).all()


def test_drafts_are_cut_where_the_form_forbids_them(guides: Guides, vocabulary: Vocabulary) -> None:
    answer = guides.follow(Guide(schema=json.dumps(ORDER)))
    tokens = walk(guides.follow(Guide(schema=json.dumps(ORDER))), 5)

    assert answer.likely([*tokens[:3], EOS, *tokens[3:5]]) == tokens[:3]
    assert answer.likely([EOS]) == []


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "strin"}, "strin"),
        ({"$ref": "https://example.org/schema.json"}, "example.org"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
    ],
)
def test_a_schema_that_cant_be_enforced_is_refused_with_its_field(
    guides: Guides, schema: Any, why: str
) -> None:
    wanted = Guide(schema=json.dumps(schema), field="response_format.json_schema.schema")
    strict = Tool("f", json.dumps(schema), strict=True, field="tools[1].function.parameters")
    with pytest.raises(GuideError, match=why) as answers:
        guides.check(wanted)
    with pytest.raises(GuideError, match=why) as tools:
        guides.check(Guide(tools=(WAIT, strict), tool_format=ToolFormat.HERMES))

    assert answers.value.field == "response_format.json_schema.schema"
    assert tools.value.field == "tools[1].function.parameters"
    assert "\n" not in answers.value.message


def test_what_cant_be_enforced_of_a_tool_that_isnt_strict_is_left_out(guides: Guides) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}

    guides.check(Guide(tools=(Tool("f", json.dumps(schema)),), tool_format=ToolFormat.HERMES))
