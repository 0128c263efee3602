"""Tensor and pipeline parallelism as arithmetic: which rank has which part of a model. No torch.

A rank's part is itself a ModelConfig, with its share of the heads, of the inner size and of the
layers, so that whatever builds a decoder builds a part of one. Names are those of vLLM's workers.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from engine.config import ParallelConfig
from engine.errors import ConfigError
from engine.kv_sizing import pipeline_stages
from engine.model_config import ModelConfig
from engine.node_key import read_node_key

MOST_RANKS = 64
"""Of one engine, in each direction."""

_EVERY_ADDRESS = frozenset({"", "0", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank's place: `tensor_rank` of `tensor_size` in pipeline stage `stage` of `num_stages`.

    Tensor ranks of a stage are neighbours, as in vLLM. `replica` is the number of the engine of
    several, None where there is one.
    """

    tensor_rank: int = 0
    tensor_size: int = 1
    stage: int = 0
    num_stages: int = 1
    replica: int | None = None

    @property
    def rank(self) -> int:
        """Number among all ranks of the engine."""
        return self.stage * self.tensor_size + self.tensor_rank

    @property
    def world_size(self) -> int:
        return self.num_stages * self.tensor_size

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.num_stages - 1

    @property
    def is_output(self) -> bool:
        """True for the one rank that samples: the first of the last stage."""
        return self.is_last_stage and self.tensor_rank == 0

    @property
    def name(self) -> str:
        """The process's name in lists and logs, e.g. `Worker_PP1_TP0`."""
        replica = "" if self.replica is None else f"_DP{self.replica}"
        stage = f"_PP{self.stage}" if self.num_stages > 1 else ""
        return f"Worker{replica}{stage}" + (
            f"_TP{self.tensor_rank}" if self.tensor_size > 1 else ""
        )

    def span(self, size: int) -> range:
        """This tensor rank's contiguous part of 0..size; parts differ by at most one."""
        first, end = (size * edge // self.tensor_size for edge in self._edges())
        return range(first, end)

    def span_lengths(self, size: int) -> list[int]:
        """Of every tensor rank's part."""
        ranks = range(self.tensor_size)
        return [len(dataclasses.replace(self, tensor_rank=rank).span(size)) for rank in ranks]

    def kv_heads(self, num_kv_heads: int) -> range:
        """Heads whose keys and values it holds: a share of them, or one that others hold too."""
        if num_kv_heads >= self.tensor_size:
            return self.span(num_kv_heads)
        head = self.tensor_rank * num_kv_heads // self.tensor_size
        return range(head, head + 1)

    def _edges(self) -> tuple[int, int]:
        return self.tensor_rank, self.tensor_rank + 1


WHOLE = RankPlace()
"""The place of a worker that has the whole model."""


def node_name(node_rank: int) -> str:
    """The name in lists and logs of the process that has the ranks of another node than 0."""
    return f"Node_{node_rank}"


def rank_places(parallel: ParallelConfig) -> list[RankPlace]:
    """All ranks of one engine, in order."""
    tensor, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    replica = parallel.data_parallel_rank if parallel.data_parallel_size > 1 else None
    return [
        RankPlace(rank % tensor, tensor, rank // tensor, stages, replica)
        for rank in range(parallel.world_size)
    ]


def layers_of(model: ModelConfig, place: RankPlace) -> range:
    """The decoder layers of the rank's stage."""
    return pipeline_stages(model.num_hidden_layers, place.num_stages)[place.stage]


def model_of_rank(model: ModelConfig, place: RankPlace) -> ModelConfig:
    """The part of the model that one rank computes.

    `vocab_size` stays the whole model's: `place.span` says which of its rows the rank has. A bias
    behind a sum over ranks is added by one of them.
    """
    layers = layers_of(model, place)
    return dataclasses.replace(
        model,
        num_hidden_layers=len(layers),
        layer_windows=model.layer_windows[layers.start : layers.stop],
        num_attention_heads=model.num_attention_heads // place.tensor_size,
        num_key_value_heads=len(place.kv_heads(model.num_key_value_heads)),
        intermediate_size=model.intermediate_size // place.tensor_size,
    )


def require_layout_fits(model: ModelConfig, parallel: ParallelConfig) -> None:
    """Raise ConfigError for sizes that do not divide the model, and name those that do."""
    tensor, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    if tensor * stages == 1:
        return
    if model.implementation != "stoker":
        raise ConfigError(
            f"--tensor-parallel-size and --pipeline-parallel-size need Stoker's own code for the "
            f"model, and {model.architecture} runs in transformers'. Leave them out."
        )
    if tensor not in (sizes := tensor_sizes(model)):
        raise ConfigError(
            f"--tensor-parallel-size {tensor} does not fit the model: {_obstacle(model, tensor)}. "
            f"Sizes that do: {', '.join(map(str, sizes))}."
        )
    if stages > model.num_hidden_layers:
        raise ConfigError(
            f"--pipeline-parallel-size {stages} is more than the {model.num_hidden_layers} layers "
            f"of the model; use at most that."
        )


def require_nodes_fit(parallel: ParallelConfig, *, is_headless: bool) -> None:
    """ConfigError where the ranks cannot be spread over the nodes as asked, or the nodes share no
    secret.
    """
    nodes = parallel.nnodes
    if nodes == 1:
        if is_headless or parallel.node_rank:
            flag = "--headless" if is_headless else f"--node-rank {parallel.node_rank}"
            raise ConfigError(
                f"{flag} is for one of several machines; give --nnodes N and --master-addr HOST "
                "too, or leave it out."
            )
        return
    if is_headless and parallel.node_rank == 0:
        raise ConfigError(
            "--headless is for the nodes behind the first one, and --node-rank is 0, which has "
            "the API server; give --node-rank 1 or more, or leave --headless out."
        )
    if parallel.executor_backend != "mp":
        raise ConfigError(
            f"--nnodes {nodes} runs its ranks with --distributed-executor-backend mp, and "
            f"{parallel.executor_backend} is what this start has; give several ranks "
            "(--tensor-parallel-size, --pipeline-parallel-size) and leave the backend out. With "
            "ray there is one command for all machines, without --nnodes."
        )
    if parallel.data_parallel_size > 1:
        raise ConfigError(
            f"--nnodes {nodes} spreads one copy of the model, and --data-parallel-size is "
            f"{parallel.data_parallel_size}; start a server on each machine behind a router, or "
            "use --distributed-executor-backend ray."
        )
    if parallel.world_size % nodes:
        raise ConfigError(
            f"--nnodes {nodes} cannot divide the {parallel.world_size} ranks of "
            f"--tensor-parallel-size {parallel.tensor_parallel_size} and --pipeline-parallel-size "
            f"{parallel.pipeline_parallel_size}; each node has as many. Numbers that do: "
            f"{', '.join(str(n) for n in _divisors(parallel.world_size))}."
        )
    _require_machine(parallel.master_addr)
    read_node_key(parallel.node_key_file)


def _require_machine(address: str) -> None:
    """ConfigError for a --master-addr that is all addresses at once, or can be none."""
    try:
        address.encode("idna")  # as the socket calls do, which raise no OSError for it
        is_one = address not in _EVERY_ADDRESS
    except UnicodeError:
        is_one = False
    if not is_one:
        raise ConfigError(
            f"--master-addr {address!r} is not the address of one machine; give the one by which "
            "the other nodes reach node 0 (`ip -brief address` there lists those it has)."
        )


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def require_devices(parallel: ParallelConfig, local_rank: int, num_devices: int) -> None:
    """ConfigError where a rank's process does not see its device: each has a GPU of its own."""
    if local_rank < num_devices:
        return
    if (copies := parallel.data_parallel_size) > 1:
        raise ConfigError(
            f"--data-parallel-size {copies} with {parallel.world_size} GPUs for each copy needs "
            f"{copies * parallel.world_size} GPUs, and copy {parallel.data_parallel_rank} sees "
            f"{num_devices} of its own. Use fewer copies, or let CUDA_VISIBLE_DEVICES "
            "(HIP_VISIBLE_DEVICES on ROCm) name more."
        )
    raise ConfigError(
        f"--tensor-parallel-size {parallel.tensor_parallel_size} and --pipeline-parallel-size "
        f"{parallel.pipeline_parallel_size} need {len(parallel.local_ranks)} GPUs on this machine, "
        "one for each rank, "
        f"and {num_devices} can be seen. Use sizes whose product is at most "
        f"{num_devices * parallel.nnodes}, let "
        "CUDA_VISIBLE_DEVICES name more of those that `nvidia-smi -L` lists, or use the GPUs of "
        "several machines: --nnodes."
    )


def tensor_sizes(model: ModelConfig) -> list[int]:
    """Tensor-parallel sizes that divide the heads, the KV heads and the inner size."""
    return [size for size in range(1, MOST_RANKS + 1) if _obstacle(model, size) is None]


def _obstacle(model: ModelConfig, tensor: int) -> str | None:
    if model.num_attention_heads % tensor:
        return f"its {model.num_attention_heads} attention heads cannot be divided by it"
    if math.gcd(model.num_key_value_heads, tensor) != min(model.num_key_value_heads, tensor):
        return f"its {model.num_key_value_heads} KV heads can be neither divided by it nor repeated"
    if model.intermediate_size % tensor:
        return f"its intermediate size of {model.intermediate_size} cannot be divided by it"
    return None
