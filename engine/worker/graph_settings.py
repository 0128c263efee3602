"""Which CUDA graphs a server's flags ask for; imports no kernel."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.cuda_graph_sizes import CaptureRules, CUDAGraphMode, GraphPlan, graph_mode, graph_plan


def configured_graphs(
    config: EngineConfig, compute_capability: tuple[int, int] | None = None
) -> GraphPlan:
    """The graphs for -O, --enforce-eager, the capture sizes and --compilation-config."""
    asked, limits = config.compilation, config.scheduler
    mode = graph_mode(
        asked.optimization_level,
        enforce_eager=asked.enforce_eager,
        is_pooling=not config.tasks.can_generate,
    )
    if asked.cudagraph_mode is not None and not asked.enforce_eager:
        mode = CUDAGraphMode(asked.cudagraph_mode)
    rules = CaptureRules(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        compute_capability=compute_capability,
        capture_sizes=asked.cudagraph_capture_sizes,
        max_capture_size=asked.max_cudagraph_capture_size,
    )
    return graph_plan(rules, mode)
