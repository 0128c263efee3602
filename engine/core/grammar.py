"""StructuredOutputsParams to llguidance's grammar text, and what is wrong with one.

llguidance is imported on first use: most servers never see a structured request.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from engine.sampling_params import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": r"\x20?|\n[\x20\t]{0,32}"}
"""One space, or a line break with an indent: small models fill their answer with blanks otherwise.

A schema's own `x-guidance` goes before.
"""


_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def grammar_of(spec: StructuredOutputsParams) -> str:
    """The grammar as llguidance takes it; ValueError when the text cannot be one."""
    from llguidance import LLMatcher, grammar_from

    if spec.json is not None:
        return LLMatcher.grammar_from_json_schema(spec.json, _JSON_OPTIONS)
    if spec.json_object:
        return LLMatcher.grammar_from_json_schema('{"type":"object"}', _JSON_OPTIONS)
    if spec.regex is not None:
        return LLMatcher.grammar_from_regex(spec.regex)
    if spec.choice is not None:
        return grammar_from("choice", json.dumps(spec.choice))
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


def grammar_error(spec: StructuredOutputsParams) -> str | None:
    """What makes the grammar unusable, in llguidance's words; None for a good one."""
    from llguidance import LLMatcher

    try:
        is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar_of(spec))
    except ValueError as error:
        return str(error)
    return messages[0].strip() if is_error else None
