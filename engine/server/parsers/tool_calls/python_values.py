"""Python expressions as models write them: what is a value that JSON has, too."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

_WORDS = {
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
    "null": None, "None": None, "none": None, "NULL": None,
}  # fmt: skip


def parse_python(text: str) -> Any:
    """The value of a literal; ValueError for anything else, and for what JSON cannot say."""
    return python_value(parse_expression(text))


def parse_expression(text: str) -> ast.expr:
    """The tree of an expression; ValueError where it is none. Nothing of it is run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that a model got wrong
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"no Python expression: {error}") from error


def python_value(node: ast.expr) -> Any:
    """What a literal's tree stands for, as JSON knows it: a tuple is a list."""
    try:
        value = _value(node)
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"nothing that JSON can say: {error}") from error
    return value


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(part) for part in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [_value(key) for key in node.keys if key is not None]
        return {
            key if isinstance(key, str) else json.dumps(key): _value(value)
            for key, value in zip(keys, node.values, strict=True)
        }
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _value(node.operand)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    raise ValueError("no literal")
