"""The processes of a planned server, named as vLLM 0.30 names them."""

from __future__ import annotations

from app.launch.engines import LLAMA_CPP, VLLM
from app.planning.plan_request import PlanRequest
from engine.config import ParallelConfig


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
    """Of an engine that is not vLLM, on one device."""
    if request.engine == LLAMA_CPP:
        return ("llama-server  everything in one process",)
    front = "APIServer   HTTP, chat template, tokenizer, detokenizer"
    duty = "scheduler, KV cache manager and model runner"
    replicas = request.data_parallel_size
    names = [
        ParallelConfig(data_parallel_size=replicas, data_parallel_rank=rank).engine_name
        for rank in range(replicas)
    ]
    return (front, *(f"{name}  {duty}" for name in names))


def _workers(request: PlanRequest, replica: int) -> list[str]:
    pipeline, tensor = request.pipeline_parallel_size, request.tensor_parallel_size
    lines = []
    for stage in range(pipeline):
        for rank in range(tensor):
            name = "Worker" + (f"_DP{replica}" if request.data_parallel_size > 1 else "")
            name += (f"_PP{stage}" if pipeline > 1 else "") + (f"_TP{rank}" if tensor > 1 else "")
            gpu = (replica * pipeline + stage) * tensor + rank
            lines.append(f"  {name}  model runner on GPU {gpu}")
    return lines
