"""How commands print: data on stdout (text, JSON, tab-separated), talk on stderr through rich.

A pipe never receives colour or cursor movement; NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, TERM=dumb
and `--color` decide for a terminal. Rich is imported on first use only.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from app.client.terminal_text import one_line as one_line
from app.client.terminal_text import printable as printable

if TYPE_CHECKING:
    from rich.console import Console

_NOT_ASCII = re.compile("[^\n -~]")
_PRIORITIES = {"error": 3, "warning": 4, "note": 5, "hint": 5}  # err, warning, notice


def apply_color_choice(choice: str) -> None:
    """Turn `--color auto|always|never` into the variables that rich and textual read themselves."""
    if choice == "never":
        os.environ["NO_COLOR"] = "1"
        os.environ.pop("FORCE_COLOR", None)
    elif choice == "always":
        os.environ["FORCE_COLOR"] = "1"
        os.environ.pop("NO_COLOR", None)
    elif os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        os.environ.setdefault("FORCE_COLOR", "1")


def has_colors(stream: TextIO) -> bool:
    """Whether what is written there may carry styles: a terminal that is not dumb, or forced."""
    if os.environ.get("NO_COLOR"):
        return False
    is_able = stream.isatty() and os.environ.get("TERM") != "dumb"
    return is_able or bool(os.environ.get("FORCE_COLOR"))


def talk_console() -> Console:
    """Console on stderr for progress, hints and warnings."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def data_console() -> Console:
    """Console on stdout for tables and reports that people read."""
    from rich.console import Console

    class DataConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # to the funnel of errors; rich's own would exit with code 1

    return DataConsole(highlight=False, emoji=False)


def say(text: str) -> None:
    """One plain line of talk on stderr; in the journal with its priority, by its first word."""
    shown = printable(text)
    if (priority := _priority(shown)) is not None and _is_journal():
        shown = "\n".join(f"<{priority}>{line}" for line in shown.split("\n"))
    print(shown, file=sys.stderr, flush=True)


def _priority(text: str) -> int | None:
    """Of syslog; None for what is information, as the journal takes all that has none."""
    return _PRIORITIES.get(text.partition(":")[0])


def _is_journal() -> bool:
    """Whether stderr is the stream that the journal reads, as JOURNAL_STREAM says."""
    wanted = os.environ.get("JOURNAL_STREAM")
    if not wanted:
        return False
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return wanted == f"{found.st_dev}:{found.st_ino}"


def print_json(schema: str, payload: Mapping[str, Any], *, schema_version: int = 1) -> None:
    """One JSON document on stdout; adding keys keeps `schema_version`, renaming raises it."""
    document = {"schema": schema, "schema_version": schema_version, **payload}
    print(json_text(document, indent=2))


def json_text(document: object, indent: int | None = None) -> str:
    """JSON for a terminal too: what is not printable is escaped, other text is not."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return _NOT_ASCII.sub(
        lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1], text
    )


def print_plain(rows: Iterable[Sequence[object]]) -> None:
    """One record per line, fields separated by tabs; None is `-`."""
    for row in rows:
        print("\t".join(_field(value) for value in row))


def require_one_form(as_json: bool, as_plain: bool) -> None:
    """StokerError for a command that is asked for both."""
    from app.errors import UsageError

    if as_json and as_plain:
        raise UsageError("choose one of --json and --plain")


def is_interactive() -> bool:
    """True when a person can be asked: stdin and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask on stderr; anything but y or yes is no. Call it only when `is_interactive()`."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _field(value: object) -> str:
    if value is None:
        return "-"
    return one_line(str(value))
