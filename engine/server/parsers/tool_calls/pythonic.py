"""Calls as Llama 3.2, Llama 4 and others write them: a Python list of calls, `[f(a=1), g()]`.

Only an answer that begins with such a list holds calls; what follows it is content.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from engine.server.parsers.tool_calls.base import (
    NotACallError,
    ParameterSchemas,
    ToolCall,
    ToolParser,
)
from engine.server.parsers.tool_calls.marked import Block, MarkedToolParser
from engine.server.parsers.tool_calls.python_values import parse_expression, python_value

_START, _END = "<|python_start|>", "<|python_end|>"
_LEAD = re.compile(rf"\s*(?:{re.escape(_START)}\s*)?")
_HEAD = re.compile(r"\[\s*(?:[A-Za-z_][\w.]*\s*(\(.?)?)?", re.DOTALL)
_BETWEEN = re.compile(r"[^\"'()\[\]{}\\]*")
_IN_STRING = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


class PythonExtent:
    """Finds the end of a bracketed Python expression in a text that grows; looks at no character
    twice. NotACallError for brackets that do not fit.
    """

    def __init__(self, start: int) -> None:
        self.position = start
        self.end: int | None = None
        self._open: list[str] = []
        self._quote = ""

    def scan(self, text: str) -> int | None:
        """One past its last bracket; None while it goes on."""
        while self.end is None:
            pattern = _IN_STRING[self._quote] if self._quote else _BETWEEN
            passed = pattern.match(text, self.position)
            assert passed is not None, "the patterns match nothing at all"
            self.position = passed.end()
            # A backslash is looked at together with what it escapes.
            if text[self.position : self.position + 2] in ("", "\\"):
                return None
            self._pass(text[self.position])
            if not self._open:
                self.end = self.position
        return self.end

    def _pass(self, char: str) -> None:
        self.position += 2 if char == "\\" else 1
        if self._quote:
            self._quote = "" if char == self._quote else self._quote
        elif char in _IN_STRING:
            self._quote = char
        elif char in _CLOSERS:
            self._open.append(_CLOSERS[char])
        elif not self._open or char != self._open.pop():
            raise NotACallError


class PythonicToolParser(ToolParser):
    """The list goes out when it is complete and each of its entries is a call with literals."""

    NEEDS_SPECIAL_TOKENS = True

    def __init__(self, schemas: ParameterSchemas | None = None) -> None:
        super().__init__(schemas)
        self._is_text = False
        self._extent: PythonExtent | None = None
        self._start = 0

    def _step(self, *, is_last: bool) -> bool:
        if self.num_calls:
            return self._pass_rest(is_last=is_last)
        if self._is_text:
            self._add_content(self._held)
            self._held = ""
            return False
        try:
            end = self._find_end()
            calls = None if end is None else _calls_of(self._held[self._start : end])
        except (NotACallError, ValueError):
            self._is_text = True
            return True
        if calls is None:
            self._is_text = is_last
            return is_last
        for call in calls:
            self._add_call(call)
        self._held = self._held[end:]
        return True

    def _find_end(self) -> int | None:
        if self._extent is None:
            lead = _LEAD.match(self._held)
            assert lead is not None, "the pattern matches nothing at all"
            rest = self._held[lead.end() :]
            if _START.startswith(rest):
                return None
            head = _HEAD.match(rest)
            if head is None or (head.end() < len(rest) and not head[1]):
                raise NotACallError
            if not head[1]:
                return None
            self._start = lead.end()
            self._extent = PythonExtent(self._start)
        return self._extent.scan(self._held)

    def _pass_rest(self, *, is_last: bool) -> bool:
        """What follows the list, without the token that ends it."""
        rest = self._held.lstrip()
        if not self._is_text and not is_last and _END.startswith(rest):
            return False
        if not self._is_text and rest.startswith(_END):
            self._held = rest[len(_END) :]
        self._is_text = True
        self._add_content(self._held)
        self._held = ""
        return False


class Lfm2ToolParser(MarkedToolParser):
    """LFM2: such a list between marks, among other text."""

    OPENINGS = ("<|tool_call_start|>",)
    _CLOSING = "<|tool_call_end|>"

    def _forget(self) -> None:
        super()._forget()
        self._start = 0
        self._extent: PythonExtent | None = None

    def _read(self, *, is_last: bool) -> Block | None:
        if self._extent is None:
            inner = self._held[self._mark_end() :].lstrip()
            if not inner:
                return None
            self._start = len(self._held) - len(inner)
            if not inner.startswith("["):
                raise NotACallError
            self._extent = PythonExtent(self._start)
        list_end = self._extent.scan(self._held)
        if list_end is None:
            return None
        end = self._end_behind(list_end, self._CLOSING, is_last=is_last)
        if end is None:
            return None
        try:
            return Block(_calls_of(self._held[self._start : list_end]), end)
        except ValueError:
            raise NotACallError from None


def _calls_of(text: str) -> list[ToolCall]:
    """The calls of a list; ValueError where something else is in it."""
    tree = parse_expression(text)
    if not isinstance(tree, ast.List) or not tree.elts:
        raise ValueError("no list of calls")
    return [_call_of(node) for node in tree.elts]


def _call_of(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    values: dict[str, Any] = {}
    for word in node.keywords:
        if word.arg is None:
            raise ValueError("an argument without a name")
        values[word.arg] = python_value(word.value)
    return ToolCall.of_values(ast.unparse(node.func), values)
