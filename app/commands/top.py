"""`stoker top`: the dashboard of running servers, or one sample of them as text, JSON or fields.

The only door to the TUI: `stoker serve` uses `open_dashboard`, `stoker logs` `open_log_view`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.client.chat_session import ChatSession
    from app.client.errors import ClientError
    from app.client.histograms import Histogram
    from app.client.metrics import MetricsSample
    from app.client.recording import Recording, RecordingWriter
    from app.client.replay import Replay
    from app.client.watched import Scraped, WatchedServer
    from app.errors import StokerError
    from app.watch_targets import WatchTarget


_LOGIN_VARIABLE = "STOKER_PROMETHEUS_LOGIN"
_THEMES = ("dark", "light", "16")


def top(
    servers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL|NAME",
            help="Servers by address or name. Default: $STOKER_URL, else those that "
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
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the API key. Default: $STOKER_API_KEY.")
    ] = None,
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
        typer.Option(help="dark, light, or 16 for the terminal's own. Default: $STOKER_THEME."),
    ] = None,
    ascii_only: Annotated[
        bool, typer.Option("--ascii", help="Draw with ASCII characters only (or $STOKER_ASCII).")
    ] = False,
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
    from app.errors import ExitCode, StokerError
    from app.ops.find_server import api_key_from

    _dress(theme, ascii_only)
    asked = {"--replay": replay, "--mock": mock, "--prometheus": prometheus}
    _check_options({"--json": as_json, "--plain": as_plain})
    _check_options({**asked, "naming servers": servers})
    _check_options({**asked, "--record": record})
    if steps is not None and record is None:
        raise StokerError("--steps needs --record FILE", exit_code=ExitCode.USAGE)
    form = "json" if as_json else "plain" if as_plain else "text"
    wants_text = once or as_json or as_plain or not has_screen()
    if replay is not None or mock:
        return _replay(replay, speed, form if wants_text else None)
    if prometheus is not None:
        found = _prometheus(prometheus, selector, prometheus_login_file, interval)
        return _print(found, form, True) if wants_text else _open(found, interval, read_only)
    targets, api_key = _targets(servers or ()), api_key_from(api_key_file)
    if record is not None:
        is_quiet = steps is not None or not has_screen()
        return _record(targets, api_key, record, interval, steps, is_quiet, read_only)
    if wants_text:
        return _print(_watched(targets, api_key, interval), form, len(targets) > 1)
    if len(targets) > 1:
        return _open(_watched(targets, api_key, interval), interval, read_only)
    open_dashboard(
        targets[0].url,
        api_key=api_key,
        interval_s=interval,
        log_path=targets[0].log_path,
        is_read_only=read_only,
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
) -> str:
    """Run the dashboard: "quit", or "server-gone" when `server_alive()` turned False."""
    from app.client.watched import watch_url
    from tui.app import run_dashboard

    server = watch_url(url, api_key=api_key, interval_s=interval_s)
    return run_dashboard(
        dataclasses.replace(server, log_path=log_path),
        interval_s=interval_s,
        server_alive=server_alive,
        is_read_only=is_read_only,
    )


def open_log_view(path: Path, title: str) -> bool:
    """Look at a log until the user quits; False when the view failed, which it has printed."""
    from tui.log_app import run_log_view

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
    from app.errors import ExitCode, StokerError

    if theme is not None:
        if theme not in _THEMES:
            raise StokerError(
                f"--theme {theme!r} is not known",
                hint=f"use {', '.join(_THEMES)}",
                exit_code=ExitCode.USAGE,
            )
        os.environ["STOKER_THEME"] = theme
    if ascii_only:
        os.environ["STOKER_ASCII"] = "1"


def _check_options(group: Mapping[str, object]) -> None:
    """At most one of them can be asked for."""
    from app.errors import ExitCode, StokerError

    given = [name for name, value in group.items() if value]
    if len(given) > 1:
        raise StokerError(f"choose one of {' and '.join(given)}", exit_code=ExitCode.USAGE)


def _targets(words: Sequence[str]) -> list[WatchTarget]:
    from app.watch_targets import find_targets

    return find_targets(words, os.environ.get("STOKER_URL"))


def _watched(
    targets: Sequence[WatchTarget], api_key: str | None, interval_s: float
) -> list[WatchedServer]:
    from app.client.watched import watch_url
    from app.watch_targets import SupervisedStates

    states = SupervisedStates()
    found = []
    for target in targets:
        one = watch_url(target.url, name=target.name, api_key=api_key, interval_s=interval_s)
        if target.is_managed:
            state = partial(states.of, target.name)
            one = dataclasses.replace(one, state=state, log_path=target.log_path)
        found.append(one)
    return found


def _open(
    servers: Sequence[WatchedServer],
    interval_s: float,
    is_read_only: bool,
    replay: Replay | None = None,
) -> int:
    """The dashboard of one server, or the table of several."""
    from app.errors import ExitCode
    from tui.app import run_dashboard, run_fleet

    if len(servers) == 1:
        run_dashboard(servers[0], interval_s=interval_s, is_read_only=is_read_only, replay=replay)
    else:
        run_fleet(servers, interval_s=interval_s, is_read_only=is_read_only, replay=replay)
    return ExitCode.OK


def _record(
    targets: Sequence[WatchTarget],
    api_key: str | None,
    path: Path,
    interval_s: float,
    steps: int | None,
    is_quiet: bool,
    is_read_only: bool,
) -> int:
    """Beside the dashboard, or without one until `steps` are done or the user ends it."""
    import asyncio

    from app.client.watched import record_steps, watch_recorded
    from app.errors import ExitCode
    from app.output import say

    with _recorder(targets, path, interval_s) as writer:
        plain = _watched(targets, api_key, interval_s)
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
    targets: Sequence[WatchTarget], path: Path, interval_s: float
) -> Iterator[RecordingWriter]:
    from app.client.errors import InvalidRecording
    from app.client.recording import RecordingWriter
    from app.errors import ExitCode, StokerError

    try:
        writer = RecordingWriter(path, [target.name for target in targets], interval_s)
    except InvalidRecording as error:
        raise StokerError(str(error), exit_code=ExitCode.USAGE) from error
    with contextlib.closing(writer):
        yield writer


def _replay(path: Path | None, speed: float, form: str | None) -> int:
    """A recording on the screen, or each of its steps on stdout; without a path the built-in."""
    from app.client.demo import DEMO
    from app.client.errors import InvalidRecording
    from app.client.recording import read_recording
    from app.client.replay import Replay
    from app.client.watched import watch_replay
    from app.errors import ExitCode, StokerError

    try:
        recording = read_recording(path or DEMO)
    except InvalidRecording as error:
        raise StokerError(str(error), exit_code=ExitCode.USAGE) from error
    if form is not None:
        return _print_steps(recording, form)
    replay = Replay(recording, speed=speed, is_looping=path is None)
    origin = f"replay of {path.name}" if path else "built-in demo"
    servers = watch_replay(replay, origin)
    return _open(servers, recording.interval_s / speed, True, replay)


def _prometheus(
    url: str, selector: str, login_file: Path | None, interval_s: float
) -> list[WatchedServer]:
    """Every engine that a Prometheus server scrapes."""
    import asyncio

    from app.client.credentials import read_key_file
    from app.client.errors import ClientError, InvalidKeyFile, InvalidUrl
    from app.client.prometheus import PrometheusServer
    from app.errors import ExitCode, StokerError

    try:
        login = read_key_file(login_file) if login_file else os.environ.get(_LOGIN_VARIABLE)
        server = PrometheusServer(url, selector=selector, login=login)
        instances = asyncio.run(server.instances())
    except (InvalidKeyFile, InvalidUrl) as error:
        raise StokerError(str(error), exit_code=ExitCode.USAGE) from error
    except ClientError as error:
        hint = f"put the token or USER:PASSWORD into {_LOGIN_VARIABLE}"
        raise _unreachable(error, hint) from error
    if not instances:
        asked = f" with {selector}" if selector else ""
        raise StokerError(
            f"{server.url} scrapes no inference server{asked}",
            hint=f"its targets: {server.url}/targets",
        )
    return [server.watch(instance, interval_s) for instance in instances]


def _unreachable(error: ClientError, locked_hint: str) -> StokerError:
    from app.client.absence import metrics_hint
    from app.client.errors import BadStatus, Unauthorized
    from app.errors import ExitCode, StokerError

    hint = "start a server with `stoker serve`, or name one: stoker top http://HOST:PORT"
    if isinstance(error, Unauthorized):
        hint = locked_hint
    elif isinstance(error, BadStatus):
        hint = metrics_hint(error.status) or hint
    return StokerError(str(error), hint=hint, exit_code=ExitCode.UNREACHABLE)


def _print(servers: Sequence[WatchedServer], form: str, is_list: bool) -> int:
    """One sample of each server; exit code 4 when none answers."""
    import asyncio

    from app.client.watched import scrape_all
    from app.errors import ExitCode

    found = asyncio.run(scrape_all(servers))
    if not is_list and found[0].error is not None:
        key_hint = "put the API key into STOKER_API_KEY, or into a file for --api-key-file"
        raise _unreachable(found[0].error, key_hint) from found[0].error
    if form == "text":
        typer.echo(_fleet_text(found) if is_list else _text(found[0]))
    else:
        _print_data(found, form, is_list)
    return ExitCode.OK if any(one.sample for one in found) else ExitCode.UNREACHABLE


def _print_data(found: Sequence[Scraped], form: str, is_list: bool) -> None:
    from app.client.sample_record import flat, scraped_record
    from app.output import print_json, print_plain

    records = [scraped_record(one, with_reasons=form == "json") for one in found]
    if form == "plain":
        print_plain(
            (*((one.server.name,) if is_list else ()), key, value)
            for one, record in zip(found, records, strict=True)
            for key, value in flat(record)
        )
    elif is_list:
        print_json("stoker.fleet", {"servers": records})
    else:
        print_json("stoker.metrics", records[0])


def _print_steps(recording: Recording, form: str) -> int:
    """What every recorded scrape says; as text only the newest of each server."""
    from app.client.replay import steps
    from app.client.sample_record import flat, step_records
    from app.errors import ExitCode
    from app.output import print_json, print_plain

    if form == "json":
        servers, documents = list(recording.servers), list(step_records(recording))
        print_json("stoker.replay", {"servers": servers, "steps": documents})
    elif form == "plain":
        for document in step_records(recording):
            where = (document.pop("time_s"), document.pop("server"))
            print_plain((*where, key, value) for key, value in flat(document))
    else:
        newest = {step.server: step for step in steps(recording) if step.sample}
        for step in newest.values():
            assert step.sample is not None
            typer.echo(_sample_text(recording.servers[step.server], step.sample))
    return ExitCode.OK


def _text(scraped: Scraped) -> str:
    assert scraped.sample is not None
    return _sample_text(scraped.server.url, scraped.sample)


def _fleet_text(found: Sequence[Scraped]) -> str:
    """A line per server."""
    from tui.fleet_text import table_text

    return table_text(found)


def _sample_text(url: str, sample: MetricsSample) -> str:
    from tui import formatting as fmt

    blocks = f"{fmt.count(sample.kv_blocks_used)} / {fmt.count(sample.kv_blocks_total)} blocks"
    rows = [
        ("server", "  ".join(part for part in (url, sample.engine, sample.model) if part)),
        ("requests", f"{fmt.count(sample.running)} running, {fmt.count(sample.waiting)} waiting"),
        ("KV cache", f"{fmt.percent(sample.kv_usage)} used, {blocks}"),
        ("cached", fmt.percent(sample.kv_cached_share)),
        ("prefix hits", fmt.percent(sample.prefix_hit_rate)),
        ("preemptions", fmt.count(sample.preemptions)),
        ("prompt", f"{fmt.count(sample.prompt_tokens)} tokens since start"),
        ("generation", f"{fmt.count(sample.generation_tokens)} tokens since start"),
        ("first token", _percentiles_text(sample.ttft)),
        ("inter-token", _percentiles_text(sample.itl)),
        ("end to end", _percentiles_text(sample.e2e)),
    ]
    return "\n".join(f"{label:<12}  {value}" for label, value in rows)


def _percentiles_text(histogram: Histogram | None) -> str:
    from app.client.sample_record import FRACTIONS
    from tui import formatting as fmt

    parts = []
    for name, fraction in FRACTIONS:
        found = histogram.percentile(fraction) if histogram else None
        parts.append(f"{name} {fmt.percentile(found):<9}")
    return f"{'  '.join(parts)}  n {fmt.count(histogram.n if histogram else None)}"
