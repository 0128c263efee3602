"""`stoker logs`: what a server's log says about its start, and why it failed.

The exit code is the answer: 0 ready, 1 failed, 2 usage, 3 not enough evidence. Reads the command
line and the log; `app.views.logs` prints.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

if TYPE_CHECKING:
    from app.targets.logs import LogTarget
    from logparse import LogReport
    from logparse.report.line_meaning import ErrorLines, PhaseLines

_POLL_S = 0.25


def logs(
    log: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, - for standard input, or a server's name or pid.",
            metavar="[FILE|-|SERVER]...",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Tell what is new as it comes, until Ctrl-C."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document; with --follow, one a line.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Key, tab, value on each line.")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Three lines.")] = False,
    phase: Annotated[
        str | None,
        typer.Option(
            metavar="PHASE", help="Lines of one phase: its name, a part of it, or 1 to 5."
        ),
    ] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Only the lines that failed.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Two logs side by side: arguments, times, capacity.")
    ] = False,
    explain_line: Annotated[
        str | None, typer.Option(help="What this one line means.", metavar="TEXT")
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List the known lines.")] = False,
    as_tui: Annotated[
        bool, typer.Option("--tui", help="Look through the log: phases, filters, search.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The lines as they are; with -f also those that come.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=1, help="Only the last N lines, as they are.")
    ] = None,
) -> None:
    """Explain a server's log: the cause of a failure, capacity, and the five phases.

    Understands vLLM 0.6 to 0.30, Stoker's own engine, llama-server and SGLang. Exit code: 0 ready,
    1 failed, 2 usage, 3 not enough evidence (no server log, still starting, or cut off).
    """
    is_raw = raw or tail is not None
    modes = {
        "--raw" if raw else "--tail": is_raw,
        "--follow": follow and not is_raw,
        "--brief": brief,
        "--phase": phase is not None,
        "--errors": errors,
        "--compare": compare,
        "--explain-line": explain_line is not None,
        "--rules": rules,
        "--tui": as_tui,
    }
    _refuse_two("ways to show a log", [name for name, is_given in modes.items() if is_given])
    _refuse_two("formats", [n for n, given in (("--json", as_json), ("--plain", plain)) if given])
    form = "json" if as_json else "plain" if plain else "text"
    if rules or explain_line is not None:
        _show_table(explain_line, form)
        return
    targets = _targets(log or [])
    if is_raw:
        _print_raw(targets, form, tail, follow)
        return
    if as_tui:
        _look_through(targets, form)
        return
    if follow:
        code = _follow(targets, form)
    elif compare:
        code = _compare(targets, form)
    elif errors or phase is not None:
        code = _list_lines(targets, phase, form)
    else:
        code = _explain(targets, form, brief=brief)
    if code:
        raise typer.Exit(code)


def _print_raw(targets: list[LogTarget], form: str, tail: int | None, follow: bool) -> None:
    from app.views import raw_log

    target = _only(targets, "--raw")
    if form != "text":
        raise _usage(f"--raw has no --{form}", "leave one of them out")
    if follow and target.path is not None:
        batches = _growing_batches(target)
        # Ctrl-C comes while it waits, or while lines are printed; an unfinished one is shown then.
        with contextlib.suppress(KeyboardInterrupt, StopIteration):
            try:
                for lines in batches:
                    raw_log.print_lines(raw_log.last_lines(lines, tail))
                    tail = None  # of what was there; all that comes is shown
            except KeyboardInterrupt as interrupt:
                raw_log.print_lines(batches.throw(interrupt))
        return
    found = None
    if tail is not None and target.path is not None and target.path.is_file():
        found = raw_log.tail_of_file(target.path, tail)
    raw_log.print_lines(raw_log.last_lines(_lines(target), tail) if found is None else found)


def _refuse_two(what: str, given: list[str]) -> None:
    if len(given) > 1:
        raise _usage(f"{' and '.join(given)} are two {what}", "give one")


def _usage(message: str, hint: str) -> Exception:
    from app.errors import UsageError

    return UsageError(message, hint=hint)


def _targets(words: list[str]) -> list[LogTarget]:
    from app.targets.logs import find_logs

    return find_logs(words)


def _show_table(line: str | None, form: str) -> None:
    from app.views import logs as log_views

    if line is None:
        from logparse.rules.table import ALL_RULES

        log_views.show_rules(ALL_RULES, form=form)
        return
    from logparse.report.line_meaning import explain_line

    explained = explain_line(line)
    log_views.show_line(explained, form=form)
    if not explained.meanings:
        from app.errors import ExitCode

        raise typer.Exit(ExitCode.NOT_ENOUGH_EVIDENCE)


def _explain(targets: list[LogTarget], form: str, *, brief: bool) -> int:
    from app.views import logs as log_views

    named = [(target.title, _read(target)) for target in targets]
    if form == "json":
        log_views.show_json(named)
    elif form == "plain":
        log_views.show_plain(named)
    elif brief:
        log_views.show_brief(named)
    else:
        log_views.show_text(named)
    return _exit_code([report for _, report in named])


def _compare(targets: list[LogTarget], form: str) -> int:
    from app.views import logs as log_views
    from logparse.report.compare import compare

    if len(targets) != 2:
        raise _usage(f"--compare needs two logs, not {len(targets)}", "stoker logs --compare A B")
    left, right = _read(targets[0]), _read(targets[1])
    titles = (targets[0].title, targets[1].title)
    log_views.show_comparison(titles, compare(left, right), form=form)
    return _exit_code([left, right])


def _list_lines(targets: list[LogTarget], phase: str | None, form: str) -> int:
    from app.views import logs as log_views
    from logparse.report.explain import phase_time
    from logparse.report.line_meaning import ErrorLines, PhaseLines

    target = _only(targets, "--errors" if phase is None else "--phase")
    number = None if phase is None else _phase_number(phase)
    name = None if number is None else _phase_names()[number]
    lines = ErrorLines() if name is None else PhaseLines(name)
    report = _read(target, lines)
    if number is None:
        total = report.lines.errors
        heading = f"{total} line{'' if total == 1 else 's'} of level ERROR"
        head: dict[str, object] = {"errors": total}
        none = "no line that failed"
    else:
        found = report.phases[number]
        heading = f"{number + 1} {found.name}: {phase_time(found)}"
        head = {"phase": found.name, "seconds": found.seconds, "state": found.state}
        none = "no known line of this phase"
    log_views.show_lines(head, list(lines.lines.values()), form=form, heading=heading, none=none)
    return _exit_code([report])


def _phase_names() -> tuple[str, ...]:
    from logparse import PHASE_NAMES

    return PHASE_NAMES


def _phase_number(wanted: str) -> int:
    names = _phase_names()
    if wanted in ("1", "2", "3", "4", "5"):
        return int(wanted) - 1
    found = [number for number, name in enumerate(names) if wanted.casefold() in name]
    if len(found) != 1:
        raise _usage(f"no single phase is called {wanted!r}", f"one of: {', '.join(names)}")
    return found[0]


def _only(targets: list[LogTarget], option: str) -> LogTarget:
    if len(targets) != 1:
        raise _usage(f"{option} takes one log, not {len(targets)}", f"stoker logs {option} FILE")
    return targets[0]


def _read(target: LogTarget, lines: ErrorLines | PhaseLines | None = None) -> LogReport:
    from app.views.raw_log import reading_progress
    from logparse import LogParser
    from logparse.reading.restore import restored_lines

    parser = LogParser(tells_events=False)
    with reading_progress(target.path) as counted:
        for line in restored_lines(counted(_lines(target))):
            number = parser.num_lines + 1
            parser.feed(line)
            if lines is not None:
                lines.take(number, line)
    return parser.report()


def _lines(target: LogTarget) -> Iterator[str]:
    from app.targets.logs import EXAMPLE
    from logparse.reading.source import SourceError, decoded_lines

    try:
        with _open(target) as stream:
            yield from decoded_lines(stream)
    except OSError as error:
        reason = error.strerror or str(error)
        raise _usage(f"cannot read {target.title}: {reason}", EXAMPLE) from error
    except SourceError as error:
        raise _usage(f"cannot read {target.title}", str(error)) from error


@contextlib.contextmanager
def _open(target: LogTarget) -> Iterator[BinaryIO]:
    if target.path is None:
        yield sys.stdin.buffer
        return
    from logparse.reading.log_parts import open_log

    with open_log(target.path) as stream:
        yield stream


def _follow(targets: list[LogTarget], form: str) -> int:
    from app.views.logs import EventPrinter
    from logparse.live import LiveReader

    target = _only(targets, "--follow")
    if form == "plain":
        raise _usage("--follow has no --plain", "give --json for one document a line")
    reader, printer = LiveReader(), EventPrinter(as_json=form == "json")
    with contextlib.suppress(KeyboardInterrupt):
        for batch in [_lines(target)] if target.path is None else _growing_batches(target):
            for line in batch:
                printer.show(reader.feed(line))
            printer.show(reader.rest())
    printer.show(reader.rest())
    report = reader.report()
    printer.finish(report)
    return _exit_code([report])


def _growing_batches(target: LogTarget) -> Generator[Iterable[str], None, None]:
    """The lines that are there, then those of each look; the last one may be unfinished."""
    from app.targets.logs import EXAMPLE
    from logparse.reading.follow import FollowedFile
    from logparse.reading.log_parts import read_earlier_parts
    from logparse.reading.source import decoded_lines

    assert target.path is not None
    file = FollowedFile(target.path)
    try:
        file.open()
    except OSError as error:
        raise _usage(f"cannot read {target.title}: {error.strerror}", EXAMPLE) from error
    with file, read_earlier_parts(target.path) as earlier:
        try:
            yield itertools.chain(decoded_lines(earlier), file.poll())
            while True:
                time.sleep(_POLL_S)
                yield file.poll()
        except KeyboardInterrupt:
            yield file.rest()


def _look_through(targets: list[LogTarget], form: str) -> None:
    from app.commands.top import has_screen, open_log_view
    from app.targets.logs import EXAMPLE

    target = _only(targets, "--tui")
    if form != "text":
        raise _usage(f"--tui has no --{form}", "leave one of them out")
    if target.path is None:
        raise _usage("--tui cannot read standard input: it takes the keys from there",
                     "save it to a file: vllm serve ... 2>&1 | tee server.log")  # fmt: skip
    if not has_screen():
        raise _usage("--tui needs a terminal", f"stoker logs {target.title}")
    try:
        is_done = open_log_view(target.path, target.title)
    except OSError as error:
        reason = error.strerror or str(error)
        raise _usage(f"cannot read {target.title}: {reason}", EXAMPLE) from error
    if not is_done:
        raise typer.Exit(_failed())


def _failed() -> int:
    from app.errors import ExitCode

    return ExitCode.NO


def _exit_code(reports: list[LogReport]) -> int:
    """Of several logs, a failed one decides, then one without enough evidence."""
    from app.errors import ExitCode
    from logparse import Outcome

    outcomes = {report.outcome for report in reports}
    if Outcome.FAILED in outcomes:
        return ExitCode.NO
    return ExitCode.OK if outcomes == {Outcome.READY} else ExitCode.NOT_ENOUGH_EVIDENCE
