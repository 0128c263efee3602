"""`stoker plan`: reads the command line, asks app.planning.plan, prints through app.views.plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.command_line import PASS_THROUGH_SETTINGS, PassThroughCommand, new_app
from app.commands.plan_options import free_ram, planned_device, planned_request, sizes
from app.commands.shared_options import AsJson
from engine.machine.sizes import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.errors import UsageError
    from app.planning.gpu_catalogue import PlannedGpu
    from app.planning.joint_plan import JointStart
    from app.planning.memory_estimates import Calibration
    from app.planning.plan_models import PlannedModel
    from app.planning.plan_request import PlanRequest

_BATCHES = "1,3,37,255,300,512,513,2048"
_MEMORY = "Memory"
_PARALLEL = "Parallelism"
_STEPS = "Scheduling and graphs"
_ASSUMED = "Assumptions (each is estimated where it is not given)"


_BETWEEN_SERVERS = "+"
_OF_ALL_SERVERS = f"{__name__}.servers"


class PlanCommand(PassThroughCommand):
    """`A --max-model-len 4096 + B` is two servers, each with the options that stand beside it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The first server's, which keeps the options of all."""
        groups = _split(args)
        if len(groups) > 1 and not all(groups):
            raise _missing_beside_plus()
        make = super().make_context
        contexts = [make(info_name, group, parent, **extra) for group in groups]
        contexts[0].meta[_OF_ALL_SERVERS] = contexts
        return contexts[0]


def _split(args: list[str]) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    for word in args:
        if word == _BETWEEN_SERVERS:
            groups.append([])
        else:
            groups[-1].append(word)
    return groups


def _missing_beside_plus() -> UsageError:
    from app.errors import UsageError

    return UsageError("a model is missing beside +", hint="stoker plan A --max-model-len 4096 + B")


app = new_app()


@app.command(cls=PlanCommand, context_settings=PASS_THROUGH_SETTINGS)
def plan(
    ctx: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="A folder, a .gguf file, a Hugging Face id, or a built-in shape; several are "
            "planned on one device.",
            metavar="[MODEL|SHAPE [+ MODEL ...]] | verify LOG|SERVER [MODEL]",
        ),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(
            metavar="GPU|SIZE|auto|cpu",
            help="A card (rtx4090, h100), its memory (24GiB), auto, or cpu.",
        ),
    ] = "auto",
    engine: Annotated[
        str | None,
        typer.Option(metavar="vllm|stoker|llama.cpp", help="By default what suits MODEL."),
    ] = None,
    shapes: Annotated[bool, typer.Option("--shapes", help="List the built-in shapes.")] = False,
    gpus: Annotated[bool, typer.Option("--gpus", help="List the GPUs that are known.")] = False,
    vllm_version: Annotated[
        str | None,
        typer.Option(
            help="Plan for this release; without, the newest, with the spread of those in use.",
            metavar="X.Y.Z",
        ),
    ] = None,
    from_log: Annotated[
        str | None,
        typer.Option(help="Compare with what this start logged; - for stdin.", metavar="FILE"),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Earlier starts: planned, measured, error.")
    ] = False,
    no_calibration: Annotated[
        bool, typer.Option("--no-calibration", help="Leave earlier starts out of the estimates.")
    ] = False,
    as_json: AsJson = False,
    plain: Annotated[bool, typer.Option("--plain", help="Name, tab, value on each line.")] = False,
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(help="Share of the memory.", show_default="0.92", rich_help_panel=_MEMORY),
    ] = None,
    kv_cache_memory_bytes: Annotated[
        str | None,
        typer.Option(help="KV cache of a GPU, e.g. 2G.", metavar="SIZE", rich_help_panel=_MEMORY),
    ] = None,
    max_model_len: Annotated[
        str | None,
        typer.Option(
            help="Longest request in tokens, or auto.", metavar="N", rich_help_panel=_MEMORY
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|bfloat16|float16|fp8",
            help="Number format of the KV cache.",
            rich_help_panel=_MEMORY,
        ),
    ] = "auto",
    quantization: Annotated[
        str | None,
        typer.Option(
            metavar="fp8|int8|int4",
            help="Quantise while loading: fp8, on a CPU int8 or int4.",
            rich_help_panel=_MEMORY,
        ),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a block.", rich_help_panel=_MEMORY)
    ] = None,
    enable_lora: Annotated[
        bool,
        typer.Option("--enable-lora", help="Room for LoRA adapters.", rich_help_panel=_MEMORY),
    ] = False,
    max_loras: Annotated[
        int, typer.Option(min=1, help="Adapters in one step.", rich_help_panel=_MEMORY)
    ] = 1,
    max_lora_rank: Annotated[
        int, typer.Option(min=1, help="Highest rank of an adapter.", rich_help_panel=_MEMORY)
    ] = 16,
    request_len: Annotated[
        str,
        typer.Option(
            metavar="N,...",
            help="How many requests of these lengths fit, e.g. 2k,8k.",
            rich_help_panel=_MEMORY,
        ),
    ] = "2048,8192",
    images: Annotated[
        int,
        typer.Option(
            min=0,
            help="Images of each of these requests, beside its text.",
            rich_help_panel=_MEMORY,
        ),
    ] = 0,
    tensor_parallel_size: Annotated[
        int,
        typer.Option(
            "--tensor-parallel-size",
            "--tp",
            "-tp",
            min=1,
            help="GPUs that share each layer.",
            rich_help_panel=_PARALLEL,
        ),
    ] = 1,
    pipeline_parallel_size: Annotated[
        int,
        typer.Option(
            "--pipeline-parallel-size",
            "--pp",
            "-pp",
            min=1,
            help="Stages of layers.",
            rich_help_panel=_PARALLEL,
        ),
    ] = 1,
    data_parallel_size: Annotated[
        int,
        typer.Option(
            "--data-parallel-size",
            "--dp",
            "-dp",
            min=1,
            help="Copies of the model.",
            rich_help_panel=_PARALLEL,
        ),
    ] = 1,
    nnodes: Annotated[
        int,
        typer.Option(
            "--nnodes",
            "-n",
            min=1,
            metavar="N",
            help="Machines that the ranks are spread over.",
            rich_help_panel=_PARALLEL,
        ),
    ] = 1,
    api_server_count: Annotated[
        int | None,
        typer.Option(
            "--api-server-count",
            "-asc",
            min=1,
            help="API server processes; as many as copies if it is left out.",
            rich_help_panel=_PARALLEL,
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Requests that run at once.", rich_help_panel=_STEPS)
    ] = None,
    max_num_batched_tokens: Annotated[
        str | None,
        typer.Option(help="Tokens of one step.", metavar="N", rich_help_panel=_STEPS),
    ] = None,
    num_speculative_tokens: Annotated[
        int, typer.Option(min=0, help="Draft tokens of a step.", rich_help_panel=_STEPS)
    ] = 0,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="No CUDA graphs.", rich_help_panel=_STEPS)
    ] = False,
    batch: Annotated[
        str,
        typer.Option(
            metavar="N,...", help="Show what these batch sizes pad to.", rich_help_panel=_STEPS
        ),
    ] = _BATCHES,
    non_torch_gib: Annotated[
        float | None,
        typer.Option(min=0.0, help="CUDA context, NCCL, allocator.", rich_help_panel=_ASSUMED),
    ] = None,
    peak_gib: Annotated[
        float | None,
        typer.Option(min=0.0, help="Activations of the profile run.", rich_help_panel=_ASSUMED),
    ] = None,
    graph_gib: Annotated[
        float | None, typer.Option(min=0.0, help="CUDA graphs.", rich_help_panel=_ASSUMED)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, metavar="N", help="Of several servers: where this one listens."
        ),
    ] = None,
) -> int:
    """Predict how much of a model fits: memory, KV cache, concurrency, processes, CUDA graphs.

    Of several models it says how they share one device, with options for all or, around a +, for
    each, and with which commands they are started.

    Nothing is loaded or started. Exit code 1 when it does not fit; then it says what would.
    Flags of `stoker serve` on which no plan depends are passed over, which is said.

    \b
    Examples:
      stoker plan llama-3.1-8b --gpu 24GiB --max-model-len 8192
      stoker plan Qwen/Qwen3-32B --gpu h100 --tp 2 --kv-cache-dtype fp8
      stoker plan model.gguf --gpu rtx4090
      stoker plan gemma-3-270m qwen3-0.6b --gpu 8GiB --max-model-len 2048
      stoker plan qwen3-4b --max-model-len 8k + qwen3-0.6b --port 8001 --gpu rtx4090
      stoker plan llama-3.1-8b --gpu 24GiB --from-log server.log
      stoker plan verify smollm2-135m     (the last start of that server)
      stoker plan --history
    """
    from app.errors import UsageError
    from app.planning.plan_models import find_planned_model

    if shapes:
        return _print_shapes(as_json)
    if gpus:
        return _print_gpus(as_json)
    servers: list[typer.Context] = ctx.meta[_OF_ALL_SERVERS]
    if len(servers) > 1:
        return _plan_together(servers)
    words = _models(ctx)
    if words[:1] == ["verify"]:
        from_log, words = _log_to_verify(words, from_log)
    if len(words) > 1:
        return _plan_together(servers)
    model = words[0] if words else None
    if history:
        return _print_history(model, as_json, plain)
    if model is None and from_log is not None:
        model = _model_of_start(from_log)
    if model is None and from_log is None:
        raise UsageError(
            "MODEL is missing",
            hint="`stoker plan --shapes` lists what can be planned without files",
        )
    found = None if model is None else find_planned_model(model)
    device = None if from_log is not None and gpu == "auto" else planned_device(gpu)
    free_ram_bytes = free_ram() if device is None and from_log is None else 0
    request = planned_request(ctx.params, found, device, free_ram_bytes)
    if from_log is not None:
        return _compare(from_log, found, request, as_json, plain)
    assert found is not None
    if not no_calibration:
        request = _calibrated(request, found)
    lengths, batches = sizes("--request-len", request_len), sizes("--batch", batch)
    return _print_plan(
        found, request, lengths, batches, num_images=images, as_json=as_json, plain=plain
    )


def _models(ctx: typer.Context) -> list[str]:
    """The words that are no flags; those of `serve` are read as that command reads them."""
    from app.command_line import build_command
    from app.commands import serve
    from app.launch.engines import VLLM
    from app.launch.launch_specs import models_of_plan
    from app.output import say
    from app.planning.vllm_versions import parse_version

    words = [*(ctx.params["what"] or []), *ctx.args]
    if not any(word.startswith("-") and word != "-" for word in words):
        return words
    inner = build_command(serve.app).make_context("stoker serve", words)
    sources = {name: inner.get_parameter_source(name) for name in inner.params}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    text, engine = ctx.params["vllm_version"], ctx.params["engine"] or VLLM
    options = [name for param in ctx.command.params for name in param.opts]
    version = None if text is None else parse_version(text)
    models, flags = models_of_plan(inner.args, engine, version, options)
    passed = [*(f"--{name.replace('_', '-')}" for name in given), *flags]
    if passed:
        say(f"note: not part of a plan: {', '.join(sorted(passed))}")
    return models


def _calibrated(request: PlanRequest, model: PlannedModel) -> PlanRequest:
    import dataclasses

    return dataclasses.replace(request, calibration=_calibration(model, request))


def _plan_together(servers: Sequence[typer.Context]) -> int:
    """Several models on one device."""
    from app import output
    from app.errors import ExitCode
    from app.planning.joint_plan import share_out
    from app.views.joint_plan import joint_document, joint_rows, joint_text

    device = planned_device(_one_device(servers))
    free_ram_bytes = free_ram() if device is None else 0
    starts = [one for ctx in servers for one in _joint_starts(ctx, device, free_ram_bytes)]
    joint = share_out(starts)
    if any(ctx.params["as_json"] for ctx in servers):
        lengths = sizes("--request-len", servers[0].params["request_len"])
        output.print_json("stoker.plan.joint", joint_document(joint, lengths))
    elif any(ctx.params["plain"] for ctx in servers):
        output.print_plain(joint_rows(joint))
    else:
        print(joint_text(joint))
    if device is not None and joint.shortfall is None and device.used_bytes > joint.left_bytes:
        held = human_bytes(device.used_bytes)
        output.say(f"warning: {held} of {device.name} are held by others now; a start would refuse")
    return ExitCode.OK if joint.shortfall is None else ExitCode.NO


def _joint_starts(
    ctx: typer.Context, device: PlannedGpu | None, free_ram_bytes: int
) -> list[JointStart]:
    """The servers of one side of a +, which have their options in common."""
    from app.errors import UsageError
    from app.planning.joint_plan import JointStart
    from app.planning.plan_models import find_planned_model

    options, names = ctx.params, _models(ctx)
    if options["from_log"] is not None or options["history"] or names[:1] == ["verify"]:
        raise UsageError("logs and earlier starts are looked at one model at a time")
    if options["images"]:
        raise UsageError("--images is for one model at a time")
    if not names:
        raise _missing_beside_plus()
    if len(names) > 1 and options["port"] is not None:
        raise UsageError("--port is one server's", hint="put a + between the servers")
    starts = []
    for name in names:
        found = find_planned_model(name)
        request = planned_request(options, found, device, free_ram_bytes)
        if not options["no_calibration"]:
            request = _calibrated(request, found)
        has_share = options["gpu_memory_utilization"] is not None
        starts.append(JointStart(found, request, has_share, options["port"]))
    return starts


def _one_device(servers: Sequence[typer.Context]) -> str:
    """--gpu, which may stand beside any of them."""
    from app.errors import UsageError

    given = {ctx.params["gpu"] for ctx in servers} - {"auto"}
    if len(given) > 1:
        raise UsageError(f"one device is shared out, and --gpu says {' and '.join(sorted(given))}")
    return str(next(iter(given), "auto"))


def _print_plan(
    model: PlannedModel,
    request: PlanRequest,
    lengths: tuple[int, ...],
    batches: tuple[int, ...],
    *,
    num_images: int,
    as_json: bool,
    plain: bool,
) -> int:
    from app import output
    from app.errors import ExitCode
    from app.planning.plan import make_plan
    from app.planning.plan_answers import answer
    from app.views.plan import plain_rows, plan_document, plan_text

    made = make_plan(model.shape, model.weights, request)
    answers = answer(made, model, lengths, num_images)
    if as_json:
        output.print_json("stoker.plan", plan_document(made, answers, batches))
    elif plain:
        output.print_plain(plain_rows(plan_document(made, answers, batches)))
    else:
        print(plan_text(made, answers, batches))
    gpu = request.gpu
    if gpu is not None and gpu.memory_bytes - gpu.used_bytes < made.requested_bytes:
        held = human_bytes(gpu.used_bytes)
        output.say(f"warning: {held} of {gpu.name} are held by others now; a start would refuse")
    return ExitCode.OK if made.shortfall is None else ExitCode.NO


def _compare(
    path: str, model: PlannedModel | None, request: PlanRequest, as_json: bool, plain: bool
) -> int:
    from app import output
    from app.errors import ExitCode
    from app.planning.plan_comparison import compare_log
    from app.views.plan import comparison_rows, comparison_text

    values = compare_log(path, model, request)
    rows = comparison_rows(values)
    agrees = all(value.agrees for value in values if not value.is_estimate)
    if as_json:
        output.print_json("stoker.plan.comparison", {"agrees": agrees, "values": rows})
    elif plain:
        output.print_plain(list(row.values()) for row in rows)
    else:
        print(comparison_text(values))
    return ExitCode.OK if agrees else ExitCode.NO


def _log_to_verify(words: list[str], from_log: str | None) -> tuple[str, list[str]]:
    """The path of the log that `verify` names, and the words that follow."""
    from app.errors import UsageError
    from app.targets.logs import find_logs

    if len(words) < 2 or from_log is not None:
        raise UsageError(
            "`stoker plan verify` takes one log, or the name of a server",
            hint="stoker plan verify server.log",
        )
    (target,) = find_logs(words[1:2])
    return str(target.path or "-"), words[2:]


def _model_of_start(log: str) -> str | None:
    """The model of a start that is in the ledger; a log alone may name no shape that is known."""
    from pathlib import Path

    from app.planning.memory_ledger import open_ledger

    path = str(Path(log).absolute())
    starts = [entry for entry in open_ledger().read()[0] if entry.log_path == path]
    return starts[-1].model_path if starts else None


def _calibration(model: PlannedModel, request: PlanRequest) -> Calibration | None:
    """What earlier starts teach; a ledger that cannot be read is no reason not to plan."""
    from app.errors import StokerError
    from app.planning.calibration import calibrate
    from app.planning.memory_ledger import open_ledger

    try:
        return calibrate(open_ledger().read()[0], model.shape, request)
    except (StokerError, OSError):
        return None


def _print_history(model: str | None, as_json: bool, plain: bool) -> int:
    from app import output
    from app.planning.calibration import shape_key
    from app.planning.memory_ledger import open_ledger
    from app.planning.plan_models import find_planned_model
    from app.views.history import history_document, history_rows, history_text

    entries, num_damaged = open_ledger().read()
    if model is not None:
        wanted = shape_key(find_planned_model(model).shape)
        entries = tuple(entry for entry in entries if entry.shape == wanted)
    if as_json:
        document = {"damaged_lines": num_damaged, "starts": history_document(entries)}
        output.print_json("stoker.plan.history", document)
    elif plain:
        output.print_plain(history_rows(entries))
    elif entries:
        print(history_text(entries))
    else:
        output.say("no start is recorded; `stoker serve` records each one")
    if num_damaged:
        output.say(f"warning: {num_damaged} damaged line(s) of the ledger were passed over")
    return 0


def _print_shapes(as_json: bool) -> int:
    from app import output
    from app.errors import ExitCode
    from app.planning.builtin_shapes import BUILTIN_SHAPES

    if as_json:
        names = {name: shape.hub_id for name, shape in BUILTIN_SHAPES.items()}
        output.print_json("stoker.plan.shapes", {"shapes": names})
    else:
        output.print_plain((name, shape.hub_id) for name, shape in BUILTIN_SHAPES.items())
    return ExitCode.OK


def _print_gpus(as_json: bool) -> int:
    from app import output
    from app.errors import ExitCode
    from app.planning.gpu_catalogue import known_gpus

    known = list(known_gpus())
    if as_json:
        sizes = {gpu.name: gpu.memory_bytes for gpu in known}
        output.print_json("stoker.plan.gpus", {"memory_bytes": sizes})
    else:
        output.print_plain((gpu.name, human_bytes(gpu.memory_bytes)) for gpu in known)
    return ExitCode.OK
