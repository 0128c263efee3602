"""What happened to a log as a whole on its way here, and can only be told from many of its lines.

Undoes it: a prefix of an unknown kind on every line, HTML entities and hard spaces of a web page,
lines cut at the width of a terminal. A log that met none of it passes through untouched.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Iterator

from logparse.wraps import joined, wrap_width

_LOOKED_AT = 400  # lines
_FEWEST = 3
_LONGEST_PREFIX = 120
_LEVELS = r"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)"
_MONTHS = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_COLOUR = r"(?:\x1b|\^\[|\u241b)?\[[0-9;]{1,20}m"
# Where a server's own line begins.
_HEADER = re.compile(
    rf"(?:{_COLOUR})*(?:\([\w .=-]{{1,60}} pid=\d"
    rf"|{_LEVELS}(?:{_COLOUR})* (?:{_COLOUR})*\d\d-\d\d \d\d:"
    rf"|{_LEVELS}: {{5}}|\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?: TP\d+)?\] \S"
    r"|\d{1,4}\.\d\d\.\d{3}\.\d{3} [IWED] |\b(?:llama_\w+|ggml_\w+|load_tensors|print_info): )"
)
_ENTITY = re.compile(r"&(?:#39|#x27|quot|lt|gt);")
_VARYING = re.compile(rf"\d+|\b{_LEVELS}\b|\b{_MONTHS}\b|\s+")


def restored_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines as the server wrote them; of a joined line, `wraps.WRAP` marks the cuts."""
    rest = iter(lines)
    head = list(itertools.islice(rest, _LOOKED_AT))
    everything: Iterator[str] = itertools.chain(head, rest)
    if _is_from_a_page(head):
        head = [_unescaped(line) for line in head]
        everything = (_unescaped(line) for line in everything)
    prefix = common_prefix(head)
    if prefix is not None:
        head = [_without(prefix, line) for line in head]
        everything = (_without(prefix, line) for line in everything)
    width = wrap_width(head)
    return everything if width is None else joined(everything, width)


def _is_from_a_page(lines: list[str]) -> bool:
    num_marked = sum("\xa0" in line or _ENTITY.search(line) is not None for line in lines)
    return num_marked >= _FEWEST


def _unescaped(line: str) -> str:
    import html  # its table of entities is large, and most logs have none

    return html.unescape(line).replace("\xa0", " ") if "&" in line else line.replace("\xa0", " ")


def common_prefix(lines: list[str]) -> re.Pattern[str] | None:
    """The shape of what stands before the header on nearly every line; None when nothing does."""
    found: collections.Counter[str] = collections.Counter()
    num_headers = 0
    for line in lines:
        header = _HEADER.search(line, 0, 4 * _LONGEST_PREFIX)
        if header is not None:
            num_headers += 1
            # What is inside of a JSON object is left to those who read JSON.
            before = line[: header.start()].partition('{"')[0]
            if before and len(before) <= _LONGEST_PREFIX:
                found[_shape(before)] += 1
    shape, count = found.most_common(1)[0] if found else ("", 0)
    if count < _FEWEST or 5 * count < 4 * num_headers:
        return None
    pattern = re.compile(shape)
    texts = [line for line in lines if line.strip()]
    num_with = sum(pattern.match(line) is not None for line in texts)
    return pattern if 10 * num_with >= 9 * len(texts) else None


def _shape(prefix: str) -> str:
    """A pattern for prefixes that differ in their numbers; the space at its end may be lost."""
    bare = prefix.rstrip()
    if not bare:
        return re.escape(prefix)
    parts, at = [], 0
    for match in _VARYING.finditer(bare):
        parts.append(re.escape(bare[at : match.start()]))
        parts.append(_varying(match[0]))
        at = match.end()
    shape = "".join((*parts, re.escape(bare[at:])))
    end = prefix[len(bare) :]
    return rf"{shape}(?:{re.escape(end)}|\s*$)" if end else shape


def _varying(text: str) -> str:
    if text.isdigit():
        return r"\d+"
    if text.isspace():
        return r"\s+"
    return _MONTHS if text in _MONTHS else _LEVELS


def _without(prefix: re.Pattern[str], line: str) -> str:
    match = prefix.match(line)
    return line[match.end() :] if match is not None else line
