"""`stoker ps`, `status`, `stop`, `restart`, `attach`: the servers that `stoker serve` started."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.shared_options import ApiKeyFile

if TYPE_CHECKING:
    from app.registry.server_registry import ServerRecord
    from app.supervise.server_state import SeenState
    from engine.machine.orphans import OrphanEngine

_LOAD_TIMEOUT_S = 2.0
_ONE = "Name, pid, :port or URL; not needed when one server runs."
_Json = Annotated[bool, typer.Option("--json", help="One JSON document; unknown is null.")]
_Plain = Annotated[bool, typer.Option("--plain", help="Tab-separated lines; unknown is -.")]
_Name = Annotated[str | None, typer.Argument(metavar="[SERVER]", help=_ONE)]


def ps(
    as_json: _Json = False,
    as_plain: _Plain = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Engines that no supervisor looks after.")
    ] = False,
) -> int:
    """List servers: starting, ready, idle, busy, asleep, stalled, draining, backing off, failed.

    \b
    Examples:
      stoker ps
      stoker ps --json | jq '.servers[].url'
      stoker ps --orphans
    """
    from app.output import require_one_form

    require_one_form(as_json, as_plain)
    return (_list_orphans if orphans else _list_servers)(as_json, as_plain)


def status(name: _Name = None, as_json: _Json = False, as_plain: _Plain = False) -> int:
    """Say how one server is; exit code 0 when it serves, 7 when it is stalled.

    A server that `stoker serve` did not start, named by its address, says itself how it is.

    \b
    Examples:
      stoker status
      stoker status tiny --json
      stoker status http://gpu-host:8000
    """
    from app.output import print_json, print_plain, require_one_form
    from app.supervise.server_state import describe, describe_address, examined_state
    from app.targets.servers import find_target

    require_one_form(as_json, as_plain)
    target = find_target(name, failed_too=True, must_run_here=True)
    if target.record is None:
        state, document = describe_address(target.url, target.api_key())
    else:
        state = examined_state(target.record)
        document = describe(target.record, state)
    if as_json:
        print_json("stoker.status", document)
    elif as_plain:
        print_plain(document.items())
    elif target.record is None:
        load = _load_rows(target.url, target.api_key()) if state.exit_code == 0 else []
        rows = [("server", f"{target.url}: {state.name}"), ("model", document["model"])]
        _print_rows([*rows, *load])
    else:
        _print_status(target.record, state, document, target.api_key())
    return state.exit_code


def _print_status(
    record: ServerRecord, state: SeenState, document: Mapping[str, object], api_key: str | None
) -> None:
    """A long cause of a failure comes below the rows."""
    from app.output import printable

    first, _, more = (state.detail or "").partition("\n")
    detail = f" ({first})" if first else ""
    supervisor = document["supervisor_pid"]
    rows = [
        ("server", f"{record.name}: {state.name}{detail}"),
        ("model", f"{record.model}, engine {record.engine}"),
        ("address", record.url),
        ("processes", f"server {document['pid'] or '-'}, supervisor {supervisor or '-'}"),
        ("up", _duration(document["up_s"])),
        *(_load_rows(record.url, api_key) if state.exit_code == 0 else []),
        ("restarts", str(record.num_restarts)),
        ("probes", record.status_url or record.status_socket or "-"),
        ("log", record.log_path + _log_note(record)),
    ]
    _print_rows(rows)
    if more:
        print(f"\n{printable(more)}")


def _load_rows(url: str, api_key: str | None) -> list[tuple[str, object]]:
    """What its counters say now, and what of that is worth a look; nothing where it has none."""
    from app.client import formatting
    from app.client.errors import ClientError
    from app.client.server import scrape_metrics
    from app.client.thresholds import findings, readings_of

    try:
        sample = scrape_metrics(url, api_key=api_key, timeout_s=_LOAD_TIMEOUT_S)
    except ClientError:
        return []
    requests = f"{formatting.count(sample.running)} running, {formatting.count(sample.waiting)}"
    load = f"{requests} waiting, KV cache {formatting.percent(sample.kv_usage)}"
    found = findings(readings_of(sample))
    return [("load", load), *(("", one.level.signed(one.reason)) for one in found)]


def _print_rows(rows: Sequence[tuple[str, object]]) -> None:
    from app.output import printable

    for label, text in rows:
        print(f"{label:<10}  {printable('-' if text is None else str(text))}")


def _log_note(record: ServerRecord) -> str:
    from engine.machine.sizes import human_bytes

    lost = f", {human_bytes(record.log_lost_bytes)} left out" if record.log_lost_bytes else ""
    return f"{lost}, incomplete: {record.log_error}" if record.log_error else lost


def stop(
    name: _Name = None,
    everything: Annotated[bool, typer.Option("--all", help="Every server of this user.")] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Engines that no supervisor looks after.")
    ] = False,
    now: Annotated[bool, typer.Option("--now", help="Cut running requests off.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --orphans: do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be stopped, stop nothing.")
    ] = False,
) -> int:
    """Stop servers: running requests end first, then every process; proves that nothing is left.

    \b
    Examples:
      stoker stop tiny
      stoker stop --all --now
      stoker stop --orphans
    """
    from app.errors import UsageError
    from app.output import one_line, say
    from app.registry.server_registry import open_registry
    from app.targets.servers import find_record

    if sum((name is not None, everything, orphans)) > 1:
        raise UsageError("choose one: a server, --all or --orphans")
    if orphans:
        return _list_orphans(False, False) if dry_run else _stop_orphans(yes)
    records = open_registry().all() if everything else (find_record(name, failed_too=True),)
    for record in records:
        if dry_run:
            where = f"{record.model} at {record.url}, pid {record.pid}"
            print(one_line(f"would stop {record.name}: {where}"))
        else:
            _stop(record, now)
            if record.serve_args:
                say(f"to serve it again: {serve_again(record)}")
    return 0


def restart(
    name: _Name = None,
    now: Annotated[bool, typer.Option("--now", help="Cut running requests off.")] = False,
) -> int:
    """Stop a server and serve the same again, in the background.

    \b
    Examples:
      stoker restart tiny
    """
    from app.cli import run
    from app.errors import StokerError, UsageError
    from app.targets.servers import find_record

    record = find_record(name, failed_too=True)
    has_key = "STOKER_API_KEY" in os.environ or "--api-key-file" in record.serve_args
    if record.needs_key and not has_key:
        raise UsageError(
            f"{record.name} was started with a key, which is kept nowhere",
            hint="set STOKER_API_KEY and try again",
        )
    if not record.serve_args:
        raise StokerError(f"how {record.name} was started is not known")
    if record.folder and not Path(record.folder).is_dir():
        raise StokerError(f"the folder where {record.name} was started is gone: {record.folder}")
    _stop(record, now)
    if record.folder:
        os.chdir(record.folder)
    return run(["serve", "--detach", "--name", record.name, *record.serve_args])


def attach(
    name: _Name = None,
    api_key_file: ApiKeyFile = None,
) -> int:
    """Open the dashboard of a server; leaving it does not stop the server.

    \b
    Examples:
      stoker attach tiny
    """
    from app.commands.top import has_screen, open_dashboard
    from app.errors import ExitCode, UsageError
    from app.output import say
    from app.targets.servers import find_record, find_target

    record = find_record(name)
    if not has_screen():
        raise UsageError("the dashboard needs a terminal", hint=f"stoker top {record.url} --once")
    end = open_dashboard(
        record.url,
        api_key=find_target(record.name).api_key(api_key_file),
        log_path=Path(record.log_path),
        server_alive=record.is_running,
    )
    if end == "server-gone":
        return ExitCode.ENGINE_DIED
    say(f"{record.name} runs on; `stoker stop {record.name}` ends it")
    return ExitCode.OK


def _list_servers(as_json: bool, as_plain: bool) -> int:
    from app.output import print_json, print_plain, say
    from app.registry.server_registry import open_registry
    from app.supervise.server_state import describe

    found = [describe(record) for record in open_registry().all()]
    if as_json:
        print_json("stoker.servers", {"servers": found})
        return 0
    keys = ("name", "state", "engine", "model", "url", "pid", "up_s", "detail", "restarts")
    rows = [[one[key] for key in keys] for one in found]
    if as_plain:
        print_plain(rows)
    elif rows:
        shown = [[*row[:6], _duration(row[6]), row[8], _first_line(row[7])] for row in rows]
        titles = ("NAME", "STATE", "ENGINE", "MODEL", "URL", "PID", "UP", "RESTARTS", "")
        _print_table(titles, shown)
    else:
        say("no server runs; `stoker serve` starts one")
    return 0


def _list_orphans(as_json: bool, as_plain: bool) -> int:
    from dataclasses import asdict

    from app.output import print_json, print_plain, say
    from engine.machine.orphans import find_orphans

    found = find_orphans()
    rows = [(one.pid, one.engine, one.program) for one in found]
    if as_json:
        print_json("stoker.orphans", {"orphans": [asdict(one) for one in found]})
    elif as_plain:
        print_plain(rows)
    elif rows:
        _print_table(("PID", "ENGINE", "PROGRAM"), rows)
        say("next: stoker stop --orphans")
    else:
        say("no engine without a supervisor")
    return 0


def _stop(record: ServerRecord, now: bool) -> None:
    from app.errors import ExitCode, StokerError
    from app.output import say
    from app.registry.server_registry import open_registry
    from app.registry.states import ServerState
    from app.supervise.stopping import stop_server
    from engine.machine.processes import is_stopped

    if record.state == ServerState.FAILED:
        open_registry().remove(record.name)
        say(f"{record.name} had failed; its record is removed")
        return
    if is_stopped(record.supervisor_pid):
        say(f"its stoker (pid {record.supervisor_pid}) was stopped by a signal; it is woken to end")
    if not now:
        say(f"stopping {record.name}; requests get up to {record.stop_s:g} s (--now: none)")
    has_supervisor = record.is_supervised()
    report = stop_server(record, now=now)
    if not report.is_clean:
        raise StokerError(
            f"{record.name} was stopped, but {report.remains(record.place)}",
            exit_code=ExitCode.LEFTOVERS_REMAIN,
        )
    processes = "1 process" if report.num_ended == 1 else f"{report.num_ended} processes"
    supervisor = " and its supervisor" if has_supervisor else ""
    say(f"stopped {record.name}: {processes}{supervisor} ended, {record.place} free")


def serve_again(record: ServerRecord, *flags: str) -> str:
    """The command that serves the same, with more flags; a key is given by its variable."""
    words = ["stoker", "serve", "--name", record.name, *flags, *record.serve_args]
    folder = record.folder
    place = f"cd {shlex.quote(folder)} && " if folder and folder != os.getcwd() else ""
    key = "STOKER_API_KEY=... " if record.needs_key else ""
    return f"{place}{key}{shlex.join(words)}"


def _stop_orphans(yes: bool) -> int:
    from app.errors import ExitCode, StokerError, UsageError
    from app.output import confirm, is_interactive, say
    from app.supervise.stopping import end_orphan
    from engine.machine.orphans import find_orphans

    found = find_orphans()
    if not found:
        say("no engine without a supervisor")
        return 0
    for one in found:
        say(_describe_orphan(one))
    if not yes and not is_interactive():
        raise UsageError("this ends processes", hint="add --yes")
    if not yes and not confirm(f"end {len(found)} of them, with their children?"):
        return ExitCode.NO
    left = [pid for one in found for pid in end_orphan(one)]
    if left:
        raise StokerError(
            f"processes {', '.join(map(str, left))} survived SIGKILL",
            exit_code=ExitCode.LEFTOVERS_REMAIN,
        )
    say(f"ended {len(found)}")
    return 0


def _describe_orphan(one: OrphanEngine) -> str:
    from app.output import one_line

    return one_line(f"  {one.program} (pid {one.pid}), engine {one.engine}")


def _print_table(titles: tuple[str, ...], rows: Sequence[Sequence[object]]) -> None:
    from app.output import one_line

    table = [
        list(titles),
        *[["-" if v is None else one_line(str(v)) for v in row] for row in rows],
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _duration(seconds: object) -> str:
    from app.client.formatting import UNKNOWN, uptime

    return uptime(seconds) if isinstance(seconds, float) else UNKNOWN


def _first_line(detail: object) -> str:
    return str(detail).partition("\n")[0] if detail else ""
