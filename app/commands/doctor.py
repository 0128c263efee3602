"""`stoker doctor`: gathers facts, or reads them from a file, and prints what the checks say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.command_line import GroupedCommand, new_app

if TYPE_CHECKING:
    from app.doctor.facts import DoctorFacts
    from app.doctor.report import Check

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "skipped": "dim"}

app = new_app()


@app.command(cls=GroupedCommand)
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Tab-separated lines on stdout.")] = False,
    only: Annotated[
        str | None,
        typer.Option(
            help="Some families: wheel, environment, platform, gpu, host, access, leftovers.",
            metavar="FAMILY,...",
        ),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Print the commands that help; nothing is run.")
    ] = False,
    python: Annotated[
        Path | None, typer.Option(help="Examine another environment.", metavar="PATH")
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(help="Another vLLM, looked up in pip's package index.", metavar="VERSION"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Ask the hub whether it may be got.", metavar="ORG/NAME")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The port to look at [8000].", min=1, max=65535)
    ] = None,
    host: Annotated[
        Path | None, typer.Option(help="Check the facts of another machine.", metavar="FACTS.json")
    ] = None,
    dump: Annotated[
        Path | None, typer.Option(help="Write the facts of this machine.", metavar="FACTS.json")
    ] = None,
) -> int:
    """Check what this machine can run. Exit code 1 when a check found a problem.

    \b
    Examples:
      stoker doctor
      stoker doctor --only gpu,host
      stoker doctor --python VENV/bin/python --fix
      stoker doctor --json | jq '.checks[] | select(.result != "ok")'
    """
    from app import output
    from app.doctor import report
    from app.errors import ExitCode

    _refuse_two_formats(as_json, plain, fix)
    families = report.chosen_families(only)
    facts = _facts(families, host, dump, python=python, port=port, model=model, vllm=vllm)
    checks = report.check_facts(facts, families)
    if as_json:
        output.print_json("stoker.doctor", report.as_json(checks, facts.name))
    elif plain:
        output.print_plain(
            (c.id, c.result.value, c.seen, c.todo, " && ".join(c.commands) or None) for c in checks
        )
    elif fix:
        for line in report.fix_lines(checks):
            print(line)
    else:
        _print_report(checks, facts.name)
    return ExitCode.NO if report.worst_result(checks) is report.Result.PROBLEM else ExitCode.OK


def _refuse_two_formats(as_json: bool, plain: bool, fix: bool) -> None:
    options = (("--json", as_json), ("--plain", plain), ("--fix", fix))
    given = [name for name, is_given in options if is_given]
    if len(given) > 1:
        from app.errors import UsageError

        raise UsageError(
            f"{' and '.join(given)} are different formats",
            hint="give one; --json holds the commands too",
        )


def _facts(
    families: tuple[str, ...],
    host: Path | None,
    dump: Path | None,
    *,
    python: Path | None,
    port: int | None,
    model: str | None,
    vllm: str | None,
) -> DoctorFacts:
    from app.doctor.facts_file import read_facts, write_facts
    from app.doctor.gather import DEFAULT_PORT, Question, gather
    from app.doctor.report import FAMILIES

    if host is not None:
        _refuse_with_host(dump=dump, python=python, port=port, model=model, vllm=vllm)
        return read_facts(host)
    # A dump holds everything: whoever reads it may ask for other families.
    asked = FAMILIES if dump else families
    facts = gather(
        Question(families=asked, python=python, port=port or DEFAULT_PORT, model=model, vllm=vllm)
    )
    if dump is not None:
        write_facts(facts, dump)
    return facts


def _refuse_with_host(**others: object) -> None:
    given = [f"--{name}" for name, value in others.items() if value is not None]
    if given:
        from app.errors import UsageError

        raise UsageError(
            f"--host reads facts from a file, {' and '.join(given)} would look at this machine",
            hint="leave one of them out",
        )


def _print_report(checks: tuple[Check, ...], host: str | None) -> None:
    from rich.text import Text

    from app import output
    from app.doctor.report import verdict, worst_result

    console = output.data_console()
    if host:
        console.print(Text(output.one_line(host), "bold"), soft_wrap=True)
    worst = worst_result(checks).value
    console.print(Text.assemble((f"{worst:<8}", _STYLES[worst]), verdict(checks)), soft_wrap=True)
    console.print()
    width = max(len(check.title) for check in checks)
    for check in checks:
        word = check.result.value
        line = Text.assemble((f"{word:<8}", _STYLES[word]), f"{check.title:<{width}}  {check.seen}")
        console.print(line, soft_wrap=True)
        for text in _below(check):
            indented = Text(f"{'':<{8 + width}}  {text}")
            console.print(indented, soft_wrap=True)


def _below(check: Check) -> list[str]:
    todo = [f"-> {check.todo}"] if check.todo else []
    commands = (f"$ {command}" for command in check.commands)
    return [*check.details, *todo, *commands, *(f"e.g. {example}" for example in check.examples)]
