"""`stoker top`: the dashboard of running servers, or one sample of them as text, JSON or fields.

The only door to the TUI: `stoker serve` uses `open_dashboard`, `stoker logs` `open_log_view`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.shared_options import ApiKeyFile, AsciiOnly

if TYPE_CHECKING:
    from app.client.chat.session import ChatSession
    from app.client.errors import ClientError
    from app.client.watch.recording import Recording, RecordingWriter
    from app.client.watch.replay import Replay
    from app.client.watch.watched import Scraped, WatchedServer
    from app.targets.servers import ServerTarget
    from tui.state.history import MetricHistory

_THEMES = ("dark", "light", "16")


def top(
    servers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVER",
            help="Servers by name, pid, :port or URL. Default: $STOKER_URL, else those that "
            "`stoker serve` runs, else http://127.0.0.1:8000.",
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=60.0, help="Seconds between two samples.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one sample instead of the dashboard.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One sample as a JSON document; unknown is null.")
    ] = False,
    as_plain: Annotated[
        bool, typer.Option("--plain", help="One sample as KEY<TAB>VALUE lines; unknown is -.")
    ] = False,
    api_key_file: ApiKeyFile = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="The dashboard cancels no request.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option(help="Write what the servers answer into this new file (.gz).")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="With --record: so many samples, no dashboard.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Show a recording instead.")] = None,
    speed: Annotated[
        float, typer.Option(min=0.1, max=1000.0, help="With --replay: times as fast.")
    ] = 1.0,
    mock: Annotated[bool, typer.Option("--mock", help="Show the built-in recording.")] = False,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask this Prometheus, not the servers.")
    ] = None,
    selector: Annotated[
        str, typer.Option(help="With --prometheus: label matchers, as 'job=\"vllm\"'.")
    ] = "",
    prometheus_login_file: Annotated[
        Path | None,
        typer.Option(
            help="File with Prometheus' token or USER:PASSWORD. Default: $STOKER_PROMETHEUS_LOGIN."
        ),
    ] = None,
    theme: Annotated[
        str | None,
        typer.Option(
            metavar="dark|light|16",
            help="Colours; 16 are the terminal's own. Default: $STOKER_THEME.",
        ),
    ] = None,
    ascii_only: AsciiOnly = False,
) -> int:
    """Watch running servers: cache, requests, tokens per second, latency; several in one table.

    Works with Stoker's engine, vLLM, and as far as they expose numbers SGLang and llama-server.
    Without a terminal it prints one sample and ends. The API key is sent to every server named.

    \b
    Examples:
      stoker top http://gpu-host:8000
      stoker top tiny http://gpu-1:8000 http://gpu-2:8000
      stoker top --record today.jsonl.gz
      stoker top --replay today.jsonl.gz --speed 10
      stoker top --prometheus http://monitor:9090 --selector 'job="vllm"'
    """
    from app.errors import ExitCode, UsageError
    from app.targets.servers import api_key_from, find_targets
    from app.targets.watched import watch_prometheus, watch_targets

    _dress(theme, ascii_only)
    asked = {"--replay": replay, "--mock": mock, "--prometheus": prometheus}
    _check_options({"--json": as_json, "--plain": as_plain})
    _check_options({**asked, "naming servers": servers})
    _check_options({**asked, "--record": record})
    if steps is not None and record is None:
        raise UsageError("--steps needs --record FILE")
    form = "json" if as_json else "plain" if as_plain else "text"
    wants_text = once or as_json or as_plain or not has_screen()
    if replay is not None or mock:
        return _replay(replay, speed, form if wants_text else None)
    if prometheus is not None:
        found = watch_prometheus(prometheus, selector, prometheus_login_file, interval)
        return _print(found, form, True) if wants_text else _open(found, interval, read_only)
    targets = find_targets(servers or ())
    api_key = api_key_from(api_key_file)
    if record is not None:
        is_quiet = steps is not None or not has_screen()
        return _record(targets, api_key, record, interval, steps, is_quiet, read_only)
    if wants_text:
        return _print(watch_targets(targets, api_key, interval), form, len(targets) > 1)
    if len(targets) > 1:
        return _open(watch_targets(targets, api_key, interval), interval, read_only)
    open_dashboard(
        targets[0].url,
        api_key=targets[0].api_key(api_key_file),
        interval_s=interval,
        log_path=targets[0].log_path,
        is_read_only=read_only,
        cause=watch_targets(targets, api_key, interval)[0].cause,
    )
    return ExitCode.OK


def has_screen() -> bool:
    """Whether this terminal can show a TUI."""
    # The screen is drawn on stderr.
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return is_terminal and os.environ.get("TERM", "dumb") != "dumb"


def open_dashboard(
    url: str,
    *,
    api_key: str | None = None,
    interval_s: float = 1.0,
    log_path: Path | None = None,
    server_alive: Callable[[], bool] | None = None,
    is_read_only: bool = False,
    history: MetricHistory | None = None,
    is_owner: bool = False,
    cause: Callable[[], str] | None = None,
) -> str:
    """Run the dashboard: "quit", or "server-gone" when `server_alive()` turned False.

    `is_owner`: quitting ends the server, so that with requests in it the user is asked, and may
    answer "detach". `history` goes on where an earlier dashboard ended. `cause` says why a server
    is away.
    """
    from app.client.watch.watched import watch_url
    from tui.app import run_dashboard

    server = watch_url(url, api_key=api_key, interval_s=interval_s)
    with _signals_as_exit_codes():
        return run_dashboard(
            dataclasses.replace(server, log_path=log_path, cause=cause or server.cause),
            interval_s=interval_s,
            server_alive=server_alive,
            is_read_only=is_read_only,
            history=history,
            is_owner=is_owner,
        )


@contextlib.contextmanager
def _signals_as_exit_codes() -> Iterator[None]:
    """A screen that a signal ended ends its command, once the terminal is restored."""
    from tui.theme import EndedBySignal

    try:
        yield
    except EndedBySignal as ended:
        raise typer.Exit(ended.exit_code) from ended


def new_history() -> MetricHistory:
    """What several dashboards of one server, one after the other, collect."""
    from tui.state.history import MetricHistory

    return MetricHistory()


def open_log_view(path: Path, title: str) -> bool:
    """Look at a log until the user quits; False when the view failed, which it has printed."""
    from tui.log_app import run_log_view

    with _signals_as_exit_codes():
        return run_log_view(path, title)


def open_chat(
    session: ChatSession,
    explain: Callable[[ClientError], str],
    *,
    theme: str | None = None,
    ascii_only: bool = False,
) -> int:
    """Chat until the user quits; the exit code, 1 when the screen failed (it has printed why)."""
    _dress(theme, ascii_only)
    from tui.chat_app import run_chat

    return run_chat(session, explain)


def _dress(theme: str | None, ascii_only: bool) -> None:
    """Set what every screen of this process reads, as --color does with NO_COLOR."""
    from app.errors import UsageError

    if theme is not None:
        if theme not in _THEMES:
            raise UsageError(f"--theme {theme!r} is not known", hint=f"use {', '.join(_THEMES)}")
        os.environ["STOKER_THEME"] = theme
    if ascii_only:
        os.environ["STOKER_ASCII"] = "1"


def _check_options(group: Mapping[str, object]) -> None:
    """At most one of them can be asked for."""
    from app.errors import UsageError

    given = [name for name, value in group.items() if value]
    if len(given) > 1:
        raise UsageError(f"choose one of {' and '.join(given)}")


def _open(
    servers: Sequence[WatchedServer],
    interval_s: float,
    is_read_only: bool,
    replay: Replay | None = None,
) -> int:
    """The dashboard of one server, or the table of several."""
    from app.errors import ExitCode
    from tui.app import run_dashboard, run_fleet

    with _signals_as_exit_codes():
        if len(servers) == 1:
            run_dashboard(
                servers[0], interval_s=interval_s, is_read_only=is_read_only, replay=replay
            )
        else:
            run_fleet(servers, interval_s=interval_s, is_read_only=is_read_only, replay=replay)
    return ExitCode.OK


def _record(
    targets: Sequence[ServerTarget],
    api_key: str | None,
    path: Path,
    interval_s: float,
    steps: int | None,
    is_quiet: bool,
    is_read_only: bool,
) -> int:
    """Beside the dashboard, or without one until `steps` are done or the user ends it."""
    import asyncio

    from app.client.watch.watched import record_steps, watch_recorded
    from app.errors import ExitCode
    from app.output import say
    from app.targets.watched import watch_targets

    with _recorder(targets, path, interval_s) as writer:
        plain = watch_targets(targets, api_key, interval_s)
        servers = [watch_recorded(one, writer, n, api_key) for n, one in enumerate(plain)]
        if not is_quiet:
            _open(servers, interval_s, is_read_only)
        else:
            say(f"recording {', '.join(one.name for one in servers)}; Ctrl-C ends it")
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(record_steps(servers, writer, interval_s, steps))
    full = "; it is full" if writer.is_full else ""
    say(f"{writer.num_samples} samples in {path}{full}; next: stoker top --replay {path}")
    return ExitCode.OK


@contextlib.contextmanager
def _recorder(
    targets: Sequence[ServerTarget], path: Path, interval_s: float
) -> Iterator[RecordingWriter]:
    from app.client.watch.recording import RecordingWriter
    from app.targets.server_errors import client_errors

    with client_errors():
        names = [target.name for target in targets]
        writer = RecordingWriter(path, names, interval_s, started_at_s=time.time())
    with contextlib.closing(writer):
        yield writer


def _replay(path: Path | None, speed: float, form: str | None) -> int:
    """A recording on the screen, or each of its steps on stdout; without a path the built-in."""
    from app.client.watch.recording import read_recording
    from app.client.watch.replay import DEMO, Replay
    from app.client.watch.watched import watch_replay
    from app.targets.server_errors import client_errors

    with client_errors():
        recording = read_recording(path or DEMO)
    if form is not None:
        return _print_steps(recording, form)
    replay = Replay(recording, speed=speed, is_looping=path is None)
    origin = f"replay of {path.name}" if path else "built-in demo"
    servers = watch_replay(replay, origin)
    return _open(servers, recording.interval_s / speed, True, replay)


def _print(servers: Sequence[WatchedServer], form: str, is_list: bool) -> int:
    """One sample of each server; exit code 4 when none answers."""
    import asyncio

    from app.client.watch.watched import scrape_all
    from app.errors import ExitCode
    from app.output import printable
    from app.targets.server_errors import explained
    from app.views.samples import print_samples_json, print_samples_plain

    found = asyncio.run(scrape_all(servers))
    if not is_list and (error := found[0].error) is not None:
        raise explained(error) from error
    if form == "json":
        print_samples_json(found, is_list)
    elif form == "plain":
        print_samples_plain(found, is_list)
    else:
        typer.echo(printable(_fleet_text(found) if is_list else _text(found[0])))
    return ExitCode.OK if any(one.sample for one in found) else ExitCode.UNREACHABLE


def _print_steps(recording: Recording, form: str) -> int:
    """What every recorded scrape says; as text only the newest of each server."""
    from app.client.watch.replay import steps
    from app.errors import ExitCode
    from app.output import printable
    from app.views.samples import print_steps_json, print_steps_plain, sample_text

    if form == "json":
        print_steps_json(recording)
    elif form == "plain":
        print_steps_plain(recording)
    else:
        newest = {step.server: step.sample for step in steps(recording) if step.sample}
        for server, sample in newest.items():
            typer.echo(printable(sample_text(recording.servers[server], sample)))
    return ExitCode.OK


def _text(scraped: Scraped) -> str:
    from app.views.samples import sample_text

    assert scraped.sample is not None
    return sample_text(scraped.server.url, scraped.sample)


def _fleet_text(found: Sequence[Scraped]) -> str:
    from tui.state.fleet import table_text

    return table_text(found)
