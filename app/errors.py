"""Exit codes and the error that every command raises; `app.cli` alone turns it into text.

StokerError carries what went wrong in one line, an optional hint (what to type), and the exit code.
UsageError is the one for what was typed or configured wrongly.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.errors import EngineError


class ExitCode(enum.IntEnum):
    """One table for all commands (docs/cli.md prints it)."""

    OK = 0
    NO = 1  # the answer is no: check failed, does not fit, unhealthy
    USAGE = 2
    NOT_ENOUGH_EVIDENCE = 3
    UNREACHABLE = 4
    ENGINE_FAILED_TO_START = 5
    ENGINE_DIED = 6
    ENGINE_STALLED = 7
    LEFTOVERS_REMAIN = 8
    TIMEOUT = 124
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_CODE_MEANINGS = (
    ("0", "done; a requested stop of a ready server"),
    ("1", "the answer is no: a check failed, it does not fit, a log shows a failure"),
    ("2", "usage or configuration error"),
    ("3", "not enough evidence (no server log, still starting, cut off, doubtful figures)"),
    ("4", "server not reachable or access refused"),
    ("5", "the engine failed to start"),
    ("6", "the engine died later"),
    ("7", "alive but stalled (`stoker status`)"),
    ("8", "stopped, but processes or the port remain"),
    ("124", "the start showed no progress for --startup-timeout"),
    ("126, 127", "a program cannot be executed, or is not there"),
    ("129, 130, 143", "ended by SIGHUP, SIGINT or SIGTERM before the server was ready"),
)


class StokerError(Exception):
    """A command cannot do what was asked."""

    def __init__(
        self, message: str, *, hint: str | None = None, exit_code: ExitCode = ExitCode.NO
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code


class UsageError(StokerError):
    """What was typed, or stands in the settings, cannot be followed."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.USAGE)


def told_by_engine(error: EngineError) -> StokerError:
    """What the engine's code refuses in this process; a word that names no model is usage."""
    from engine.errors import ConfigError, ModelNotFoundError

    is_usage = isinstance(error, (ConfigError, ModelNotFoundError))
    return (UsageError if is_usage else StokerError)(str(error).rstrip("."), hint=error.hint)
