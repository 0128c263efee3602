"""`stoker doctor`: prints what the checks of app.doctor saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from app.command_line import GroupedCommand, new_app

if TYPE_CHECKING:
    from app.doctor.report import Check

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "skipped": "dim"}

app = new_app()


@app.command(cls=GroupedCommand)
def doctor(
    json: bool = typer.Option(False, "--json", help="One JSON document on stdout."),
    plain: bool = typer.Option(False, "--plain", help="Tab-separated lines on stdout."),
) -> int:
    """Check what this machine can run. Exit code 1 when a check found a problem.

    \b
    Examples:
      stoker doctor
      stoker doctor --json | jq '.checks[] | select(.result != "ok")'
    """
    from app import output
    from app.doctor.report import Result, as_json, run_checks, worst_result
    from app.errors import ExitCode

    checks = run_checks()
    if json:
        output.print_json("stoker.doctor", as_json(checks))
    elif plain:
        output.print_plain((c.id, c.result.value, c.seen, c.todo) for c in checks)
    else:
        _print_report(checks)
    return ExitCode.NO if worst_result(checks) is Result.PROBLEM else ExitCode.OK


def _print_report(checks: tuple[Check, ...]) -> None:
    from rich.text import Text

    from app import output

    console = output.data_console()
    width = max(len(check.title) for check in checks)
    for check in checks:
        word = check.result.value
        line = Text.assemble(
            (f"{word:<8}", _STYLES[word]), f"{check.title:<{width}}  {output.printable(check.seen)}"
        )
        console.print(line, soft_wrap=True)
        if check.todo:
            console.print(Text(f"{'':<{8 + width}}  -> {check.todo}"), soft_wrap=True)
