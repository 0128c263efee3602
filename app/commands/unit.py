"""`stoker unit`: reads a `serve` command line and prints or writes what deploys it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.command_line import PASS_THROUGH_SETTINGS, PassThroughCommand, new_app

if TYPE_CHECKING:
    from app.units.build import ServeLine, UnitChoices
    from app.units.kinds import KindChoices, WrittenUnit

app = new_app()


class UnitCommand(PassThroughCommand):
    """Options of `serve` and flags of the engine pass through to the line that is deployed."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, "KIND [OPTIONS] [MODEL] [OPTIONS OF serve]")


@app.command(cls=UnitCommand, context_settings=PASS_THROUGH_SETTINGS)
def unit(
    ctx: typer.Context,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="systemd, slurm, kubernetes, compose or all.")
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Write files, not to stdout."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check them with the tools that will read them.")
    ] = False,
    gpus: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="GPUs; default: what the flags need.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Container image, with its tag.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who runs the systemd service.")
    ] = None,
    user_unit: Annotated[
        bool, typer.Option("--user-unit", help="For `systemctl --user`, without root.")
    ] = False,
    job_time: Annotated[
        str, typer.Option(metavar="TIME", help="Slurm: the job's time limit.")
    ] = "08:00:00",
    cpus: Annotated[int, typer.Option(min=1, metavar="N", help="Slurm: processors.")] = 8,
    memory: Annotated[int, typer.Option(min=1, metavar="GIB", help="Slurm: memory.")] = 32,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Slurm: the partition.")
    ] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Slurm: the account.")] = None,
    gres: Annotated[
        str | None, typer.Option(metavar="GRES", help="Slurm: e.g. gpu:a100:1.")
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Slurm: a module to load; may be given again."),
    ] = None,
    scratch: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Slurm: folder for models and caches.")
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Kubernetes: nodes of one vLLM server.")
    ] = 1,
) -> int:
    """Write the files that deploy a server: a systemd unit, a Slurm job, Kubernetes or compose.

    MODEL and all options are those of `stoker serve`; @PROFILE too.

    \b
    Examples:
      stoker unit systemd smollm2-135m --port 8001
      stoker unit slurm google/gemma-3-4b-it --module miniforge --gres gpu:1 -o deploy
      stoker unit kubernetes --engine vllm Qwen/Qwen2.5-7B-Instruct --max-model-len 8192
      stoker unit all @coder --check
    """
    from app import __version__
    from app.errors import ExitCode
    from app.units.build import UnitChoices
    from app.units.kinds import KindChoices, kinds_called
    from app.units.slurm import SlurmChoices

    slurm = SlurmChoices(
        time=job_time,
        cpus=cpus,
        memory_gib=memory,
        partition=partition,
        account=account,
        gres=gres,
        modules=tuple(module or ()),
        scratch=scratch or SlurmChoices().scratch,
    )
    choices = KindChoices(slurm, user_unit, __version__)
    units = _units(ctx, kinds_called(kind), UnitChoices(gpus, image, user, nodes), choices)
    if output is not None:
        _write(units, Path(output))
    elif not check:
        _print(units)
    return _check(units) if check else ExitCode.OK


def _units(
    ctx: typer.Context, kinds: list[str], own: UnitChoices, choices: KindChoices
) -> list[WrittenUnit]:
    from app.launch.exposure import exposure_lines
    from app.output import say
    from app.units.build import deployment_of, require_reachable_model
    from app.units.kinds import CONTAINERS, KINDS

    line = _serve_line(ctx)
    for text in exposure_lines(line.request, None):
        say(f"note: {text}")
    if set(kinds) & set(CONTAINERS):
        require_reachable_model(line.request)
    deployment = deployment_of(line, own, _usual_start_s(line), choices.version)
    return [KINDS[kind](deployment, choices) for kind in kinds]


def _usual_start_s(line: ServeLine) -> float | None:
    from app.paths import START_TIMES, state_dir
    from app.watch.start_history import StartHistory

    typical = StartHistory(state_dir() / START_TIMES).typical(
        line.request.engine, line.request.model
    )
    return None if typical is None else typical.total_s


def _print(units: list[WrittenUnit]) -> None:
    """The files one after the other on stdout; the next commands want them in a folder."""
    from app.output import say

    files = [file for unit in units for file in unit.files]
    for file in files:
        if len(files) > 1:
            print(f"# ---- {file.path} (mode {file.mode:o})")
        print(file.text, end="" if file is files[-1] else "\n")
    say("next: the same command with -o FOLDER writes the files and says how they are used")


def _write(units: list[WrittenUnit], folder: Path) -> None:
    from shlex import quote

    from app.output import say
    from app.units.written import write_file

    places = [folder / unit.kind if len(units) > 1 else folder for unit in units]
    for unit, place in zip(units, places, strict=True):
        for file in unit.files:
            write_file(place, file)
            say(f"wrote {place / file.path}")
    for unit, place in zip(units, places, strict=True):
        say(f"next, for {unit.kind}:")
        for step in (f"cd {quote(str(place.absolute()))}", *unit.steps):
            say(f"  {step}")


def _check(units: list[WrittenUnit]) -> int:
    """Each tool's verdict a line; exit code 1 when one of them finds a fault."""
    import tempfile

    from app import output
    from app.errors import ExitCode
    from app.units.check import check_files
    from app.units.written import write_file

    with tempfile.TemporaryDirectory(prefix="stoker-unit-") as folder:
        results = []
        for unit in units:
            place = Path(folder) / unit.kind
            for file in unit.files:
                write_file(place, file)
            results += check_files(place, [file.path for file in unit.files])
    for result in results:
        print(output.printable(result.text))
    return ExitCode.NO if any(result.is_good is False for result in results) else ExitCode.OK


def _serve_line(ctx: typer.Context) -> ServeLine:
    """What stands behind our own options, read as `stoker serve` reads it."""
    import os

    from app.command_line import build_command
    from app.commands import serve
    from app.launch.launch_specs import engine_called, parse_serve_request, without_api_key
    from app.settings.options import settings_for
    from app.settings.sources import read_settings
    from app.units.build import ServeLine

    command = build_command(serve.app)
    chosen = settings_for(command, ("serve",), ctx.args, read_settings(os.environ))
    inner = command.make_context(
        "stoker serve", list(chosen.args), default_map=chosen.default_map, obj=chosen
    )
    words = serve.words_with_settings(inner, inner.args)
    engine, values = engine_called(inner.params["engine"]), inner.params
    release = serve.vllm_release(engine, values["vllm_version"], values["engine_python"])
    request = parse_serve_request(words, engine, release)
    defaults = {param.name: param.default for param in command.params}
    options = {key: value for key, value in inner.params.items() if value != defaults.get(key)}
    return ServeLine(request, options, without_api_key(words))
