"""`stoker report`: one file for a bug report; what is in it is made by `app.doctor.bug_report`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer


def report(
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="The file, or - for standard output.", metavar="FILE"),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(help="A log, or a server's name; else that of the last start.", metavar="LOG"),
    ] = None,
    python: Annotated[
        Path | None, typer.Option(help="Report on another environment.", metavar="PATH")
    ] = None,
) -> None:
    """Write one file for a bug report: versions, doctor, the last log explained, configuration.

    Tokens, keys and passwords are masked. Read it before you publish it.
    """
    from app.doctor.bug_report import report_text, write_report
    from app.doctor.gather import Question, gather
    from app.doctor.report import check_facts
    from app.output import say

    facts = gather(Question(python=python))
    text = report_text(facts, check_facts(facts), _log_path(log), os.environ)
    if output == "-":
        print(text, end="")
        return
    path = Path(output or time.strftime("stoker-report-%Y%m%d-%H%M%S.md"))
    write_report(text, path)
    print(path)
    say("read it before you publish it: names of folders and models are in it")


def _log_path(wanted: str | None) -> Path | None:
    from app.doctor.bug_report import newest_log
    from app.paths import logs_path

    if wanted is None:
        return newest_log(logs_path())
    from app.targets.logs import find_logs

    found = find_logs([wanted])[0].path
    if found is None:
        from app.errors import UsageError

        raise UsageError(
            "--log takes a file or a server's name", hint="stoker report --log server.log"
        )
    return found
