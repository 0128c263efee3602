"""One physical line into its header and message. Owns the header shapes of vLLM 0.6 to 0.30, our
engine, uvicorn, SGLang and llama-server; knows no message. The wrappers are in `wrappers`.
"""

from __future__ import annotations

import datetime
import functools
import re
from typing import NamedTuple

from logparse.reading.wrappers import INDENTED_FIRSTS, WRAPPER_FIRSTS, peel
from logparse.redact import strip_ansi

TRACEBACK = "Traceback (most recent call last)"


class LogLine(NamedTuple):
    """`process` is the name in the prefix without pid; None fields were not there."""

    process: str | None
    pid: str | None
    level: str | None
    stamp: str | None
    message: str
    has_source: bool  # the header names a file and a line, as vLLM's does


_LEVELS = "INFO|WARNING|ERROR|DEBUG|CRITICAL"
_PREFIX_TEXT = r"\(([^()]{1,60}?) pid=(\d{1,18})[^()]{0,80}\) ?"
_PREFIX = re.compile(_PREFIX_TEXT)
_STAMP_TEXT = r"(\d\d-\d\d \d\d:\d\d:\d\d)"
_LEVEL_TEXT = rf"({_LEVELS})(?:(: {{2,8}})|(?: {_STAMP_TEXT})? \[?[^\] :]{{1,200}}:\d+\] ?)"
_HEADER = re.compile(_LEVEL_TEXT)  # vLLM's, or uvicorn's
_OWNER_TEXT = r"\(([^() \x1b]{1,60}(?: rank=\d{1,5})?) pid=(\d{1,18})(?:[ ,][^()\x1b]{0,80})?"
_OWNER = re.compile(rf"(?:\x1b\[[01];36m)?{_OWNER_TEXT}")
_NOBODY = (None, None)
_COLOURED_END = ")\x1b[0;0m "  # of a prefix in vLLM's colours
_PREFIXED = re.compile(rf"{_OWNER_TEXT}\) ?(?:{_LEVEL_TEXT})?")
_GLUED_HEADER = re.compile(
    rf"(?:{_PREFIX_TEXT})?({_LEVELS}) {_STAMP_TEXT}(?:[.,]\d{{1,6}})? "
    r"\[?([^\]\s:]{1,200}):\d+\] ?"
)
_UNNUMBERED = re.compile(
    r"\(((?:API[Ss]erver|(?:DP)?EngineCore|(?:Vllm|Ray)?Worker|DPCoord)\w{0,40})\) ?"
)
_UVICORN = re.compile(rf"({_LEVELS}): {{2,8}}")
_SGLANG = re.compile(
    r"\[((?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{1,6})?"
    r"((?: [A-Z][A-Z_]{1,11}\d{1,5}){0,7})\] "
)
_INNER = re.compile(
    rf"({_LEVELS}) [\w./-]{{1,80}}\.py:\d{{1,6}}: "
)  # behind SGLang's, in some releases
_TAG = re.compile(r"\[[A-Za-oq-z]")  # [DEBUG], and no wrapper: those have a digit, or pod/
# llama-server: a router puts the port of the process that serves the model in front; without
# a clock only names of its own make a letter a level.
_LLAMACPP_NAMES = r"(?=srv |slot |cmn |que |llama_|load_|ggml_|print_info: |common_|sched_)"
_LLAMACPP = re.compile(
    r"(?:\[(?P<port>\d{2,5})\] )?(?:(?P<stamp>\d{1,9}\.\d\d\.\d{3}\.\d{3}) (?P<level>[IWED]) "
    rf"|(?P<bare>[IWED]) {_LLAMACPP_NAMES})"
    rf"|\[(?P<child>\d{{4,5}})\] (?:{_LLAMACPP_NAMES}|(?=clip_|main: |(?:CUDA|HIP|Vulkan) error: "
    r"|error|GGML_ASSERT|terminate ))"
)
_LLAMACPP_BEHIND_BAR = re.compile(
    r"[^|]{0,200}\|[-/\\| \x08]{0,20}(?=\d{1,9}\.\d\d\.\d{3}\.\d{3} [IWED] )"
)
_LEVEL_FIRSTS = frozenset("DIWEC")
_OTHER_FIRSTS = frozenset("[0123456789DIWEC")
_BUSY_FIRSTS = WRAPPER_FIRSTS | _LEVEL_FIRSTS | _OTHER_FIRSTS | {"("}
_LLAMACPP_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "D": "DEBUG"}

_MAX_WRAPPERS = 4
_MAX_PREFIXES = 4
_MAX_PREFIX = 160
_new = tuple.__new__  # half the price of LogLine(...), paid for every line
_ORIGIN = datetime.date(2000, 1, 1).toordinal()


def split_line(text: str) -> LogLine:
    """The line without wrappers, colours and header."""
    first, rest = text[:1], text
    owner: tuple[str | None, str | None] | None = _NOBODY
    if first == "(" or first == "\x1b":
        prefix, _, rest = text.partition(") " if first == "(" else _COLOURED_END)
        owner = _owner(prefix) if rest and len(prefix) < _MAX_PREFIX else None
    if owner is not None and "\x1b" not in rest:
        # The same as below at half the price: nearly all lines of a server pass here.
        process, pid = owner
        if rest[:1] not in _LEVEL_FIRSTS or not (match := _HEADER.match(rest)):
            line = _new(LogLine, (process, pid, None, None, rest, False))
            return line if _is_bare(rest) else _unwrap(line)
        level, uvicorn, stamp = match.groups()
        if uvicorn is None:
            return _new(LogLine, (process, pid, level, stamp, rest[match.end() :], True))
        if "]" not in text:
            return _new(LogLine, (process, pid, level, None, rest[match.end() :], False))
    line = _match_header(strip_ansi(text))
    return line if line[2] is not None else _unwrap(line)


@functools.lru_cache(maxsize=256)  # a server has few processes and many lines
def _owner(prefix: str) -> tuple[str, str] | None:
    """Process and pid of a usual prefix, of which the closing bracket is cut off."""
    match = _OWNER.fullmatch(prefix)
    return (match[1], match[2]) if match is not None else None


def _unwrap(line: LogLine) -> LogLine:
    """A line that does not begin with a level: what may stand between the wrappers."""
    for _ in range(_MAX_WRAPPERS):
        message = line[4]
        if _is_bare(message):
            return line
        if message[:1] == "[" and _SGLANG.match(message):
            glued = _last_glued(message) if _may_hold_header(message) else None
            return inside(line, glued) if glued is not None else _other_headers(line)
        inner = peel(message)
        if inner is message:
            break
        if "\x1b" in inner:  # in a JSON string it was written as \\u001b
            inner = strip_ansi(inner)
        line = inside(line, _match_header(inner))
        if line[2] is not None:
            return line
    return _finish(line)


def _is_bare(message: str) -> bool:
    """A cheap test that holds for most of a traceback: no wrapper or header can be in it."""
    first = message[:1]
    if first == " ":
        if message.lstrip()[:1] in INDENTED_FIRSTS:
            return False
    elif "|" in message or (first in _BUSY_FIRSTS and not _TAG.match(message)):
        return False
    return "]" not in message or not _may_hold_header(message)


def _may_hold_header(message: str) -> bool:
    return "INFO " in message or "WARNING " in message or "ERROR " in message


def _match_header(text: str) -> LogLine:
    """Prefix and level where the text begins with them."""
    first = text[:1]
    process = pid = None
    if first == "(":
        match = _PREFIXED.match(text)
        if match is None:
            return _match_unusual_prefix(text)
        process, pid, level, uvicorn, stamp = match.groups()
    elif first in _LEVEL_FIRSTS and (match := _HEADER.match(text)):
        level, uvicorn, stamp = match.groups()
    else:
        return _new(LogLine, (None, None, None, None, text, False))
    if uvicorn is None:
        return _new(LogLine, (process, pid, level, stamp, text[match.end() :], level is not None))
    if "]" in text:  # another process may have written into the line
        return _new(LogLine, (process, pid, None, None, text[text.index(level) :], False))
    return _new(LogLine, (process, pid, level, None, text[match.end() :], False))


def _match_unusual_prefix(text: str) -> LogLine:
    """A name of several words, or one of vLLM's without a number."""
    prefix = _PREFIX.match(text, 0, _MAX_PREFIX) or _UNNUMBERED.match(text, 0, _MAX_PREFIX)
    if prefix is None:
        return LogLine(None, None, None, None, text, False)
    name, pid = (*prefix.groups(), None)[:2]
    rest = text[prefix.end() :]
    if rest[:1] in _LEVEL_FIRSTS:
        return _match_header(rest)._replace(process=name, pid=pid)
    return LogLine(name, pid, None, None, rest, False)


def inside(outer: LogLine, inner: LogLine) -> LogLine:
    """`inner`, with the process of the prefix that stood in front of the wrapper."""
    if inner[0] is None and outer[0] is not None:
        return _new(LogLine, (*outer[:2], *inner[2:]))
    return inner


def _finish(line: LogLine) -> LogLine:
    for _ in range(_MAX_PREFIXES):
        if line[2] is not None or line[0] is None or line[4][:1] != "(":
            break
        # Two processes wrote at once: the prefix next to the text owns it.
        inner = _match_header(line.message)
        if inner.process is None:
            break
        line = inner
    if line.level is not None:
        return line
    message = line.message
    if "|" in message and (bar := _LLAMACPP_BEHIND_BAR.match(message)):
        line = line._replace(message=message[bar.end() :])
        return _other_headers(line)
    if "]" in message and _may_hold_header(message):
        glued = _last_glued(message)
        if glued is not None:
            return inside(line, glued)
    return _other_headers(line) if message[:1] in _OTHER_FIRSTS else line


def _last_glued(message: str) -> LogLine | None:
    last = None
    for match in _GLUED_HEADER.finditer(message):
        last = match
    if last is None:
        return None
    process, pid, level, stamp, _ = last.groups()
    return LogLine(process, pid, level, stamp, message[last.end() :], True)


def _other_headers(line: LogLine) -> LogLine:
    """What uvicorn, SGLang and llama-server put before their messages."""
    process, pid, level, stamp, message, has_source = line
    if message[0] == "[" and (match := _SGLANG.match(message)):
        stamp, message = match[1], message[match.end() :]
        process = match[2].strip() if match[2] else process
    elif match := _LLAMACPP.match(message):
        stamp, level = match["stamp"], _LLAMACPP_LEVELS.get(match["level"] or match["bare"])
        pid, message = match["port"] or match["child"] or pid, message[match.end() :]
    elif message[0] == "[":
        return line
    if message[:1] in _LEVEL_FIRSTS and (match := _UVICORN.match(message) or _INNER.match(message)):
        level, message = match[1], message[match.end() :]
    return _new(LogLine, (process, pid, level, stamp, message, has_source))


@functools.lru_cache(maxsize=16)
def stamp_seconds(stamp: str) -> float | None:
    """The log's clock in seconds from an origin that only differences should be taken from."""
    try:
        if stamp[2:3] == "-":
            # No year in vLLM's header. 2000 was a leap year, so 02-29 is valid.
            return _since_2000(2000, stamp)
        if stamp[4:5] == "-":
            return _since_2000(int(stamp[:4]), stamp[5:])
        minutes, seconds, millis, micros = stamp.split(".")
    except ValueError:
        return None
    return int(minutes) * 60 + int(seconds) + int(millis) / 1e3 + int(micros) / 1e6


def _since_2000(year: int, stamp: str) -> float:
    """`stamp` is MM-DD HH:MM:SS; by hand, since strptime would take most of a parser's time."""
    return _minute(year, stamp[:11]) + int(stamp[12:14])


@functools.lru_cache(maxsize=16)
def _minute(year: int, stamp: str) -> float:
    day = datetime.date(year, int(stamp[0:2]), int(stamp[3:5])).toordinal() - _ORIGIN
    return day * 86400.0 + int(stamp[6:8]) * 3600 + int(stamp[9:11]) * 60


def seconds_between(start: float, end: float) -> float:
    """end - start; a log that crosses New Year's Eve has no year to tell."""
    year = 366 * 86400.0
    gap = end - start
    return round(gap + year if gap < -year / 2 else gap, 6)
