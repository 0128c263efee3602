"""A log line as a screen shows it: clock, level and message, without the prefix. No widget.

The reader of logs is imported when there is a line: a dashboard without a log has no need of it.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logparse.reading.line import LogLine

_ACCESS = re.compile(
    r'"[A-Z]{3,7} \S+ HTTP/[\d.]+" (?P<status>\d{3})\b'  # uvicorn's
    r"|log_server_r: (?:done )?request: [A-Z]{3,7} \S+ \S+ (?P<other>\d{3})\b"  # llama-server's
)


_BARE_LEVEL = re.compile(r"[^A-Za-z]{0,40}(WARNING|ERROR|CRITICAL)\b")
"""The first word of a line whose prefix is nobody's that we know."""


class LogLevel(enum.IntEnum):
    """Of a line; one without a level is OTHER."""

    OTHER = 0
    WARNING = 1
    ERROR = 2


LEVELS = {"WARNING": LogLevel.WARNING, "ERROR": LogLevel.ERROR, "CRITICAL": LogLevel.ERROR}
"""Levels by the words of vLLM, our engine and SGLang."""


def level_of(text: str) -> LogLevel:
    """By the line's own prefix."""
    level = _parts(text).level
    if level is None and (match := _BARE_LEVEL.match(text)) is not None:
        level = match[1]
    return LEVELS.get(level or "", LogLevel.OTHER)


def is_routine(text: str) -> bool:
    """A request that went well: who reads a log of a server that serves reads little else."""
    match = _ACCESS.search(text)
    return match is not None and (match["status"] or match["other"]).startswith("2")


def shortened(text: str, level: LogLevel) -> str:
    """Clock, level, process and message; a line without any prefix as it is."""
    parts = _parts(text)
    if parts.stamp is None and parts.level is None and parts.process is None:
        return text
    clock = parts.stamp[-8:] if parts.stamp else ""
    process = f"{parts.process} " if parts.process else ""
    return f"{clock:8} {' WE'[level]} {process}{parts.message}"


def _parts(text: str) -> LogLine:
    from logparse.reading.line import split_line

    return split_line(text)
