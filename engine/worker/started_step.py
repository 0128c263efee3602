"""Steps that are started before the tokens of the last one are known, and choose their own later.

What a token is chosen by may be one that is still under way: penalties count it, bad words end in
it, a grammar goes on from it. Then the work on the model begins all the same, and `choose` comes
once those tokens are here, as in vLLM's `sample_tokens` behind `execute_model`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.kernels.kernel_set import AheadStep, PendingTokens
from engine.kernels.step_batch import IntArray
from engine.messages import TokenLogprobs
from engine.sched.scheduler_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.worker.host_arrays import on_device
from engine.worker.input_batch import InputBatch
from engine.worker.logprobs import TopLogprobs, logprob_entries, top_logprobs
from engine.worker.sampler import SamplingBatch


class StartedStep:
    """A step whose logits the device computes now; `sampling` are the places in `req_ids` of the
    requests that get a token, a row of `logits` each.
    """

    def __init__(
        self,
        model: AheadStep,
        requests: InputBatch,
        req_ids: Sequence[str],
        sampling: IntArray,
        logits: Tensor,
    ) -> None:
        self._model = model
        self._requests = requests
        self._req_ids = list(req_ids)
        self._sampling = sampling
        self._logits: Tensor | None = logits  # until they are chosen from: they are large
        self._rows = requests.rows(req_ids)[sampling]
        self._start_s = time.monotonic()
        self._places: IntArray | None = None
        self._pending: PendingTokens | None = None
        self._num_logprobs = requests.num_logprobs[self._rows]
        self._logprobs: TopLogprobs | None = None

    @property
    def needs_host(self) -> bool:
        """Whether `choose` has to wait for the tokens of the step before."""
        return bool(self._requests.needs_host[self._rows].any())

    @torch.inference_mode()
    def choose(self, bitmask: GrammarBitmask | None) -> None:
        """Start the choice of the tokens; harmless the second time. Waits for nothing."""
        if self._logits is None:
            return
        rows, logits, model = self._rows, self._logits, self._model
        self._logits = None
        asking = np.flatnonzero(self._num_logprobs >= 0)
        raw = None
        if len(asking):
            chosen = on_device(asking, logits.device)
            raw = logits.index_select(0, chosen)  # what is reported are the logits as they were
        batch = SamplingBatch.of(self._requests, rows, bitmask)
        batch.edit(logits)
        is_greedy = not (batch.temperature > 0).any()
        tokens = model.choose_tokens(logits, None if is_greedy else batch.settings)
        if raw is not None:
            num_top = int(self._num_logprobs[asking].max())
            ids, values, ranks = top_logprobs(raw, tokens.index_select(0, chosen), num_top)
            self._logprobs = model.send(ids), model.send(values), model.send(ranks)
        self._pending = model.download(tokens)
        self._places = self._requests.expect_tokens(rows)

    def finish(self) -> ModelRunnerOutput:
        """Wait for the tokens."""
        self.choose(None)
        assert self._pending is not None, "chosen above"
        assert self._places is not None, "chosen above"
        tokens = self._pending.wait()
        req_ids = [self._req_ids[number] for number in self._sampling]
        self._requests.fill_tokens(req_ids, self._rows, self._places, tokens)
        sampled: list[list[int]] = [[] for _ in self._req_ids]
        for number, token in zip(self._sampling.tolist(), tokens.tolist(), strict=True):
            sampled[number] = [token]
        return ModelRunnerOutput(
            self._req_ids,
            sampled,
            logprobs=self._entries(req_ids),
            forward_s=time.monotonic() - self._start_s,
        )

    def _entries(self, req_ids: Sequence[str]) -> dict[str, list[TokenLogprobs]]:
        if self._logprobs is None:
            return {}
        asking = np.flatnonzero(self._num_logprobs >= 0)
        entries = logprob_entries(self._logprobs, self._num_logprobs[asking])
        names = (req_ids[number] for number in asking.tolist())
        return {name: [entry] for name, entry in zip(names, entries, strict=True)}


class WholeStep:
    """A step that is not started before the tokens of the last one are known, and then waited for:
    of prompts that are pooled, or whose own log probabilities are asked for.
    """

    needs_host = True

    def __init__(self, step: SchedulerOutput, execute: Callable[[], ModelRunnerOutput]) -> None:
        self._step = step
        self._execute = execute
        self._output: ModelRunnerOutput | None = None

    def choose(self, bitmask: GrammarBitmask | None) -> None:
        """All of it; harmless the second time."""
        if self._output is None:
            self._step.grammar_bitmask = bitmask
            self._output = self._execute()

    def finish(self) -> ModelRunnerOutput:
        """What `choose` has made."""
        self.choose(self._step.grammar_bitmask)
        assert self._output is not None, "chosen above"
        return self._output
