"""`stoker logs`: what a server's log says about its start, and why it failed.

Reads a file or standard input, prints text, JSON or tab-separated values. The exit code is the
answer: 0 ready, 1 failed, 2 usage, 3 not enough evidence.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

if TYPE_CHECKING:
    from logparse import LogReport

_EXAMPLE = "stoker logs server.log, or: vllm serve ... 2>&1 | stoker logs -"


def logs(
    file: Annotated[
        str | None,
        typer.Argument(help="The log; - reads standard input.", metavar="[FILE|-]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Key, tab, value on each line.")] = False,
) -> None:
    """Explain a server's log: capacity, the five phases, and the cause of a failure.

    Understands vLLM 0.6 to 0.30, Stoker's own engine, llama-server and SGLang. Exit code: 0 ready,
    1 failed, 2 usage, 3 not enough evidence (no server log, still starting, or cut off).
    """
    from app.errors import ExitCode, StokerError

    if as_json and plain:
        raise StokerError(
            "--json and --plain are two formats", hint="give one", exit_code=ExitCode.USAGE
        )
    report = _read(file)
    if as_json:
        _print_json(report)
    elif plain:
        _print_plain(report)
    else:
        _print_text(report)
    code = _exit_code(report)
    if code:
        raise typer.Exit(code)


def _read(file: str | None) -> LogReport:
    from app.errors import ExitCode, StokerError
    from logparse import parse_lines
    from logparse.source import decoded_lines

    try:
        with _open(file) as stream:
            return parse_lines(decoded_lines(stream))
    except OSError as error:
        raise StokerError(
            f"cannot read {file}: {error.strerror or error}",
            hint=_EXAMPLE,
            exit_code=ExitCode.USAGE,
        ) from error


@contextlib.contextmanager
def _open(file: str | None) -> Iterator[BinaryIO]:
    from app.errors import ExitCode, StokerError

    if file is not None and file != "-":
        with Path(file).open("rb") as stream:
            yield stream
        return
    if file is None and sys.stdin.isatty():
        raise StokerError("no log to read", hint=_EXAMPLE, exit_code=ExitCode.USAGE)
    yield sys.stdin.buffer


def _exit_code(report: LogReport) -> int:
    from app.errors import ExitCode
    from logparse import Outcome

    if report.outcome is Outcome.READY:
        return ExitCode.OK
    return ExitCode.NO if report.outcome is Outcome.FAILED else ExitCode.NOT_ENOUGH_EVIDENCE


def _print_text(report: LogReport) -> None:
    from app.output import printable
    from logparse import explain

    print(printable(explain(report).text()), end="")


def _print_json(report: LogReport) -> None:
    from app.output import print_json
    from logparse.document import SCHEMA, SCHEMA_VERSION, to_document

    print_json(SCHEMA, to_document(report), schema_version=SCHEMA_VERSION)


def _print_plain(report: LogReport) -> None:
    from app.output import print_plain
    from logparse import to_document

    print_plain(row for key, value in to_document(report).items() for row in _rows(key, value))


def _rows(key: str, value: Any) -> Iterator[tuple[str, object]]:
    """Flat rows: numbers of ranks on one line, records as key.1.field."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _rows(f"{key}.{name}", inner)
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for number, part in enumerate(value, start=1):
            yield from _rows(f"{key}.{number}", part)
    elif isinstance(value, list):
        yield key, ",".join(str(part) for part in value) or None
    else:
        yield key, value
