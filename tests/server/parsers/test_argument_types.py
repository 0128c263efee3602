"""Bare text as the types of a function's parameters."""

from __future__ import annotations

from typing import Any

import pytest

from engine.server.parsers.tool_calls.argument_types import typed_value
from engine.server.parsers.tool_calls.python_values import parse_python


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("5", {"type": "string"}, "5"),
        ("null", {"type": "string"}, "null"),
        ("5", {"type": "integer"}, 5),
        ("five", {"type": "integer"}, "five"),
        ("2.5", {"type": "number"}, 2.5),
        ("2", {"type": "number"}, 2),
        ("true", {"type": "boolean"}, True),
        ("True", {"type": "boolean"}, True),
        ("None", {"type": ["integer", "null"]}, None),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("5", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "5"),
        ("5", {"type": ["string", "integer"]}, 5),
        ('"a"', {"type": ["string", "integer"]}, '"a"'),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("{'a': (1, None)}", {"type": "object"}, {"a": [1, None]}),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ("3", {"enum": [1, 2, 3]}, 3),
        ("b", {"enum": ["a", "b"]}, "b"),
        ('{"a": 1}', {"$ref": "#/$defs/A"}, {"a": 1}),
        ("red", {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]}, "red"),
        ("NaN", {"type": "number"}, "NaN"),
        ("1e999", {"type": "number"}, "1e999"),
        ("f()", {"type": "object"}, "f()"),
        (" x ", {"type": "string"}, " x "),
        ("5", {"type": "int"}, 5),
    ],
)
def test_a_value_is_what_its_schema_allows(
    text: str, schema: dict[str, Any], expected: object
) -> None:
    found = typed_value(text, schema, is_text_unless_told=True)
    assert (found, type(found)) == (expected, type(expected))


def test_without_a_schema_it_is_text_or_whatever_it_is() -> None:
    assert typed_value("[1]", None, is_text_unless_told=True) == "[1]"
    assert typed_value("[1]", None, is_text_unless_told=False) == [1]
    assert typed_value("Paris", {}, is_text_unless_told=False) == "Paris"


@pytest.mark.parametrize(
    "text", ["f(1)", "a", "{1: }", "b'x'", "{1, 2}", "1e999", "(" * 500, "x\0"]
)
def test_what_is_no_literal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no |nothing"):
        parse_python(text)


def test_a_literal_as_json_knows_it() -> None:
    assert parse_python("{'a': (1, -2.5, true, None), 3: '\\d'}") == {
        "a": [1, -2.5, True, None],
        "3": "\\d",
    }
