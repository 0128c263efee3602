"""The processes of a planned server, named as vLLM 0.30 names them."""

from __future__ import annotations

from app.launch.engines import LLAMA_CPP, VLLM
from app.planning.plan_request import PlanRequest
from engine.config import ParallelConfig
from engine.rank_layout import rank_places


def processes(request: PlanRequest) -> tuple[str, ...]:
    """Names as vLLM gives them, workers indented, and what each does."""
    if request.engine != VLLM:
        return _own_processes(request)
    replicas = request.data_parallel_size
    per_replica = request.pipeline_parallel_size * request.tensor_parallel_size
    front = "the `vllm serve` process: HTTP, chat template, tokenizer, detokenizer"
    if replicas == 1:
        lines = [f"APIServer   {front}"]
    else:
        lines = ["vllm serve  starts the others and waits for them"]
        lines += [f"ApiServer_{n}  HTTP, chat template, tokenizer" for n in range(replicas)]
        lines += ["DPCoordinator  collects load statistics"]
    for replica in range(replicas):
        name = "EngineCore" if replicas == 1 else f"EngineCore_DP{replica}"
        duty = "scheduler and KV cache manager"
        if per_replica == 1:
            lines += [f"{name}  {duty}, model runner on GPU {replica} (UniProcExecutor)"]
        else:
            lines += [f"{name}  {duty} (MultiprocExecutor)"]
            lines += _workers(request, replica)
    return tuple(lines)


def _own_processes(request: PlanRequest) -> tuple[str, ...]:
    """Of an engine that is not vLLM."""
    if request.engine == LLAMA_CPP:
        return ("llama-server  everything in one process",)
    lines = ["APIServer   HTTP, chat template, tokenizer, detokenizer"]
    for replica in range(request.data_parallel_size):
        parallel = _parallel(request, replica)
        if parallel.world_size == 1:
            lines += [f"{parallel.engine_name}  scheduler, KV cache manager and model runner"]
        else:
            lines += [f"{parallel.engine_name}  scheduler and KV cache manager (MultiprocExecutor)"]
            lines += _workers(request, replica)
    return tuple(lines)


def _workers(request: PlanRequest, replica: int) -> list[str]:
    parallel = _parallel(request, replica)
    first = replica * parallel.world_size
    return [
        f"  {place.name}  model runner"
        + ("" if request.gpu is None else f" on GPU {first + place.rank}")
        for place in rank_places(parallel)
    ]


def _parallel(request: PlanRequest, replica: int) -> ParallelConfig:
    return ParallelConfig(
        tensor_parallel_size=request.tensor_parallel_size,
        pipeline_parallel_size=request.pipeline_parallel_size,
        data_parallel_size=request.data_parallel_size,
        data_parallel_rank=replica,
    )
