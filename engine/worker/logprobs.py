"""Log probabilities of the raw logits: of sampled tokens, and of whole prompts over many steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.kernels.step_batch import IntArray, StepBatch
from engine.messages import PackedLogprobs, TokenLogprobs
from engine.sched.scheduler_output import NewRequestData
from engine.worker.input_batch import InputBatch


@torch.inference_mode()
def token_logprobs(logits: Tensor, token_ids: IntArray, num_top: IntArray) -> list[TokenLogprobs]:
    """One entry per row of `logits`: its token, then its `num_top` most likely ones."""
    chosen = torch.from_numpy(token_ids).to(logits.device)
    return logprob_entries(top_logprobs(logits, chosen, int(num_top.max())), num_top)


TopLogprobs: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Token ids and log probabilities [R, 1 + top] of each row's token and the best ones, and the
token's rank [R].
"""


def logprob_entries(found: TopLogprobs, num_top: IntArray) -> list[TokenLogprobs]:
    """One entry per row: its token, then as many as it asked for."""
    ids, values, ranks = found
    return [
        TokenLogprobs(row_ids[: count + 1], logprobs[: count + 1], rank)
        for row_ids, logprobs, rank, count in zip(
            ids.tolist(), values.tolist(), ranks.tolist(), num_top.tolist(), strict=True
        )
    ]


@torch.inference_mode()
def top_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> TopLogprobs:
    """Of raw `logits` [R, vocabulary] and the chosen tokens [R], all on one device."""
    normaliser = logits.logsumexp(-1, keepdim=True)
    # NO_TOKEN has none of its own, and its request ends with this step.
    chosen_ids = token_ids.clamp(min=0).unsqueeze(1)
    chosen = logits.gather(1, chosen_ids)
    ranks = (logits >= chosen).sum(-1)
    top = logits.topk(min(num_top, logits.shape[1]), dim=-1)
    ids = torch.cat((chosen_ids, top.indices), dim=1).to(torch.int32)
    values = torch.cat((chosen, top.values), dim=1) - normaliser
    return ids, values, ranks.to(torch.int32)


@dataclasses.dataclass(slots=True)
class _Prompt:
    """Arrays of the chunks so far; each has `width` entries per position."""

    num_top: int
    width: int = 0
    ids: list[bytes] = dataclasses.field(default_factory=list)
    values: list[bytes] = dataclasses.field(default_factory=list)
    ranks: list[bytes] = dataclasses.field(default_factory=list)

    def collect(self, logits: Tensor, following: IntArray) -> None:
        chosen = torch.from_numpy(following).to(logits.device)
        found = top_logprobs(logits, chosen, self.num_top)
        ids, values, ranks = (one.cpu().numpy() for one in found)
        self.width = ids.shape[1]
        self.ids.append(ids.tobytes())
        self.values.append(values.tobytes())
        self.ranks.append(ranks.tobytes())

    def packed(self) -> PackedLogprobs:
        ids, values, ranks = map(b"".join, (self.ids, self.values, self.ranks))
        return PackedLogprobs(self.width, ids, values, ranks)


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
            count = len(entry.following)
            if count:
                part = logits[entry.first : entry.first + count]
                self._prompts[entry.req_id].collect(part, entry.following)

    def take(self, req_ids: Sequence[str]) -> dict[str, PackedLogprobs]:
        """Those of the given requests, whose prompts are complete now."""
        return {
            req_id: self._prompts.pop(req_id).packed()
            for req_id in req_ids
            if req_id in self._prompts
        }
