"""The processes of a planned server, named as vLLM 0.30 names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from app.launch.engines import LLAMA_CPP, VLLM
from app.planning.plan_request import PlanRequest
from engine.config import ParallelConfig
from engine.rank_layout import node_name, rank_places

_DUTY = "scheduler and KV cache manager"
_FRONT = "HTTP, chat template, tokenizer, detokenizer"


def processes(request: PlanRequest) -> tuple[str, ...]:
    """Names as vLLM gives them, workers indented, and what each does."""
    if request.engine == LLAMA_CPP:
        return ("llama-server  everything in one process",)
    if request.engine != VLLM:
        front = _fronts(request, "APIServer   takes the port, starts the others and watches them")
        alone = "scheduler, KV cache manager and model runner"
        return (*front, *_engines(request, lambda _: alone))
    front = _fronts(request, "vllm serve  starts the others and waits for them")
    on_gpu = f"{_DUTY}, model runner on GPU"
    engines = _engines(request, lambda replica: f"{on_gpu} {replica} (UniProcExecutor)")
    return (*front, *engines)


def _fronts(request: PlanRequest, starter: str) -> Iterator[str]:
    """API servers and what they need; `starter` is the line of who starts several of them.

    vLLM has a coordinator wherever it has copies of the model, we where there are several API
    servers.
    """
    count = request.num_api_servers
    if count == 1:
        who = "the `vllm serve` process: " if request.engine == VLLM else ""
        yield f"APIServer   {who}{_FRONT}"
    else:
        yield starter
        yield from (f"ApiServer_{number}  {_FRONT}" for number in range(count))
    if (count if request.engine != VLLM else request.data_parallel_size) > 1:
        yield "DPCoordinator  collects load statistics"


def _engines(request: PlanRequest, alone: Callable[[int], str]) -> Iterator[str]:
    """Every EngineCore with its workers; `alone` is what one without workers does."""
    for replica in range(request.data_parallel_size):
        parallel = _parallel(request, replica)
        if parallel.world_size == 1:
            yield f"{parallel.engine_name}  {alone(replica)}"
        else:
            yield f"{parallel.engine_name}  {_DUTY} (MultiprocExecutor)"
            yield from _workers(request, replica)


def _workers(request: PlanRequest, replica: int) -> Iterator[str]:
    """Node by node; every node but the first has a process of its own that starts its ranks."""
    parallel = _parallel(request, replica)
    places = rank_places(parallel)
    for node in range(parallel.nnodes):
        ranks = parallel.ranks_of_node(node)
        where = "" if parallel.nnodes == 1 else f", node {node}"
        if node:
            name = "vllm" if request.engine == VLLM else node_name(node)
            yield f"{name}  starts the workers of node {node} and speaks with node 0"
        first = replica * parallel.world_size - ranks.start
        for rank in ranks:
            device = "" if request.gpu is None else f" on GPU {first + rank}"
            yield f"  {places[rank].name}  model runner{device}{where}"


def _parallel(request: PlanRequest, replica: int) -> ParallelConfig:
    return ParallelConfig(
        tensor_parallel_size=request.tensor_parallel_size,
        pipeline_parallel_size=request.pipeline_parallel_size,
        data_parallel_size=request.data_parallel_size,
        data_parallel_rank=replica,
        nnodes=request.nnodes,
    )
