"""How `stoker plan` prints: text that resembles what the engine will log, JSON, plain lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from app.launch.engines import LLAMA_CPP, VLLM
from app.output import printable
from app.planning.mixed_cache import is_mixed
from app.planning.plan import MemoryPlan, process_bytes
from app.planning.plan_answers import Answers
from app.planning.process_layout import processes
from app.planning.vllm_versions import NEWEST
from engine.cuda_graph_sizes import describe_dispatch
from engine.kv_sizing import capacity_line
from engine.machine.sizes import GIB, MIB

if TYPE_CHECKING:
    from app.planning.log_comparison import ComparedValue

_BAR_WIDTH = 60


def plan_text(plan: MemoryPlan, answers: Answers, batches: Sequence[int]) -> str:
    lines = [*_verdict_lines(plan, answers), "", *_model_lines(plan), *_image_lines(answers)]
    lines += ["", *_memory_lines(plan)]
    lines += ["", *_process_lines(plan)]
    lines += ["", *_scheduler_lines(plan, batches), "", *_answer_lines(plan, answers)]
    return printable("\n".join(lines))


def _verdict_lines(plan: MemoryPlan, answers: Answers) -> Iterator[str]:
    if plan.shortfall is not None:
        yield f"It does not fit. {plan.shortfall}"
        yield f"  what would, each alone: {'; or '.join(answers.advice)}"
        return
    worst = "" if plan.fits_at_worst else " At the high end of the estimates it would not."
    yield f"It fits.{worst}"
    capacity, length = plan.capacity, plan.max_model_len
    yield (
        f"  room for {capacity.num_tokens:,} tokens: {capacity.max_concurrency:.2f} requests of "
        f"{length:,} tokens at once"
    )


def _model_lines(plan: MemoryPlan) -> Iterator[str]:
    shape, weights = plan.shape, plan.weights
    count = weights.parameters
    size = f"{count:,} parameters" if count is not None else f"{shape.quantization} checkpoint"
    active = weights.active_parameters(shape.experts)
    if shape.experts is not None and active is not None:
        size += f", {active:,} active for a token"
    yield f"{shape.name}: {shape.architecture}, {size} ({weights.basis})"
    parts = (f"{name} {_gib(size)} GiB" for name, size in weights.bytes_by_dtype().items())
    tied = "; embeddings tied" if shape.tie_word_embeddings else ""
    yield f"  weights by format: {', '.join(parts)}{tied}"
    yield f"  cache: {_cache_words(plan)}"


def _image_lines(answers: Answers) -> Iterator[str]:
    images = answers.images
    if images is None:
        return
    yield (
        f"  images: {images.tokens_per_image} tokens each, {images.kv_bytes / MIB:.1f} MiB of KV "
        f"cache; the tower is {_gib(images.tower_bytes)} GiB of the weights, and encodes one in "
        f"about {images.encoder_bytes / MIB:.0f} MiB"
    )


def _cache_words(plan: MemoryPlan) -> str:
    shape, spec = plan.shape, plan.tightest.spec
    words = _token_words(plan)
    windows = sorted({window for window in shape.layer_windows if window is not None})
    if windows:
        sliding = sum(window is not None for window in shape.layer_windows)
        words += f"; {sliding} layers with a window of {', '.join(map(str, windows))} tokens"
        words += f" ({len(spec.groups)} KV groups)"
    return words


def _token_words(plan: MemoryPlan) -> str:
    """What the layers keep of a token, and of a request."""
    caches, spec = plan.shape.layer_caches, plan.tightest.spec
    if not is_mixed(caches) and caches[0].is_latent:
        return f"MLA, one vector of {spec.head_dim} values for a token, the same on every rank"
    if not is_mixed(caches):
        return f"{spec.num_layers} layers x {spec.num_kv_heads} KV heads x {spec.head_dim}"
    keeping = sum(cache.values_per_token > 0 for cache in caches)
    values = sum(cache.values_per_token for cache in caches)
    words = f"{keeping} of {len(caches)} layers keep {values:,} values of a token"
    if plan.shape.states:
        size = sum(state.num_values for state in plan.shape.states)
        words += f"; {len(plan.shape.states)} keep a state of {size:,} values for a request"
    return words


def _memory_lines(plan: MemoryPlan) -> Iterator[str]:
    request, stage = plan.request, plan.tightest
    if request.gpu is None:
        copies = request.data_parallel_size
        shared = f", shared by {copies} replicas; what follows is of each" if copies > 1 else ""
        shared = ", and as much on each of the other machines" if request.nnodes > 1 else shared
        yield f"free RAM       = {_gib(plan.requested_bytes)} GiB{shared}"
    else:
        share = f"total x {request.gpu_memory_utilization:g}"
        share = "all of it" if request.engine == LLAMA_CPP else share
        yield f"requested      = {_gib(plan.requested_bytes)} GiB ({share})"
    yield f"weights        = {_gib(stage.weights_bytes)} GiB{_each(plan)}"
    if stage.states_bytes:
        yield f"states         = {_gib(stage.states_bytes)} GiB beside the blocks, for all requests"
    if request.gpu is None and (own := process_bytes(request)):
        yield f"processes      = {_gib(own)} GiB"
    if request.gpu is None and request.kv_memory_bytes is None:
        share = f"{request.gpu_memory_utilization:g} of what is left"
        yield f"KV cache       = {share}, at most 4 GiB or one request of the longest length"
    if plan.assumptions:
        graphs = _gib(plan.assumptions[2].num_bytes)
        yield f"non-KV memory  = {_gib(plan.non_kv_bytes)} GiB, CUDA graphs {graphs} GiB"
    for guess in plan.assumptions:
        low_high = "" if guess.low == guess.high else f" ({_gib(guess.low)} to {_gib(guess.high)})"
        yield f"  {guess.name:<17} {_gib(guess.num_bytes)} GiB{low_high}  {guess.basis}"
    yield from _device_lines(plan)
    yield from _version_lines(plan)
    yield from _calibration_lines(plan)
    yield f"Available KV cache memory: {_gib(stage.available_bytes)} GiB"
    if plan.kv_low != plan.kv_high:
        yield f"  from {_gib(plan.kv_low)} to {_gib(plan.kv_high)} GiB, as the estimates go"
    spec, capacity = stage.spec, plan.capacity
    device = "CPU" if request.gpu is None else "GPU"
    yield (
        f"kv bytes/value={spec.dtype_bytes} block={_kib(spec.bytes_per_block)} KiB "
        f"blocks={capacity.num_blocks} | {capacity_line(capacity, plan.max_model_len, device)}"
    )
    yield f"  a page (one layer of a block of {spec.block_size}) is {spec.page_bytes:,} bytes"
    yield from _bar(plan)


def _device_lines(plan: MemoryPlan) -> Iterator[str]:
    gpu = plan.request.gpu
    if gpu is not None and gpu.memory_tolerance:
        low, high = (gpu.memory_bytes * (1 + sign * gpu.memory_tolerance) for sign in (-1, 1))
        memory = f"{_gib(gpu.memory_bytes)} GiB ({_gib(low)} to {_gib(high)})"
        yield f"  memory of {gpu.name} {memory}  as drivers report it"


def _version_lines(plan: MemoryPlan) -> Iterator[str]:
    request = plan.request
    if request.engine != VLLM or request.gpu is None:
        return
    if request.vllm_version is not None:
        yield f"  as vLLM {'.'.join(map(str, request.vllm_version))} does it"
    elif any(guess.low != guess.high for guess in plan.assumptions):
        yield f"  as vLLM {NEWEST} does it, ranges for all since 0.9; --vllm-version narrows them"


def _calibration_lines(plan: MemoryPlan) -> Iterator[str]:
    found = plan.request.calibration
    if found is None:
        return
    if plan.request.gpu is None:
        spread = f"{_gib(found.low)} to {_gib(found.high)}"
        what = f"processes take {_gib(found.likely)} GiB ({spread}) of their own"
    else:
        spread = f"{found.low:.2f} to {found.high:.2f}"
        what = f"estimates times {found.likely:.2f} ({spread})"
    yield f"  {what}, {found.basis}; --no-calibration leaves them out"


def _bar(plan: MemoryPlan) -> Iterator[str]:
    """The device's memory to scale."""
    total = plan.request.gpu.memory_bytes if plan.request.gpu else plan.requested_bytes
    if total <= 0:
        return
    stage = plan.tightest
    other = sum(guess.num_bytes for guess in plan.assumptions)
    if plan.request.gpu is None:
        other = process_bytes(plan.request)
    other += stage.states_bytes
    bar, end = "", 0
    for mark, size in (("#", stage.weights_bytes), ("+", other), ("=", stage.available_bytes)):
        end += max(0, size)
        bar += mark * (min(_BAR_WIDTH, round(end / total * _BAR_WIDTH)) - len(bar))
    yield f"[{bar:.<{_BAR_WIDTH}}] {_gib(total)} GiB"
    yield "  # weights  + other  = KV cache  . not used by this server"


def _process_lines(plan: MemoryPlan) -> Iterator[str]:
    request, lines = plan.request, processes(plan.request)
    sizes = f"pp={request.pipeline_parallel_size} tp={request.tensor_parallel_size}"
    if request.data_parallel_size > 1:
        sizes += f" dp={request.data_parallel_size}"
    if request.nnodes > 1:
        sizes += f" nnodes={request.nnodes}"
    gpus = 0 if request.gpu is None else plan.world_size
    word = "process" if len(lines) == 1 else "processes"
    yield f"{sizes}: {len(lines)} {word}, GPUs used: {gpus}"
    yield from (f"  {line}" for line in lines)
    if len(plan.stages) > 1:
        # On CPUs the ranks of a machine count together.
        part = "node" if request.gpu is None and len(plan.stages) == request.nnodes else "stage"
        for number, stage in enumerate(plan.stages):
            yield (
                f"  {part} {number}: layers {stage.layers.start} to {stage.layers.stop - 1}, "
                f"weights {_gib(stage.weights_bytes)} GiB, KV {_gib(stage.available_bytes)} GiB"
            )


def _scheduler_lines(plan: MemoryPlan, batches: Sequence[int]) -> Iterator[str]:
    scheduler, sizes = plan.scheduler, plan.graphs.piecewise_sizes
    yield (
        f"scheduler: max_num_batched_tokens={scheduler.max_num_batched_tokens} "
        f"max_num_seqs={scheduler.max_num_seqs} (defaults of {scheduler.basis})"
    )
    if not sizes:
        yield "no CUDA graphs"
        return
    yield f"max_num_seqs={scheduler.max_num_seqs}: {len(sizes)} sizes up to {sizes[-1]}"
    yield f"{len(sizes)} sizes: {_shortened(sizes)}"
    yield f"  graphs: {len(sizes)} piecewise, {len(plan.graphs.full_sizes)} full"
    yield from (f"{n:5d} tokens -> {describe_dispatch(sizes, n)}" for n in batches)


def _shortened(sizes: Sequence[int]) -> str:
    """The first sizes, those around 256 where the steps become wider, and the last."""
    if len(sizes) <= 20 or 256 not in sizes:
        return str(list(sizes))
    middle = sizes.index(256)
    return (
        f"{list(sizes[:6])} ... {list(sizes[middle - 3 : middle + 3])} ... {sizes[-1]}"
        if sizes[-1] > 288
        else str(list(sizes))
    )


def _answer_lines(plan: MemoryPlan, answers: Answers) -> Iterator[str]:
    yield f"longest max_model_len that fits: {answers.longest_model_len:,}"
    images = answers.images
    for length, number in answers.requests:
        shown = f"{length:,} tokens"
        if images is not None and images.num_images:
            word = "image" if images.num_images == 1 else "images"
            shown += f" ({images.num_tokens:,} of {images.num_images} {word})"
        yield f"requests of {shown} at once: {number:,}"
    if plan.request.engine == VLLM:
        sizes = ", ".join(map(str, answers.parallel_sizes))
        least = answers.least_tensor_parallel
        yield f"tensor-parallel sizes that divide the heads: {sizes}; the least that fits: " + (
            "none" if least is None else str(least)
        )
    for variant in answers.variants:
        outcome = f"{variant.num_tokens:,} tokens, {variant.max_concurrency:.2f}x"
        yield f"with {variant.flags}: {outcome if variant.fits else 'still does not fit'}"
    yield "" if plan.shortfall is None else "\nwith what would fit:"
    for start in answers.commands:
        note = f"  ({start.note})" if start.note and start.command else ""
        yield f"{start.engine + ':':<10} {start.command or 'no, ' + (start.note or '')}{note}"


def plan_document(plan: MemoryPlan, answers: Answers, batches: Sequence[int]) -> dict[str, Any]:
    """The payload of `--json`; sizes are bytes."""
    request, shape, stage, spec = plan.request, plan.shape, plan.tightest, plan.tightest.spec
    sizes = plan.graphs.piecewise_sizes
    return {
        "model": shape.name,
        "architecture": shape.architecture,
        "quantization": shape.quantization or request.quantization,
        "parameters": plan.weights.parameters,
        "active_parameters": plan.weights.active_parameters(shape.experts),
        "weights_basis": plan.weights.basis,
        "weights_bytes_by_dtype": plan.weights.bytes_by_dtype(),
        "engine": request.engine,
        "gpu": None if request.gpu is None else request.gpu.name,
        "memory_bytes": None if request.gpu is None else request.gpu.memory_bytes,
        "memory_tolerance": None if request.gpu is None else request.gpu.memory_tolerance,
        "vllm_version": ".".join(map(str, request.vllm_version or ())) or None,
        "fits": plan.shortfall is None,
        "fits_at_worst": plan.fits_at_worst,
        "shortfall": plan.shortfall,
        "advice": list(answers.advice),
        "requested_bytes": plan.requested_bytes,
        "weights_bytes": stage.weights_bytes,
        "non_kv_bytes": plan.non_kv_bytes,
        "assumptions": [
            {"name": a.name, "bytes": a.num_bytes, "low": a.low, "high": a.high, "basis": a.basis}
            for a in plan.assumptions
        ],
        "calibration": None
        if request.calibration is None
        else {
            "starts": request.calibration.num_starts,
            "likely": request.calibration.likely,
            "low": request.calibration.low,
            "high": request.calibration.high,
            "basis": request.calibration.basis,
        },
        "kv_memory_bytes": stage.available_bytes,
        "kv_memory_low_bytes": plan.kv_low,
        "kv_memory_high_bytes": plan.kv_high,
        "kv_bytes_per_value": spec.dtype_bytes,
        "block_size": spec.block_size,
        "page_bytes": spec.page_bytes,
        "bytes_per_block": spec.bytes_per_block,
        "kv_groups": len(spec.groups),
        "kv_blocks": plan.capacity.num_blocks,
        "kv_tokens": plan.capacity.num_tokens,
        "max_model_len": plan.max_model_len,
        "max_concurrency": round(plan.capacity.max_concurrency, 4),
        "processes": list(processes(plan.request)),
        "gpus_used": 0 if request.gpu is None else plan.world_size,
        "max_num_batched_tokens": plan.scheduler.max_num_batched_tokens,
        "max_num_seqs": plan.scheduler.max_num_seqs,
        "capture_sizes": list(sizes),
        "padding": {str(n): describe_dispatch(sizes, n) for n in batches} if sizes else {},
        "longest_model_len": answers.longest_model_len,
        "requests_of": {str(length): number for length, number in answers.requests},
        "images": None
        if (images := answers.images) is None
        else {
            "per_request": images.num_images,
            "tokens_per_image": images.tokens_per_image,
            "kv_bytes_per_image": images.kv_bytes,
            "tower_bytes": images.tower_bytes,
            "encoder_bytes": images.encoder_bytes,
        },
        "tensor_parallel_sizes": list(answers.parallel_sizes),
        "least_tensor_parallel": answers.least_tensor_parallel,
        "variants": [
            {
                "flags": v.flags,
                "fits": v.fits,
                "kv_tokens": v.num_tokens,
                "max_concurrency": round(v.max_concurrency, 4),
            }
            for v in answers.variants
        ],
        # Of several machines, those of the first one.
        "commands": {c.engine: c.command for c in reversed(answers.commands)},
        "nnodes": request.nnodes,
        "node_commands": _node_commands(answers) if request.nnodes > 1 else {},
    }


def _node_commands(answers: Answers) -> dict[str, list[str]]:
    """By engine: the command of each machine, in order."""
    found: dict[str, list[str]] = {}
    for start in answers.commands:
        if start.command is not None and start.engine != LLAMA_CPP:
            found.setdefault(start.engine, []).append(start.command)
    return found


def plain_rows(document: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """`name, value` of a document, lists and objects flattened with dots."""
    for name, value in document.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for row in value:
                head = next(iter(row.values()))
                yield from ((f"{name}.{head}.{key}", inner) for key, inner in row.items())
        elif isinstance(value, list):
            yield (
                name,
                " ".join(map(str, value))
                if name == "capture_sizes"
                else "; ".join(map(str, value)),
            )
        else:
            yield name, value


def comparison_rows(values: Sequence[ComparedValue]) -> list[dict[str, Any]]:
    """One record for each figure of the log."""
    return [
        {
            "name": value.name,
            "logged": value.logged,
            "low": value.low,
            "high": value.high,
            "agrees": value.agrees,
            "is_estimate": value.is_estimate,
            "basis": value.basis,
        }
        for value in values
    ]


def comparison_text(values: Sequence[ComparedValue]) -> str:
    """A line for each figure: what was logged, what was planned, the verdict."""
    lines = []
    for value in values:
        planned = _number(value.low)
        if value.low != value.high:
            planned += f" to {_number(value.high)}"
        verdict = "agrees" if value.agrees else "differs"
        if value.is_estimate and not value.agrees:
            edge = value.low if value.logged < value.low else value.high
            verdict = f"differs by {_number(round(value.logged - edge, 2))}"
        lines.append(
            f"{value.name:<17} logged {_number(value.logged):>12}  planned {planned:<26} "
            f"{verdict}  ({value.basis})"
        )
    return printable("\n".join(lines))


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def _kib(size: int) -> str:
    return f"{size / 1024:g}"


def _each(plan: MemoryPlan) -> str:
    if plan.world_size == plan.request.data_parallel_size:
        return ""
    if plan.request.gpu is None and plan.request.nnodes == 1:  # all ranks share the RAM
        return ""
    device = "machine" if plan.request.gpu is None else "GPU"
    return f" on a {device}, of {_gib(plan.weights.num_bytes)} GiB"
