"""What the scheduler tells the model runner each step, and what comes back. No torch.

New requests travel in full, known ones as a difference (as in vLLM's v1/core/sched/output.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.messages import GraphStats, ImageInput, PackedLogprobs, TokenLogprobs
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams

BlockIds: TypeAlias = list[list[int]]
"""Block ids of each KV group, all lists equally long: one block table position per column."""


@dataclass(slots=True)
class NewRequestData:
    """A request that the runner does not hold: first admission, or resumed after a preemption.

    `token_ids` is prompt plus output so far; the KV of the first `num_computed_tokens` already lies
    in `block_ids` (prefix-cache hits). `images` are those with tokens that are to be computed.
    """

    req_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    block_ids: BlockIds
    num_computed_tokens: int
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    pooling: PoolingParams | None = None
    lora_id: int = 0  # 0: without an adapter
    images: tuple[ImageInput, ...] = ()


@dataclass(slots=True)
class CachedRequestData:
    """Differences of requests that the runner already holds; the three lists run in parallel.

    No new blocks are an empty list, without lists per group. The runner appends the tokens it
    sampled itself, so no token ids travel here.
    """

    req_ids: list[str] = field(default_factory=list)
    new_block_ids: list[BlockIds] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GrammarBitmask:
    """Tokens that each of `req_ids` may get in this step: one row each, one bit per token.

    The lowest bit of a word is the first token. A request with a draft stands there once for each
    of its positions, in their order.
    """

    req_ids: list[str]
    rows: NDArray[np.int32]

    def only(self, req_ids: Sequence[str]) -> GrammarBitmask | None:
        """The part of these requests; None when they have none."""
        places = [place for place, req_id in enumerate(self.req_ids) if req_id in req_ids]
        if not places:
            return None
        return GrammarBitmask([self.req_ids[place] for place in places], self.rows[places])


@dataclass(slots=True)
class SchedulerOutput:
    """One step. `num_scheduled_tokens` keeps scheduling order: it is the batch order.

    `finished_req_ids` (finished, aborted or preempted since the last step) are dropped by the
    runner before anything else is applied. `grammar_bitmask` is EngineCore's to fill in, None when
    no request of the step follows a grammar. `draft_token_ids` are computed behind a request's last
    token and counted in its scheduled tokens; the runner says how many of them it keeps.
    """

    new_requests: list[NewRequestData]
    cached_requests: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: list[str]
    grammar_bitmask: GrammarBitmask | None = None
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class ModelRunnerOutput:
    """Sampled tokens per generating request in batch order, vectors of completed pooling requests.

    Of a request with a draft: those of its tokens that the model would have chosen, and one more.
    An empty list where the prompt is not complete yet. Log probabilities of those who asked:
    `logprobs` parallel to the sampled tokens, `prompt_logprobs` with the first sampled token.
    `forward_s` and `sampler_s` are what the two took on the runner's clock.
    """

    req_ids: list[str]
    sampled_token_ids: list[list[int]]
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, PackedLogprobs] = field(default_factory=dict)
    pooled: dict[str, bytes] = field(default_factory=dict)  # little-endian float32
    forward_s: float = 0.0
    sampler_s: float = 0.0
    graphs: GraphStats | None = None  # of the steps that were started since the last output
