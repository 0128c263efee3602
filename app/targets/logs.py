"""Which log a person means: a file, standard input, or a server of ours (`app.targets.servers`)."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from app.errors import StokerError, UsageError

EXAMPLE = "stoker logs server.log, or: vllm serve ... 2>&1 | stoker logs -"
_LOG_ENDINGS = (".log", ".gz", ".zst", ".txt")


@dataclass(frozen=True, slots=True)
class LogTarget:
    """`path` is None for standard input."""

    title: str
    path: Path | None


def find_logs(wanted: list[str]) -> list[LogTarget]:
    """One target for each word; without one, what is piped in, at a terminal the one server's."""
    if not wanted:
        return [_server_log(None) if sys.stdin.isatty() else LogTarget("standard input", None)]
    if wanted.count("-") > 1:
        raise UsageError("standard input can be read once")
    return [_find(word) for word in wanted]


def _find(word: str) -> LogTarget:
    from app.paths import file_name, logs_path

    if word == "-":
        return LogTarget("standard input", None)
    path = Path(word)
    if os.path.exists(path):  # False, not an error, for a word too long for a file's name
        return LogTarget(word, path)
    if _looks_like_file(word):
        raise UsageError(f"cannot read {word}: No such file or directory", hint=EXAMPLE)
    try:
        return _server_log(word)
    except StokerError:
        if "/" not in word and (last := _last_log(file_name(word), logs_path())) is not None:
            return LogTarget(f"{word}, its last start", last)
        raise


def _looks_like_file(word: str) -> bool:
    is_path = "/" in word and "://" not in word and not word.startswith("unix:")
    return is_path or word.endswith(_LOG_ENDINGS)


def _server_log(word: str | None) -> LogTarget:
    from app.targets.servers import find_record

    try:
        record = find_record(word, failed_too=True)
    except StokerError as error:
        message = f"no file and {error}" if word else f"no log to read: {error}"
        hint = f"{error.hint}; {EXAMPLE}" if error.hint else EXAMPLE
        raise UsageError(message, hint=hint) from error
    return LogTarget(f"{record.name} (pid {record.pid})", Path(record.log_path))


def _last_log(name: str, folder: Path) -> Path | None:
    """The newest log that a server of this name left: `name-DATE-TIME.log`."""
    logs = [
        path for path in folder.glob("*.log") if path.name.rsplit("-", 2)[0] == name
    ]  # a log that begins within the same second as another one carries a pid and is left out
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)
