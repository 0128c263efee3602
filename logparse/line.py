"""One physical line into its header and message. Owns the wrappers (compose, syslog, numbers) and
the header shapes of vLLM 0.6 to 0.30, our engine, uvicorn, SGLang and llama-server; knows no
message.
"""

from __future__ import annotations

import datetime
import re
from typing import NamedTuple

from logparse.redact import strip_ansi


class LogLine(NamedTuple):
    """`process` is the name in the prefix without pid; None fields were not there."""

    process: str | None
    pid: str | None
    level: str | None
    stamp: str | None
    message: str
    has_source: bool  # the header names a file and a line, as vLLM's does


_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_PREFIX_TEXT = r"\(([^()]{1,60}?) pid=(\d+)[^()]{0,80}\) ?"
_SOURCE = r"(?: (\d\d-\d\d \d\d:\d\d:\d\d))? \[?([^\]\s:]{1,200}):\d+\] ?"
_HEADER = re.compile(rf"(?:{_PREFIX_TEXT})?(?:({_LEVELS}){_SOURCE})?")
_GLUED_HEADER = re.compile(
    rf"(?:{_PREFIX_TEXT})?({_LEVELS})(?: (\d\d-\d\d \d\d:\d\d:\d\d)) \[?([^\]\s:]{{1,200}}):\d+\] ?"
)
_UVICORN = re.compile(rf"({_LEVELS}): {{2,8}}")
_SGLANG = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)( [A-Z]{2,3}\d+)*\] ")
_LLAMACPP = re.compile(r"(\d+\.\d\d\.\d{3}\.\d{3}) ([IWED]) ")
_HEADER_FIRSTS = frozenset("(DIWEC")
_OTHER_FIRSTS = frozenset("[0123456789DIWEC")
_LLAMACPP_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "D": "DEBUG"}

# What other programs put in front of a line. Tried again after each success, in any order.
_WRAPPERS = (
    re.compile(r"[\w.-]{1,80}\s{1,20}\| "),  # docker compose
    re.compile(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.,]{0,12}(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] )?"
    ),
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} \S{1,80}: "),  # syslog, journald
    re.compile(r"\s{0,8}\d{1,7}: (?=[(A-Z\[])"),  # Slurm ranks, editors' line numbers
    re.compile(r"> "),  # quoted in a mail or an issue
)
_MAX_WRAPPERS = 4
_MAX_PREFIXES = 4
_new = tuple.__new__  # half the price of LogLine(...), paid for every line
_ORIGIN = datetime.date(2000, 1, 1).toordinal()


def split_line(text: str) -> LogLine:
    """The line without wrappers, colours and header."""
    if "\x1b" in text:
        text = strip_ansi(text)
    line = _match_header(text)
    if line.level is not None:
        return line
    if line.process is not None:
        return _finish(line)
    for _ in range(_MAX_WRAPPERS):
        peeled = peel(text)
        if peeled is text:
            break
        text = peeled
        line = _match_header(text)
        if line.level is not None or line.process is not None:
            break
    return _finish(line)


def _match_header(text: str) -> LogLine:
    if text[:1] not in _HEADER_FIRSTS:
        return _new(LogLine, (None, None, None, None, text, False))
    match = _HEADER.match(text)
    assert match is not None  # every part of the pattern is optional
    process, pid, level, stamp, source = match.groups()
    return _new(LogLine, (process, pid, level, stamp, text[match.end() :], source is not None))


def _finish(line: LogLine) -> LogLine:
    for _ in range(_MAX_PREFIXES):
        if line.level is not None or line.process is None or line.message[:1] != "(":
            break
        # Two processes wrote at once: the prefix next to the text owns it.
        inner = _match_header(line.message)
        if inner.process is None:
            break
        line = inner
    if line.level is not None:
        return line
    message = line.message
    if "INFO " in message or "WARNING " in message or "ERROR " in message:
        glued = _last_glued(message)
        if glued is not None:
            return (
                glued
                if glued.process is not None
                else glued._replace(process=line.process, pid=line.pid)
            )
    return _other_headers(line)


def _last_glued(message: str) -> LogLine | None:
    last = None
    for match in _GLUED_HEADER.finditer(message):
        last = match
    if last is None:
        return None
    process, pid, level, stamp, _ = last.groups()
    return LogLine(process, pid, level, stamp, message[last.end() :], True)


def _other_headers(line: LogLine) -> LogLine:
    """uvicorn, SGLang, llama-server; most lines are none of them, told by their first character."""
    message = line.message
    if message[:1] not in _OTHER_FIRSTS:
        return line
    process, stamp, level = line.process, line.stamp, line.level
    if match := _SGLANG.match(message):
        stamp, message = match[1], message[match.end() :]
        process = match[2].strip() if match[2] else process
    elif match := _LLAMACPP.match(message):
        stamp, level, message = match[1], _LLAMACPP_LEVELS[match[2]], message[match.end() :]
    if match := _UVICORN.match(message):
        level, message = match[1], message[match.end() :]
    return LogLine(process, line.pid, level, stamp, message, line.has_source)


def peel(text: str) -> str:
    """`text` without its outermost wrapper; the same object when it has none."""
    for wrapper in _WRAPPERS:
        if match := wrapper.match(text):
            return text[match.end() :]
    return text


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
    day = datetime.date(year, int(stamp[0:2]), int(stamp[3:5])).toordinal() - _ORIGIN
    clock = int(stamp[6:8]) * 3600 + int(stamp[9:11]) * 60 + int(stamp[12:14])
    return day * 86400.0 + clock


def seconds_between(start: float, end: float) -> float:
    """end - start; a log that crosses New Year's Eve has no year to tell."""
    year = 366 * 86400.0
    gap = end - start
    return round(gap + year if gap < -year / 2 else gap, 6)
