"""StructuredOutputsParams to llguidance's grammar text, its limits, and a trial of one grammar.

llguidance is imported on first use: most servers never see a structured request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.model_config import ModelConfig
from engine.sampling_params import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_CHARS = 512 * 1024
"""Longest schema, regular expression, grammar or list of choices."""

_MAX_ROW_ITEMS = 500
_MAX_SCHEMA_ROW_ITEMS = 2000
"""Ways in which one text may go on. Ambiguous grammars reach them and then take their square in
time for every token; an object with many optional properties needs four for each.
"""

_MAX_LEXER_STATES = 50_000  # 1 to 2 kB each

_TRIAL_TOKENS = 12

_JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": r"\x20?|\n[\x20\t]{0,32}"}
"""One space, or a line break with an indent: small models fill their answer with blanks otherwise.

A schema's own `x-guidance` goes before.
"""

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_REGEX_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")


class GrammarModel(msgspec.Struct, array_like=True, frozen=True):
    """What a grammar's tokens depend on."""

    path: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    @classmethod
    def of(cls, model: ModelConfig) -> GrammarModel:
        """That of a served model."""
        return cls(model.path, model.vocab_size, tuple(model.eos_token_ids))


def load_tokenizer(model: GrammarModel) -> LLTokenizer:
    """llguidance's trie of the model's tokens."""
    from llguidance import LLTokenizer

    text = (Path(model.path) / "tokenizer.json").read_text(encoding="utf-8")
    eos = list(model.eos_token_ids) or None
    try:
        # The model may have logits for more ids than the tokenizer has tokens; they are forbidden.
        return LLTokenizer(text, n_vocab=model.vocab_size, eos_token=eos)
    except ValueError:  # the tokenizer has the larger vocabulary, or is none that llguidance reads
        return LLTokenizer(text, eos_token=eos)


def grammar_of(spec: StructuredOutputsParams) -> str:
    """The grammar as llguidance takes it; ValueError when the text cannot be one."""
    from llguidance import LLMatcher

    if spec.json is not None:
        return LLMatcher.grammar_from_json_schema(spec.json, _JSON_OPTIONS)
    if spec.json_object:
        return LLMatcher.grammar_from_json_schema('{"type":"object"}', _JSON_OPTIONS)
    if spec.regex is not None:
        return LLMatcher.grammar_from_regex(spec.regex)
    if spec.choice is not None:
        # One expression, which the lexer reads in one go: rules of their own are an item each.
        choices = (_REGEX_META.sub(r"\\\g<0>", choice) for choice in spec.choice)
        return LLMatcher.grammar_from_regex("|".join(choices))
    if spec.grammar is not None:
        return _free_grammar(spec.grammar)
    raise ValueError("no structure is asked for")


def _free_grammar(text: str) -> str:
    """A grammar in llguidance's JSON, in GBNF (`root ::= ...`) or else in Lark."""
    from llguidance import LLMatcher, grammar_from

    if text.lstrip().startswith("{"):
        return text
    if _GBNF_RULE.search(text):
        return grammar_from("gbnf", text)
    return LLMatcher.grammar_from_lark(text)


def compile_grammar(tokenizer: LLTokenizer, spec: StructuredOutputsParams) -> LLMatcher:
    """The matcher at the beginning of its text; ValueError says why there is none."""
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, grammar_of(spec), log_level=0, limits=_limits(spec))
    if matcher.is_error():
        raise ValueError(plain_reason(matcher.get_error()))
    return matcher


def _limits(spec: StructuredOutputsParams) -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=_MAX_ROW_ITEMS if spec.json is None else _MAX_SCHEMA_ROW_ITEMS,
        max_lexer_states=_MAX_LEXER_STATES,
        # Verbose errors would write the client's schema and text into the log.
        verbose_errors=False,
    )


def grammar_error(tokenizer: LLTokenizer, spec: StructuredOutputsParams) -> str | None:
    """What makes the grammar unusable; None for one whose first tokens could be generated.

    Some limits are met by the first tokens only, so a text is begun on trial.
    """
    try:
        return _trial(compile_grammar(tokenizer, spec), tokenizer.eos_tokens)
    except ValueError as error:
        return str(error)
    except BaseException as error:
        # Some wrong schemas make llguidance panic, and what pyo3 raises then is no `Exception`.
        return plain_reason(str(error))


def _trial(matcher: LLMatcher, eos_token_ids: Sequence[int]) -> str | None:
    ends = sum(1 << token_id for token_id in eos_token_ids)
    for number in range(_TRIAL_TOKENS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            return plain_reason(matcher.get_error())
        if matcher.is_stopped():
            return None if number else "no text can follow it"
        matcher.consume_token(_some_bit(mask & ~ends or mask, number))
        if matcher.is_error():
            return plain_reason(matcher.get_error())
    return None


def _some_bit(mask: int, number: int) -> int:
    """The lowest bit, or the highest in every second turn."""
    return (mask & -mask).bit_length() - 1 if number % 2 == 0 else mask.bit_length() - 1


def plain_reason(error: str) -> str:
    """llguidance's reason without traces of its own."""
    lines = [line.strip() for line in error.partition("<backtrace>")[0].split("\n")]
    text = "\n".join(line for line in lines if line and not line.startswith("<non-verbose/>"))
    if text.startswith("NoExtension"):
        return "no text can follow it"
    if "symbols.len() < u16::MAX" in text:
        return "it has more than 65,525 symbols; make it smaller"
    return text[:500] or "no text can follow it"
