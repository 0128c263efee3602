"""Log probabilities of the raw logits: of sampled tokens, and of whole prompts over many steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.kernels.step_batch import IntArray, StepBatch
from engine.messages import TokenLogprobs
from engine.sched.scheduler_output import NewRequestData
from engine.worker.input_batch import InputBatch


@torch.inference_mode()
def token_logprobs(logits: Tensor, token_ids: IntArray, num_top: IntArray) -> list[TokenLogprobs]:
    """One entry per row of `logits`: its token, then its `num_top` most likely ones."""
    normaliser = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(1, torch.from_numpy(token_ids).to(logits.device).unsqueeze(1))
    ranks = (logits >= chosen).sum(-1)
    top = logits.topk(min(int(num_top.max()), logits.shape[1]), dim=-1)
    ids = top.indices.cpu().numpy()
    values = (torch.cat((chosen, top.values), dim=1) - normaliser).cpu().numpy()
    return [
        TokenLogprobs([token, *top_ids[:count]], logprobs[: count + 1], rank)
        for token, top_ids, logprobs, rank, count in zip(
            token_ids.tolist(),
            ids.tolist(),
            values.tolist(),
            ranks.tolist(),
            num_top.tolist(),
            strict=True,
        )
    ]


@dataclasses.dataclass(slots=True)
class _Prompt:
    num_top: int
    found: list[TokenLogprobs] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class PromptRows:
    """Logits that a prompt waits for: their first row, and the tokens that really follow."""

    req_id: str
    first: int
    following: IntArray


class PromptLogprobs:
    """Prompts whose log probabilities are asked for, collected chunk by chunk.

    A prompt that was complete once is not collected again when its request returns from preemption.
    """

    def __init__(self) -> None:
        self._prompts: dict[str, _Prompt] = {}

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def add(self, request: NewRequestData) -> None:
        """Begin to collect, if the request asks for it."""
        num_top = request.sampling_params.prompt_logprobs
        if num_top is not None and len(request.token_ids) == request.num_prompt_tokens:
            self._prompts[request.req_id] = _Prompt(num_top)

    def remove(self, req_ids: Sequence[str]) -> None:
        """Forget requests that have ended or were preempted."""
        for req_id in req_ids:
            self._prompts.pop(req_id, None)

    def extend(
        self, step: StepBatch, req_ids: Sequence[str], batch: InputBatch, rows: IntArray
    ) -> tuple[StepBatch, list[PromptRows]]:
        """The step with the logits of these prompts' tokens among those of the sampled ones."""
        found: list[tuple[str, int, IntArray]] = []
        for place, req_id in enumerate(req_ids):
            if req_id in self._prompts:
                row, first = int(rows[place]), int(step.query_start_loc[place])
                count = int(step.query_start_loc[place + 1]) - first
                start = int(step.num_computed[place]) + 1
                end = min(start + count, int(batch.num_prompt_tokens[row]))
                found.append((req_id, first, batch.token_ids[row, start:end].astype(np.int64)))
        asked = [first + np.arange(len(following)) for _, first, following in found]
        logits_rows = np.sort(np.concatenate([step.logits_rows, *asked]))
        wanted = [
            PromptRows(req_id, int(np.searchsorted(logits_rows, first)), following)
            for req_id, first, following in found
        ]
        return dataclasses.replace(step, logits_rows=logits_rows), wanted

    def collect(self, logits: Tensor, wanted: Sequence[PromptRows]) -> None:
        """Take the logits that `extend` asked for."""
        for entry in wanted:
            prompt, count = self._prompts[entry.req_id], len(entry.following)
            if count:
                part = logits[entry.first : entry.first + count]
                tops = np.full(count, prompt.num_top)
                prompt.found += token_logprobs(part, entry.following, tops)

    def take(self, req_ids: Sequence[str]) -> dict[str, list[TokenLogprobs]]:
        """Those of the given requests, whose prompts are complete now."""
        return {
            req_id: self._prompts.pop(req_id).found for req_id in req_ids if req_id in self._prompts
        }
