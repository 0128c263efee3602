"""The prefix that another program put in front of every line, learnt from the lines themselves.

Where a server's own line begins is known (its header, a traceback, a progress bar): what stands
before it on nearly all lines, numbers and times aside, is the prefix. No program need be known.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable
from typing import NamedTuple

_FEWEST = 3  # lines that show a prefix
_LONGEST_PREFIX = 160
_SEARCHED = 480
_MAX_SHAPES = 4
_MAX_CHOICES = 8
_OWN_LEVELS = r"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)"
_LEVELS = (
    r"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL|WARN|FATAL|TRACE|NOTICE|DEBG"
    r"|info|warning|error|debug|warn|critical)"
)
_MONTHS = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
ESCAPES = r"(?:\x1b|\^\[|\u241b|#033|\\033|\\x1[bB]|\\u001[bB]|\\e|<ESC>|<0x1[bB]>)"
_COLOUR = rf"{ESCAPES}?\[[0-9;]{{1,20}}m"
# Where a server's own line begins.
_BEGINNING = re.compile(
    rf"(?:{_COLOUR})*(?:\([\w .=:-]{{1,60}} pid=\d|[\[<]\w{{1,40}}(?:\]\[|[ :,]{{1,2}})pid[=: ]\d"
    r"|\((?:API[Ss]erver|(?:DP)?EngineCore|(?:Vllm|Ray)?Worker)\w{0,40}\) "
    rf"|{_OWN_LEVELS}(?:{_COLOUR})* (?:{_COLOUR})*\d\d-\d\d \d\d:"
    rf"|{_OWN_LEVELS}: {{4,5}}(?=\S)|\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z]{{2}}\d+)*\] \S"
    r"|\d{1,4}\.\d\d\.\d{3}\.\d{3} [IWED] "
    r"|\b[IWED] (?=(?:srv|slot|cmn|que) {1,12}\w|(?:llama|load|ggml"
    r"|common|print)_\w)|\bcmn {1,12}\w{1,20}: |Traceback \(most recent call last\)"
    r'|  File \\?"[^"]{1,400}", line \d|usage: \S'
    r"|(?:vllm(?: serve)?|api_server\.py|sglang(?: serve)?|launch_server\.py|stoker(?: serve)?)"
    r": error: |(?<![\w.'/(\[])[A-Za-z_][\w.]{0,80}(?:Error|Exception): "
    r"|(?:Loading \w{1,20} checkpoint shards|Multi-thread loading shards|Capturing [\w ()=.]{1,60})"
    r": "
    r"|\b(?:llama_\w+|ggml_\w+|gguf_\w+|clip_\w+|load_tensors|print_info|load|common_\w+): "
    r"|(?:INFO|WARN|ERR) \[ {0,30}\w{1,30}\] |build: \d{1,9} \(|system_info: n_threads"
    r"|\b(?:srv|slot|que) {1,12}\w{1,20}: "
    r"|\bmain: (?:HTTP|server|loading|model|exiting|error|binding|starting|n_parallel|chat))"
)
# One of these is in each beginning. To look for them takes a tenth of the time that the pattern
# needs to find nothing.
_IN_BEGINNINGS = (
    *("pid", ": ", "INFO", "WARN", "ERR", "DEBUG", "CRIT", "[20", "File ", "Traceback", "Core"),
    *("Worker", "API", "I ", "W ", "E ", "D "),
)
_RANKED = re.compile(r" [A-Z]{2}\d")
_SENTENCE = re.compile(r"\b(?:exception|[Ee]rror|failed)\b")
_FRAME = '  File "'
# A launcher's logging of lines that the server wrote without a head of its own.
_LOGGED = re.compile(
    rf"\[?\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{{0,14}}\]?[ |-]{{1,4}}\[?{_LEVELS}\]?[ |:-]{{1,4}}"
    r"(?:[\w.<>-]{1,60}(?:::?[\w.<>-]{1,60}){0,8}(?:: | - | \| ))"
)
_CLOCKED = re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})? ")
_VARYING = re.compile(
    rf"(?<![0-9A-Za-z])(?=[0-9a-f]{{0,31}}\d)[0-9a-f]{{8,32}}(?![0-9A-Za-z])|\d+|\b{_LEVELS}\b"
    rf"|\b{_MONTHS}\b|\s+"
)
_TELLING = re.compile(r"\d:\d\d:\d\d|\d{8}|[^\W\d_]{3}|:|\|")
_TOKEN = re.compile(r"\S+\s*")
_WORD = re.compile(r"[\w.,:@/=<>()\[\]+-]+")
_LIST_OF_MONTHS = frozenset(_MONTHS[3:-1].split("|"))


class _Shown(NamedTuple):
    """What stands before the server's own words in one line."""

    before: str
    is_neutral: bool  # the line tells nothing about a prefix if there is none


def common_prefix(lines: list[str]) -> re.Pattern[str] | None:
    """What stands before the server's own words on nearly every line; None when nothing does."""
    texts = [line for line in lines if line.strip()]
    prefixes = _prefixes_of(texts)
    if prefixes is None:
        return _clock_prefix(texts)
    pattern = _of_few_shapes(prefixes)
    if pattern is None or not all(map(pattern.match, prefixes)):
        pattern = _of_columns(prefixes) or pattern
    if pattern is None:
        return _clock_prefix(texts)
    num_with = sum(pattern.match(line) is not None for line in texts)
    return pattern if num_with >= _least_share(prefixes) * len(texts) else None


def _prefixes_of(texts: list[str]) -> list[str] | None:
    """What stands before the server's own words; None if that is nothing on a fifth of the lines
    that show it, or on so many of all lines that the rest cannot change it.
    """
    prefixes: list[str] = []
    num_without = 0
    for line in texts:
        shown = _before(line)
        if shown is None:
            continue
        if shown.before:
            prefixes.append(shown.before)
        elif not shown.is_neutral:
            num_without += 1
            if 5 * num_without > len(texts):
                return None
    return prefixes if len(prefixes) >= 2 and len(prefixes) >= 4 * num_without else None


def _least_share(prefixes: list[str]) -> float:
    """How many of all lines must have it: a time or a name is sure, blanks and numbers are not.

    A program may head a message of several lines once.
    """
    if len(prefixes) < _FEWEST:
        return 1.0
    if all(prefix.isspace() for prefix in prefixes):
        return 0.8
    return 0.4 if all(_TELLING.search(prefix) for prefix in prefixes) else 0.9


def _clock_prefix(texts: list[str]) -> re.Pattern[str] | None:
    """A date and a time on nearly every line, also where nothing of a server is recognised."""
    stamped = [line for line in texts if line[:2] == "20" or line[:3] == "[20"]
    num_logged = sum(_LOGGED.match(line) is not None for line in stamped)
    if num_logged >= _FEWEST and 10 * num_logged >= 9 * len(stamped):
        return _LOGGED
    num_with = sum(_CLOCKED.match(line) is not None for line in texts)
    return _CLOCKED if num_with >= _FEWEST and 10 * num_with >= 9 * len(texts) else None


def _before(line: str) -> _Shown | None:
    found = _first_beginning(line)
    if found is None:
        return None
    if found[0].startswith("[20"):
        # The time in brackets may be another program's; alone it tells nothing.
        behind = _BEGINNING.search(line, found.end() - 1, _SEARCHED)
        if behind is None or _is_of_sglang(line, found, behind):
            return _Shown(line[: found.start()].partition('{"')[0], is_neutral=True)
        found = behind
    # What is inside of a JSON object is left to those who read JSON.
    before = line[: found.start()].partition('{"')[0]
    if len(before) > _LONGEST_PREFIX:
        return None
    return _Shown(before, is_neutral=not before and found[0].startswith(_FRAME))


def _first_beginning(text: str) -> re.Match[str] | None:
    if at_once := _BEGINNING.match(text, 0, _SEARCHED):
        return at_once
    for part in _IN_BEGINNINGS:
        if part in text:
            return _BEGINNING.search(text, 0, _SEARCHED)
    return None


def _is_of_sglang(line: str, found: re.Match[str], behind: re.Match[str]) -> bool:
    """Whether the time in brackets belongs to what stands behind it: at once, or in a sentence."""
    between = line[found.end() - 1 : behind.start()]
    return (
        not between or _RANKED.search(found[0]) is not None or _SENTENCE.search(between) is not None
    )


def _of_few_shapes(prefixes: list[str]) -> re.Pattern[str] | None:
    """Those that differ in their numbers only, or in one of a few names."""
    counted = collections.Counter(map(_shape, prefixes)).most_common(_MAX_SHAPES)
    least = _FEWEST if len(prefixes) > _FEWEST else len(prefixes)
    chosen, covered = [], 0
    for shape, count in counted:
        if count >= least and 5 * covered < 4 * len(prefixes):
            chosen.append(shape)
            covered += count
    if not chosen or 5 * covered < 4 * len(prefixes):
        return None
    return re.compile("|".join(f"(?:{shape})" for shape in sorted(chosen, key=len, reverse=True)))


def _of_columns(prefixes: list[str]) -> re.Pattern[str] | None:
    """Those of as many words each, some of which are other words on every line."""
    split = [_TOKEN.findall(prefix) for prefix in prefixes if not prefix[:1].isspace()]
    width, count = collections.Counter(map(len, split)).most_common(1)[0] if split else (0, 0)
    if count < _FEWEST or 5 * count < 4 * len(prefixes):
        return None
    rows = [row for row in split if len(row) == width]
    columns = [_column([row[at] for row in rows]) for at in range(width)]
    return re.compile("".join(columns)) if all(columns) else None


def _column(values: list[str]) -> str:
    """A pattern for one word and the blank behind it; empty if it may be anything."""
    shapes = collections.Counter(map(_shape, values))
    if len(shapes) <= _MAX_CHOICES:
        return "(?:" + "|".join(sorted(shapes, key=len, reverse=True)) + ")"
    words = [value.rstrip() for value in values]
    if not all(_WORD.fullmatch(word) for word in words):
        return ""
    ends = {word[-1] for word in words if not word[-1].isalnum()}
    is_closed = len(ends) == 1 and all(word[-1] in ends for word in words)
    end = re.escape(ends.pop()) if is_closed else ""
    return rf"[\w.,:@/=<>()\[\]+-]{{1,80}}{end}\s{{1,8}}"


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
    if text[0].isdigit() or not text.isalpha():
        return "[0-9a-f]{8,32}"
    return _MONTHS if text in _LIST_OF_MONTHS else _LEVELS


def shows_beginning(text: str) -> bool:
    """Whether a server's own words are in it."""
    return _first_beginning(text) is not None


def count_beginnings(texts: Iterable[str]) -> int:
    """In how many of them a server's own words are."""
    return sum(map(shows_beginning, texts))
