"""Answers that must have a form: JSON, JSON of a schema, calls of tools.

A matcher follows the answer token by token and says which tokens may come next; all others lose
their logits before one is drawn. Its state follows from the tokens alone, so a stream that goes on
from another worker is held to its form there as it was here.

The library is imported, and the tokens are laid out for it, when the first such answer is asked
for: 25 MB and a tenth of a second (SmolLM2's 49,152 tokens) that a worker without any never spends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

from trimtab.domain.tools import SHAPES, ToolFormat
from trimtab.errors import EngineError
from trimtab.worker.guide_grammar import GuideError, answer_schema, arguments_schema, grammar
from trimtab.worker.sampling import Logits
from trimtab.worker.vocabulary import Vocabulary
from trimtab.workers.protocol import Guide

if TYPE_CHECKING:
    import llguidance

_KEPT: Final = 8  # compiled grammars, since the same few are asked for again and again
_CANT: Final = "this schema can't be enforced: "
_MAX_STATES: Final = 20_000  # of the lexer, 1 to 2 kB each
_MAX_SYMBOLS: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Engine:
    """The library with this vocabulary's tokens."""

    library: ModuleType
    tokenizer: llguidance.LLTokenizer
    limits: llguidance.LLParserLimits

    def matcher(self, written: str) -> llguidance.LLMatcher:
        """Of a grammar; it may be in error from the beginning."""
        matcher: llguidance.LLMatcher = self.library.LLMatcher(
            self.tokenizer, written, log_level=0, limits=self.limits
        )
        return matcher


class CostlyFormError(EngineError):
    """A form has become too costly to follow."""

    code = "schema_too_costly"


class Guides:
    """Makes what holds answers to their forms.

    Args:
        vocabulary: Bytes of each token.
        size: Number of token ids that the graph knows.
        eos: Token ids that end an answer.
    """

    def __init__(self, vocabulary: Vocabulary, size: int, eos: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._size = size
        self._eos = sorted(token for token in eos if token < size)
        self._engine: _Engine | None = None
        self._kept: OrderedDict[Guide, llguidance.LLMatcher] = OrderedDict()

    def prepare(self) -> None:
        """Get ready now, so that a stream that crosses over doesn't wait for it."""
        try:
            self._ready()
        except EngineError:
            pass  # the stream will be told

    def check(self, guide: Guide) -> None:
        """See that a form can be enforced.

        Raises:
            GuideError: It can't, and why.
            EngineError: Nothing of the kind can be done in this worker.
        """
        self._matcher(guide)

    def follow(self, guide: Guide) -> GuidedAnswer:
        """What holds one answer to a form, from its first token on.

        Raises:
            GuideError: The form can't be enforced.
            EngineError: Nothing of the kind can be done in this worker.
        """
        return GuidedAnswer(self._matcher(guide).deep_copy(), self._size)

    def shown(self, guide: Guide) -> frozenset[int]:
        """Special tokens that mark calls: text for whoever reads the answer."""
        return frozenset(self._special(guide).values())

    def _matcher(self, guide: Guide) -> llguidance.LLMatcher:
        """At its beginning; to be copied."""
        kept = self._kept.pop(guide, None) or self._compile(guide)
        self._kept[guide] = kept
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return kept

    def _compile(self, guide: Guide) -> llguidance.LLMatcher:
        text = grammar(guide, self._special(guide))
        engine = self._ready()
        matcher = engine.matcher(engine.library.LLMatcher.grammar_from_lark(text))
        if matcher.is_error():
            raise self._explained(engine, guide, matcher.get_error())
        return matcher

    def _explained(self, engine: _Engine, guide: Guide, reason: str) -> GuideError:
        """Which of its schemas is at fault: each is tried alone."""
        parts = [(guide.field, answer_schema(guide))] if guide.schema else []
        parts += [(tool.field, arguments_schema(tool)) for tool in guide.tools]
        for field, schema in parts:
            alone = engine.matcher(engine.library.LLMatcher.grammar_from_json_schema(schema))
            if alone.is_error():
                return GuideError(_CANT + _in_a_line(alone.get_error()), field)
        return GuideError(_CANT + _in_a_line(reason), parts[0][0])

    def _ready(self) -> _Engine:
        if self._engine is None:
            self._engine = self._start()
        return self._engine

    def _start(self) -> _Engine:
        try:
            import llguidance
        except ImportError as error:
            raise EngineError(
                "answers can't be held to a form here: the package llguidance is missing",
                code="schema_unsupported",
            ) from error
        tokens = llguidance.TokenizerWrapper(_Tokens(self._vocabulary, self._size, self._eos))
        return _Engine(
            llguidance,
            llguidance.LLTokenizer(tokens, eos_token=self._eos or None, slices=[]),
            llguidance.LLParserLimits(
                max_lexer_states=_MAX_STATES,
                max_grammar_size=_MAX_SYMBOLS,
                precompute_large_lexemes=False,
                verbose_errors=False,
            ),
        )

    def _special(self, guide: Guide) -> dict[str, int]:
        """Markers of the guide's tool format that are special tokens here."""
        if not guide.tools:
            return {}
        markers = SHAPES[ToolFormat(guide.tool_format)].markers
        found = ((marker, self._vocabulary.special_id(marker)) for marker in markers)
        return {marker: token for marker, token in found if token is not None}


class GuidedAnswer:
    """Holds one answer to its form.

    Args:
        matcher: Of the form, at its beginning.
        size: Number of token ids that the graph knows.
    """

    def __init__(self, matcher: llguidance.LLMatcher, size: int) -> None:
        self._matcher = matcher
        self._size = size
        self._bits = np.zeros((size + 31) // 32, np.uint32)
        self._ahead: llguidance.LLMatcher | None = None

    @property
    def complete(self) -> bool:
        """True if nothing can follow but the end."""
        return self._now.is_stopped()

    @property
    def _now(self) -> llguidance.LLMatcher:
        """Behind the tokens that have come, or that were foreseen after them."""
        return self._matcher if self._ahead is None else self._ahead

    def mask(self, logits: Logits) -> None:
        """Take away, in place, the logits of tokens that can't come next.

        Raises:
            CostlyFormError: The form has become too costly to follow.
        """
        bits = self._bits
        self._now.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._check()
        allowed = np.unpackbits(bits.view(np.uint8), count=self._size, bitorder="little")
        logits[allowed == 0] = -np.inf

    def accept(self, token: int) -> None:
        """Take note of a token of the answer.

        Raises:
            CostlyFormError: It can't stand there; never one that was drawn from masked logits.
        """
        self.forget_foreseen()
        self._matcher.consume_token(token)
        self._check()

    def likely(self, tokens: Sequence[int]) -> list[int]:
        """As many of some drafted tokens as the form allows."""
        self.forget_foreseen()
        return list(tokens[: self._matcher.validate_tokens(list(tokens))])

    def foresee(self, token: int) -> None:
        """Go on as if this token had come, until `forget_foreseen`.

        That is done with a copy: a matcher that was led too far has no way back from its error.

        Raises:
            CostlyFormError: The form becomes too costly to follow there.
        """
        if self._ahead is None:
            self._ahead = self._matcher.deep_copy()
        if not self._ahead.is_stopped():
            self._ahead.consume_token(token)
            self._check()

    def forget_foreseen(self) -> None:
        """Go back to the tokens that have come."""
        self._ahead = None

    def _check(self) -> None:
        if self._now.is_error():
            raise CostlyFormError(
                f"the answer can't be held to its form: {_in_a_line(self._now.get_error())}"
            )


class _Tokens:
    """A vocabulary as llguidance asks for it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, size: int, eos: Sequence[int]) -> None:
        self.eos_token_id = eos[0] if eos else 0
        self.tokens = [vocabulary.raw_bytes(token) for token in range(size)]
        self.special_token_ids = sorted(token for token in vocabulary.special if token < size)

    def __call__(self, text: bytes) -> list[int]:
        """Tokenizing is only needed to force tokens, which we leave to the model."""
        return []


def _in_a_line(text: str) -> str:
    return " ".join(text.removesuffix("<non-verbose/>").split())[:300]
