"""`stoker serve`: reads the command line, gets the model, and shows what app.ops.serving does."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from app.command_line import PASS_THROUGH_SETTINGS, GroupedCommand, new_app

if TYPE_CHECKING:
    from app.ops.launch_specs import LaunchSpec, ServeRequest
    from app.ops.managed_server import ManagedServer
    from app.ops.supervisor import StopReport
    from logparse import Event

_FOLLOW_POLL_S = 0.2


class ServeCommand(GroupedCommand):
    """Adds MODEL and the engine's own flags to the help; they are read by the engine's parser."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """One line."""
        formatter.write_usage(ctx.command_path, "[MODEL] [OPTIONS] [ENGINE FLAGS]")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Our options, then the engine's."""
        from app.ops.launch_specs import engine_flag_help

        super().format_options(ctx, formatter)
        with formatter.section("Engine flags (spelled as in vLLM)"):
            formatter.write_dl(engine_flag_help())


app = new_app()


@app.command(cls=ServeCommand, context_settings=PASS_THROUGH_SETTINGS)
def serve(
    ctx: typer.Context,
    name: str = typer.Option(None, "--name", help="Name of this server in `stoker` commands."),
    engine: str = typer.Option("stoker", "--engine", help="Engine that runs the model: stoker."),
    no_tui: bool = typer.Option(False, "--no-tui", help="Plain lines, no dashboard."),
    startup_timeout: float = typer.Option(
        600.0, "--startup-timeout", min=1.0, metavar="SECONDS", help="Longest wait until ready."
    ),
    api_key_file: str = typer.Option(
        None, "--api-key-file", help="File with the key that /v1 requests must carry."
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
    """
    from app.errors import ExitCode, StokerError
    from app.ops.launch_specs import ENGINES, parse_serve_request

    if engine not in ENGINES:
        raise StokerError(
            f"no such engine: {engine}",
            hint=f"known engines: {', '.join(ENGINES)}",
            exit_code=ExitCode.USAGE,
        )
    request = parse_serve_request(ctx.args)
    spec = _prepare(request, _api_key(request, api_key_file))
    return _run(spec, name, request.served_name, startup_timeout, _wants_dashboard(no_tui))


def _api_key(request: ServeRequest, key_file: str | None) -> str | None:
    from app.client.credentials import find_api_key
    from app.client.errors import InvalidKeyFile
    from app.errors import ExitCode, StokerError
    from app.output import say

    if request.api_key:
        say("note: other users see --api-key in the process list; STOKER_API_KEY is private")
        return request.api_key
    try:
        return find_api_key(Path(key_file) if key_file else None, os.environ)
    except InvalidKeyFile as error:
        raise StokerError(str(error), exit_code=ExitCode.USAGE) from error


def _prepare(request: ServeRequest, api_key: str | None) -> LaunchSpec:
    """Everything that can be refused before a process is started."""
    from app.ops.child_process import require_engine_extra
    from app.ops.launch_specs import check_fits_model, stoker_spec
    from app.ops.model_store import ModelStore
    from app.ops.ports import require_free_port
    from app.paths import models_dir
    from app.progress import ModelProgress

    require_engine_extra()
    require_free_port(request.args.host, request.args.port)
    store = ModelStore(models_dir())
    builtin = store.builtin(request.model)
    path = Path(request.model).expanduser()
    if builtin is not None:
        with ModelProgress(request.model) as progress:
            path = store.ensure(builtin, progress)
    if path.is_dir():
        check_fits_model(request, path)
    is_local = builtin is not None or path.exists()
    model = str(path.absolute()) if is_local else request.model
    return stoker_spec(request, model, api_key)


def _run(
    spec: LaunchSpec, name: str | None, served_name: str, timeout_s: float, dashboard: bool
) -> int:
    from app.ops.log_sink import new_log_path
    from app.ops.managed_server import ManagedServer
    from app.ops.server_registry import ServerRegistry
    from app.ops.serving import ServingScreens, serve_until_stopped
    from app.paths import logs_dir, runtime_dir
    from app.start_view import StartView

    registry = ServerRegistry(runtime_dir() / "servers")
    chosen = registry.free_name(name, Path(served_name).name, spec.port)
    server = ManagedServer(
        spec, name=chosen, log_path=new_log_path(logs_dir(), chosen), registry=registry
    )
    with StartView(f"starting {spec.model} on {spec.url}") as view:

        def ready(running: ManagedServer) -> None:
            view.close()
            _print_ready(running)

        return serve_until_stopped(
            server,
            ServingScreens(
                starting=view.show,
                ready=ready,
                running=_show_dashboard if dashboard else _follow,
                stopping=lambda: _say_stopping(lambda: view.close("stopped")),
                stopped=lambda report: _print_stopped(report, spec),
            ),
            timeout_s,
        )


def _wants_dashboard(no_tui: bool) -> bool:
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return not no_tui and has_terminal and os.environ.get("TERM", "dumb") != "dumb"


def _show_dashboard(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
    from app.commands.top import open_dashboard

    open_dashboard(
        server.spec.url,
        api_key=next(iter(server.spec.secrets.values()), None),
        log_path=server.log_path,
        server_alive=should_go_on,
    )


def _follow(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
    """Print a line whenever the server's log has new throughput numbers."""
    while should_go_on():
        if _has_throughput(server.take_events()):
            print(_throughput_line(server), flush=True)
        time.sleep(_FOLLOW_POLL_S)


def _has_throughput(events: tuple[Event, ...]) -> bool:
    from logparse import FactFound

    wanted = ("prompt_tokens_per_s", "generation_tokens_per_s", "num_running", "num_waiting")
    return any(isinstance(event, FactFound) and event.key in wanted for event in events)


def _throughput_line(server: ManagedServer) -> str:
    facts = server.report().facts
    values = (
        ("prompt", facts.prompt_tokens_per_s, "tok/s"),
        ("generation", facts.generation_tokens_per_s, "tok/s"),
        ("running", facts.num_running, ""),
        ("waiting", facts.num_waiting, ""),
        ("KV cache", facts.kv_usage_percent, "%"),
    )
    shown = (
        f"{title} {value} {unit}".strip() for title, value, unit in values if value is not None
    )
    return f"{time.strftime('%H:%M:%S')}  {'  '.join(shown)}"


def _print_ready(server: ManagedServer) -> None:
    from app import output

    print(
        f"ready at {server.spec.url} ({server.elapsed_s():.1f} s), log {server.log_path}",
        flush=True,
    )
    address = "" if server.spec.port == 8000 else f" {server.spec.url}"
    output.say(f'next: echo "Hello" | stoker chat{address}    (Ctrl-C here stops the server)')


def _say_stopping(close_view: Callable[[], None]) -> None:
    from app import output

    close_view()
    output.say("stopping the server (Ctrl-C again to hurry)")


def _print_stopped(report: StopReport, spec: LaunchSpec) -> None:
    from app import output

    port = "free" if report.is_port_free else "still in use"
    processes = "1 process" if report.num_ended == 1 else f"{report.num_ended} processes"
    output.say(f"stopped: {processes} ended, port {spec.port} {port}")
