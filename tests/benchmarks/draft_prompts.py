"""Prompts of four kinds, made of the repository's pages and of Python's own modules and manual.

One checkout with one Python gives the same ones in every run. No text is used twice, so that no
answer is the draft of another one.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import TypeVar

from tests.places import PAGES, ROOT

_T = TypeVar("_T")
_FUNCTION_LINES = range(8, 22)
_PARAGRAPH_CHARS = range(240, 700)
_LEAST_WORD = 7  # letters of one that a question can be about
_EDITS = (
    "Rename `{name}` to `new_{name}` and write the whole function again:\n\n```python\n{text}\n```",
    "Write this function again with a comment above its first line:\n\n```python\n{text}\n```",
)
_CORRECTION = "Correct the spelling mistakes in this text and write the whole text again:\n\n{text}"
_RETRIEVALS = (
    'Context:\n{text}\n\nWhat does the context say about "{word}"? Answer with quotations from it.',
    'Passage:\n{text}\n\nQuote the sentences that mention "{word}", then explain them.',
)
_CODE = "Write the Python function `{name}`, with tests. What it does: {text}"
_PROSE = "Tell somebody who has never heard of it, in prose and without lists, about this: {text}"


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    purpose: str  # the first sentence of its docstring
    text: str


def prompts(count: int) -> dict[str, list[str]]:
    """`count` user messages of each kind, those first whose answers copy most."""
    functions = list(_functions())
    short = [one for one in functions if len(one.text.splitlines()) in _FUNCTION_LINES]
    edited, written = short[::2], short[1::2]
    manual = _paragraphs(topics.values())
    pages = _paragraphs((ROOT / page).read_text() for page in PAGES)
    return {
        "edits": _spread(list(_edits(edited)), -(-count // 2))
        + _spread(list(_corrections(manual[::2])), count // 2),
        "retrieval": _spread(list(_retrievals(manual[1::2])), count),
        "code": [_CODE.format(name=one.name, text=one.purpose) for one in _spread(written, count)],
        "prose": [_PROSE.format(text=_first_sentence(text)) for text in _spread(pages, count)],
    }


def _spread(items: Sequence[_T], count: int) -> list[_T]:
    """`count` of them, from everywhere."""
    assert len(items) >= count, f"{len(items)} prompts are there, and {count} are wanted"
    return [items[number * len(items) // count] for number in range(count)]


def _functions() -> Iterator[_Function]:
    """Those of Python's modules that say what they do; each name once."""
    seen = set()
    for path in sorted(Path(ast.__file__).parent.glob("[a-z]*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if not isinstance(node, ast.FunctionDef) or node.name in seen:
                continue
            doc = ast.get_docstring(node)
            if doc and not node.name.startswith("_"):
                seen.add(node.name)
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                yield _Function(node.name, _first_sentence(doc), text)


def _paragraphs(texts: Iterable[str]) -> list[str]:
    """Those of running text, of a length that fits into a question; each once."""
    pieces = (piece.strip() for text in texts for piece in re.split(r"\n\s*\n", text))
    fitting = (one for one in pieces if one[:1].isalpha() and len(one) in _PARAGRAPH_CHARS)
    return list(dict.fromkeys(fitting))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:])\s", text.strip(), maxsplit=1)[0].replace("\n", " ")


def _edits(functions: Sequence[_Function]) -> Iterator[str]:
    for form, one in zip(itertools.cycle(_EDITS), functions, strict=False):
        yield form.format(name=one.name, text=one.text)


def _corrections(texts: Sequence[str]) -> Iterator[str]:
    """With two letters of each fifth longer word swapped."""
    for text in texts:
        words = re.split(r"(\s+)", text)
        for place in range(0, len(words), 10):
            word = words[place]
            if len(word) > 3:
                words[place] = word[0] + word[2] + word[1] + word[3:]
        yield _CORRECTION.format(text="".join(words))


def _retrievals(texts: Sequence[str]) -> Iterator[str]:
    """About the first long word of each text's second half."""
    for form, text in zip(itertools.cycle(_RETRIEVALS), texts, strict=False):
        words = re.findall(rf"[a-z]{{{_LEAST_WORD},}}", text[len(text) // 2 :])
        if words:
            yield form.format(text=text, word=words[0])
