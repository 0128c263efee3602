"""Logs whose lines are values of another format: JSON, CSV, logfmt, quoted strings, documents.

Which field holds the server's line is learnt from the lines: the one in which a server's own words
are found. Every physical line stays one; a value of several lines becomes pieces with its number.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Callable, Iterator

from logparse.reading.line import TRACEBACK
from logparse.reading.prefixes import count_beginnings, shows_beginning
from logparse.reading.wrappers import MESSAGE_KEYS, json_message

Reader = Callable[[str], str]
_FEWEST = 2
_LONGEST_JSON = 1 << 20
_MAX_DEPTH = 4
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "e": "\x1b"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_BYTE_ESCAPES = re.compile(r"(?:\\x[0-9a-fA-F]{2})+")
_QUOTED = re.compile(r"\s*(b?)(['\"])(.*)\2,?\s*", re.DOTALL)
# A value, or a key with its value, alone on a line of a document.
_MEMBER = re.compile(r'\s*(?:"([\w@. -]{1,60})"\s*:\s*)?"((?:[^"\\]|\\.)*)"\s*,?\s*')
_OPENING = re.compile(r'\s*(?:"[\w@. -]{1,60}"\s*:\s*)?[\[{]\s*')
_CLOSING = re.compile(r"\s*[\]}]{1,4},?\s*")
_LOGFMT = re.compile(r"(?:^|\s)([\w.@-]{1,40})=(\"(?:[^\"\\]|\\.)*\"|\S*)")
_LOGFMT_START = re.compile(r"\w[\w.@-]{0,40}=\S")
_CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^",]*))(?:,|$)')
_TIME_CELL = re.compile(
    r"\d{10,19}|\d{4}-\d\d-\d\d[T ][\d:.]{5,18}\S{0,6}|\d{4}/\d\d/\d\d [\d:.]{8,15}"
)
_FRACTION = re.compile(r"\d{1,6}\D")
_MAX_CELLS = 40


def envelope_of(lines: list[str]) -> Reader | None:
    """What takes the server's line out of each of these; None when they are no such format."""
    texts = [line.rstrip("\r\n") for line in lines if line.strip()]
    if not texts:
        return None
    for kind in (_document, _json_lines, _members, _csv, _logfmt, _quoted):
        reader = kind(texts)
        if reader is not None:
            return reader
    return None


def _pieces(value: str) -> str:
    """A value of several lines as pieces that have one number."""
    return value.rstrip("\r\n").replace("\r\n", "\r").replace("\n", "\r")


def _share(texts: list[str], is_one: Callable[[str], object]) -> float:
    return sum(bool(is_one(text)) for text in texts) / len(texts)


# -- JSON ----------------------------------------------------------------------


def _parsed(text: str) -> object:
    """The object or array that a line is; None if it is none. Ruby writes `=>` for a colon."""
    text = text.strip().rstrip(",")
    if not text.startswith(("{", "[{", "[")) or len(text) > _LONGEST_JSON:
        return None
    if text.startswith('{"') and text.endswith("}]"):
        text = text[:-1]
    if '"=>' in text[:80]:
        text = re.sub(r'(^|[{,]\s?)("[\w@. -]{1,60}")=>', r"\1\2:", text)
    if not text.endswith(("}", "]")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The texts in it, each with its keys; all members of an array have the same."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict) and len(path) < _MAX_DEPTH:
        for key, member in value.items():
            yield from _leaves(member, (*path, str(key)))
    elif isinstance(value, list) and len(path) < _MAX_DEPTH:
        if value and all(isinstance(one, int) and 0 <= one < 256 for one in value):
            yield path, bytes(value).decode("utf-8", "replace")
            return
        for member in value:
            yield from _leaves(member, (*path, "[]"))


def _best_path(documents: list[object]) -> tuple[str, ...] | None:
    """Where the server's lines are: by its own words, by the usual names, by the most text."""
    found: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
    for document in documents:
        for path, text in _leaves(document):
            found[path].append(text)
    if not found:
        return None

    def rank(path: tuple[str, ...]) -> tuple[int, bool, int, int]:
        names = [key for key in path if key != "[]"]
        is_usual = bool(names) and names[-1] in MESSAGE_KEYS
        texts = found[path]
        return count_beginnings(texts), is_usual, len(set(texts)), sum(map(len, texts))

    best = max(found, key=rank)
    num_beginnings, is_usual, num_distinct, _ = rank(best)
    return best if num_beginnings or is_usual or num_distinct >= _FEWEST else None


def _json_lines(texts: list[str]) -> Reader | None:
    """One object on each line."""
    if _share(texts, lambda text: text.lstrip()[:1] == "{" and '"' in text) < 0.8:
        return None
    documents = [one for text in texts if isinstance(one := _parsed(text), dict)]
    if 5 * len(documents) < 4 * len(texts):
        return None
    path = _best_path(list(documents))
    if path is None:
        return None

    def read(line: str) -> str:
        document = _parsed(line)
        leaves = list(_leaves(document))
        values = [text for found, text in leaves if found == path]
        # Some keep the traceback of a message in a field of its own.
        values += [text for found, text in leaves if found != path and TRACEBACK in text]
        if values:
            return _pieces("\n".join(value.rstrip("\r\n") for value in values))
        message = json_message(line)
        return line if message is None else _pieces(message)

    return read


def _document(texts: list[str]) -> Reader | None:
    """The whole log in one line."""
    if len(texts) > 2 or not (document := _parsed(texts[0])):
        return None
    path = _best_path([document])
    if path is None or sum(found == path for found, _ in _leaves(document)) < _FEWEST:
        return None
    chosen = path

    def read(line: str) -> str:
        values = (text for found, text in _leaves(_parsed(line)) if found == chosen)
        return _pieces("\n".join(value.rstrip("\r\n") for value in values))

    return read


def _members(texts: list[str]) -> Reader | None:
    """A document that is printed over many lines: a notebook, an export of events."""
    if not _OPENING.fullmatch(texts[0]):
        return None
    if _share(texts, lambda text: text.lstrip()[:1] in '"{}[]') < 0.8:
        return None
    found: dict[str | None, list[str]] = collections.defaultdict(list)
    for text in texts:
        if (match := _MEMBER.fullmatch(text)) is not None:
            found[match[1]].append(_unescaped(match[2]))
    key = max(found, key=lambda key: (count_beginnings(found[key]), len(found[key])), default=None)
    if key not in found or not count_beginnings(found[key]):
        return None

    def read(line: str) -> str:
        match = _MEMBER.fullmatch(line.rstrip("\r\n"))
        if match is not None:
            return _pieces(_unescaped(match[2])) if match[1] == key else ""
        is_frame = _OPENING.fullmatch(line) or _CLOSING.fullmatch(line) or line.lstrip()[:1] == '"'
        return "" if is_frame else line

    return read


# -- CSV, logfmt, quotes ---------------------------------------------------------


def _cells(text: str) -> list[str] | None:
    """The cells of a row, None if it is no row of one line."""
    cells: list[str] = []
    at = 0
    while at <= len(text) and len(cells) < _MAX_CELLS:
        match = _CELL.match(text, at)
        if match is None:
            return None
        quoted, bare = match.groups()
        cells.append(bare if quoted is None else quoted.replace('""', '"'))
        if match.end() == len(text):
            return [*cells, ""] if match[0].endswith(",") else cells
        at = match.end()
    return None


def _csv(texts: list[str]) -> Reader | None:
    """Rows of which a column holds the lines; a time or quotes in the first tell that they are."""
    likely = [text for text in texts if "," in text[:200] and text[:1] in '"0123456789']
    if len(likely) < _FEWEST or 5 * len(likely) < 4 * (len(texts) - 1):
        return None
    rows = [cells for text in likely if (cells := _cells(text)) is not None and len(cells) > 1]
    width, count = collections.Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
    if 5 * count < 4 * len(likely):
        return None
    rows = [row for row in rows if len(row) == width]
    if 5 * sum(_TIME_CELL.fullmatch(row[0]) is not None for row in rows) < 4 * len(rows):
        return None
    if 5 * sum(_FRACTION.match(row[1]) is not None for row in rows) >= 4 * len(rows):
        return None  # "12:00:00,123 text": the comma of a clock

    def rank(at: int) -> tuple[int, int, int]:
        column = [row[at] for row in rows]
        return count_beginnings(column), len(set(column)), sum(map(len, column))

    chosen = max(range(1, width), key=rank)

    def read(line: str) -> str:
        cells = _cells(line.rstrip("\r\n"))
        return _pieces(cells[chosen]) if cells is not None and len(cells) == width else line

    return read


def _logfmt(texts: list[str]) -> Reader | None:
    """Lines of pairs, such as `time=... level=info msg="..."`."""
    if _share(texts, _LOGFMT_START.match) < 0.8:
        return None
    rows = [dict(_LOGFMT.findall(text)) for text in texts]
    for key in MESSAGE_KEYS:
        if 5 * sum(key in row and len(row) > 1 for row in rows) >= 4 * len(rows):
            break
    else:
        return None
    chosen = key

    def read(line: str) -> str:
        value = dict(_LOGFMT.findall(line.rstrip("\r\n"))).get(chosen)
        if value is None:
            return line
        return _pieces(_unescaped(value[1:-1])) if value.startswith('"') else value

    return read


def _quoted(texts: list[str]) -> Reader | None:
    """Each line in quotes, as a list is printed."""
    if len(texts) < _FEWEST or _share(texts, _QUOTED.fullmatch) < 0.9:
        return None
    if not any(map(shows_beginning, texts)):
        return None
    return _unquoted


def _unquoted(line: str) -> str:
    match = _QUOTED.fullmatch(line.rstrip("\r\n"))
    if match is None:
        return line
    text = _BYTE_ESCAPES.sub(_as_text, match[3]) if match[1] else match[3]
    return _pieces(_unescaped(text))


def _as_text(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("\\x", "")).decode("utf-8", "replace")


def _unescaped(text: str) -> str:
    """Of a string as JSON, Python or Go write it."""
    return _ESCAPE.sub(_escaped, text) if "\\" in text else text


def _escaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else _ESCAPES.get(match[3], match[3])
