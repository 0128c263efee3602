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
_STAMPED = re.compile(
    rf"(?:\([\w .=-]{{1,60}} pid=\d{{1,9}}\) )?{_LEVELS} \d\d-\d\d \d\d:\d\d:\d\d "
)
_LONGEST_RUN = 20_000
_CLOCKED = re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})? ")
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
    if any(map(_is_run_together, head)):
        head = [_apart(line) for line in head]
        everything = (_apart(line) for line in everything)
    prefix = common_prefix(head) or _clock_prefix(head)
    if prefix is not None:
        head = [_without(prefix, line) for line in head]
        everything = (_without(prefix, line) for line in everything)
    width = wrap_width(head)
    return everything if width is None else joined(everything, width)


def _is_run_together(line: str) -> bool:
    """Whether newlines were lost in copying, and many lines became one."""
    num_levels = line.count("INFO ") + line.count("ERROR ") + line.count("WARNING ")
    return num_levels >= _FEWEST and len(_STAMPED.findall(line, 0, _LONGEST_RUN)) >= _FEWEST


def _apart(line: str) -> str:
    """What was one line again in pieces that all have its number, as bars that overwrite."""
    return _STAMPED.sub(r"\r\g<0>", line).lstrip("\r") if _is_run_together(line) else line


def _is_from_a_page(lines: list[str]) -> bool:
    num_marked = sum("\xa0" in line or _ENTITY.search(line) is not None for line in lines)
    return num_marked >= _FEWEST


def _unescaped(line: str) -> str:
    import html  # its table of entities is large, and most logs have none

    return html.unescape(line).replace("\xa0", " ") if "&" in line else line.replace("\xa0", " ")


def common_prefix(lines: list[str]) -> re.Pattern[str] | None:
    """The shape of what stands before the header on nearly every line; None when nothing does."""
    found: collections.Counter[str] = collections.Counter()
    headers = [(line, header) for line in lines if (header := _header(line)) is not None]
    if any(header.start() and line.startswith("[20") for line, header in headers):
        # The time is not SGLang's; lines that show nothing else tell nothing of the prefix.
        headers = [pair for pair in headers if pair[1].start() or not pair[0].startswith("[20")]
    for line, header in headers:
        # What is inside of a JSON object is left to those who read JSON.
        before = line[: header.start()].partition('{"')[0]
        if before and len(before) <= _LONGEST_PREFIX:
            found[_shape(before)] += 1
    shape, count = found.most_common(1)[0] if found else ("", 0)
    if count < _FEWEST or 5 * count < 4 * len(headers):
        return None
    pattern = re.compile(shape)
    texts = [line for line in lines if line.strip()]
    num_with = sum(pattern.match(line) is not None for line in texts)
    return pattern if 10 * num_with >= 9 * len(texts) else None


def _clock_prefix(lines: list[str]) -> re.Pattern[str] | None:
    """A date and a time on nearly every line, also on those of a traceback."""
    texts = [line for line in lines if line.strip()]
    num_with = sum(_CLOCKED.match(line) is not None for line in texts)
    return _CLOCKED if num_with >= _FEWEST and 10 * num_with >= 9 * len(texts) else None


def _header(line: str) -> re.Match[str] | None:
    """Where the server's own line begins; a time in brackets may be another program's."""
    header = _HEADER.search(line, 0, 4 * _LONGEST_PREFIX)
    if header is not None and header[0].startswith("[20"):
        behind = _HEADER.search(line, header.end() - 1, 4 * _LONGEST_PREFIX)
        if behind is not None and behind.start() > header.end() - 1:
            return behind
    return header


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
