"""Which log a person means: a file, standard input, or a server of Stoker by name or pid."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from app.errors import ExitCode, StokerError
from app.ops.server_registry import ServerRecord

EXAMPLE = "stoker logs server.log, or: vllm serve ... 2>&1 | stoker logs -"


@dataclass(frozen=True, slots=True)
class LogTarget:
    """`path` is None for standard input."""

    title: str
    path: Path | None


def find_logs(wanted: list[str]) -> list[LogTarget]:
    """One target for each word; none at all means standard input, if something is piped into it."""
    if not wanted:
        if sys.stdin.isatty():
            raise StokerError("no log to read", hint=EXAMPLE, exit_code=ExitCode.USAGE)
        wanted = ["-"]
    if wanted.count("-") > 1:
        raise StokerError("standard input can be read once", exit_code=ExitCode.USAGE)
    return [_find(word) for word in wanted]


def _find(word: str) -> LogTarget:
    if word == "-":
        return LogTarget("standard input", None)
    path = Path(word)
    if path.exists():
        return LogTarget(word, path)
    from app.ops.find_server import open_registry
    from app.paths import logs_dir

    running = open_registry().running()
    for record in running:
        if word == record.name or word in (str(record.pid), str(record.supervisor_pid)):
            return LogTarget(f"{record.name} (pid {record.pid})", Path(record.log_path))
    if "/" not in word and (last := _last_log(word, logs_dir())) is not None:
        return LogTarget(f"{word}, its last start", last)
    raise _no_such(word, running)


def _last_log(name: str, folder: Path) -> Path | None:
    """The newest log that a server of this name left: `name-DATE-TIME.log`."""
    logs = [
        path for path in folder.glob("*.log") if path.name.rsplit("-", 2)[0] == name
    ]  # a log that begins within the same second as another one carries a pid and is left out
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)


def _no_such(word: str, running: tuple[ServerRecord, ...]) -> StokerError:
    if "/" in word or word.endswith((".log", ".gz", ".zst", ".txt")):
        return StokerError(
            f"cannot read {word}: No such file or directory", hint=EXAMPLE, exit_code=ExitCode.USAGE
        )
    names = ", ".join(f"{record.name} (pid {record.pid})" for record in running)
    return StokerError(
        f"no file and no server called {word}",
        hint=f"servers that run now: {names}" if names else f"no server runs now; {EXAMPLE}",
        exit_code=ExitCode.USAGE,
    )
