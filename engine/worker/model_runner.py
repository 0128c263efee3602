"""ModelRunner: follows the scheduler's differences, runs the model step and samples.

Owns the requests' tokens and block tables on this device's side; decides nothing about scheduling.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import numpy as np
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import CorruptModelError
from engine.kernels.kernel_set import (
    AheadStep,
    Draw,
    KeepingStep,
    KVCache,
    ModelStep,
    StageStep,
    most_likely,
)
from engine.kernels.step_batch import NO_TOKEN, IntArray, StepBatch, within_runs
from engine.models.vision_tower import VisionTower
from engine.sched.scheduler_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.worker.draft_check import DraftCheck
from engine.worker.image_encoder import ImageEncoder
from engine.worker.input_batch import InputBatch
from engine.worker.logprobs import PromptLogprobs, token_logprobs
from engine.worker.pooler import Head, Pooler
from engine.worker.rank_links import RankLinks
from engine.worker.sampler import SamplingBatch, sample
from engine.worker.started_step import StartedStep, WholeStep

_ALONE = RankLinks()

Finish: TypeAlias = Callable[[], ModelRunnerOutput]
"""Waits for a step that was launched."""


class ModelRunner:
    """Runs one SchedulerOutput at a time on one loaded model, or on one rank's part of it.

    All ranks follow the same steps; one of them samples, the others are told its tokens.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: ModelStep,
        num_groups: int = 1,
        links: RankLinks = _ALONE,
        draw: Draw | None = None,
        head: Head | None = None,
        ahead: AheadStep | None = None,
        slot_of: Callable[[int], int] = lambda _: -1,
        tower: VisionTower | None = None,
    ) -> None:
        """With `ahead`, the same model, steps that can be are launched without a wait."""
        self._draw = draw
        self._ahead = ahead
        self._started: StartedStep | WholeStep | None = None
        self._slot_of = slot_of
        scheduler = config.scheduler
        self._num_groups = num_groups
        self._model = model
        # Asked once: a protocol looks at every attribute of the model.
        self._keeping = model if isinstance(model, KeepingStep) else None
        self._links = links
        self._place = links.place
        self._hidden_size = config.model.hidden_size
        self._block_size = config.cache.block_size
        self._max_model_len = scheduler.max_model_len
        self._kv_cache: KVCache = []
        self._prompt_logprobs = PromptLogprobs()
        self._pooler = Pooler(head)
        self._images = ImageEncoder(tower)
        self._batch = InputBatch(
            scheduler.max_num_seqs,
            scheduler.max_model_len,
            self._block_size,
            config.seed,
            num_groups,
        )

    def set_kv_cache(self, kv_cache: KVCache) -> None:
        """Use this cache from now on."""
        self._kv_cache = kv_cache

    def forget_requests(self) -> None:
        """As if all had ended; those that go on come back in full."""
        self._drop(self._batch.req_ids)

    def append_sampled(self, sampled: Sequence[tuple[str, int]]) -> None:
        """Tokens that the output rank sampled; a request that is not here any more is left out."""
        if self._place.is_output:
            return
        known = [(req_id, token) for req_id, token in sampled if req_id in self._batch]
        if known:
            rows = self._batch.rows([req_id for req_id, _ in known])
            self._batch.append_tokens(rows, np.array([token for _, token in known]))

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the scheduled tokens; requests whose tokens are all computed get a new one.

        Prompts that are to be pooled get their vector instead.
        """
        return self.launch(step)()

    def launch(self, step: SchedulerOutput) -> Finish:
        """Start the step; what it returns waits for it. Of two steps the first is to be finished
        first, and then `choose_tokens` called for the second.
        """
        self._apply(step)
        req_ids = list(step.num_scheduled_tokens)
        if self._ahead is None or not req_ids:
            output = self._execute(step, req_ids)
            return lambda: output
        self._started = started = self._start(self._ahead, step, req_ids)
        if not started.needs_host:
            started.choose(None)
        return started.finish

    def choose_tokens(self, bitmask: GrammarBitmask | None) -> None:
        """Of the step that was launched last, once the one before it is finished; harmless where
        they are chosen. `bitmask` is that of its requests with a grammar.
        """
        if self._started is not None:
            self._started.choose(bitmask)

    def _start(
        self, model: AheadStep, step: SchedulerOutput, req_ids: list[str]
    ) -> StartedStep | WholeStep:
        if self._pooler or self._prompt_logprobs:
            return WholeStep(step, lambda: self._execute(step, req_ids))
        batch, sampling = self._build(step, req_ids, self._batch.rows(req_ids))
        logits = model.start(batch, self._kv_cache)
        return StartedStep(model, self._batch, req_ids, sampling, logits)

    def _execute(self, step: SchedulerOutput, req_ids: list[str]) -> ModelRunnerOutput:
        output = ModelRunnerOutput([], [])
        if not self._pooler:
            if req_ids:
                self._generate(step, req_ids, output)
            return output
        # One pass per run of neighbours of a kind. The order stays the scheduler's, since a request
        # may read blocks that one before it fills in this very step.
        for is_pooling, run in itertools.groupby(req_ids, self._pooler.__contains__):
            (self._pool if is_pooling else self._generate)(step, list(run), output)
        return output

    def _pool(self, step: SchedulerOutput, req_ids: list[str], output: ModelRunnerOutput) -> None:
        batch, complete = self._build(step, req_ids, self._batch.rows(req_ids))
        if not self._place.is_last_stage:
            self._run_stage(batch)
            return
        batch = self._pooler.with_rows(batch, req_ids, complete)
        hidden = self._model.hidden_states(batch, self._kv_cache)
        output.pooled |= self._pooler.collect(hidden, batch, req_ids, complete)

    def _generate(
        self, step: SchedulerOutput, req_ids: list[str], output: ModelRunnerOutput
    ) -> None:
        first = len(output.req_ids)
        output.req_ids += req_ids
        output.sampled_token_ids += [[] for _ in req_ids]
        rows = self._batch.rows(req_ids)
        batch, sampling = self._build(step, req_ids, rows)
        places = (sampling + first).tolist()
        check = None
        if step.draft_token_ids:
            check = DraftCheck.of(step.draft_token_ids, [req_ids[place] for place in sampling])
        start_s = time.monotonic()
        if not self._place.is_last_stage:
            self._run_stage(batch)
            return
        if self._is_greedy(step, rows[sampling]):
            tokens = self._model.greedy_tokens(batch, self._kv_cache)
            output.forward_s += time.monotonic() - start_s
            if self._place.is_output:
                self._keep(tokens, rows[sampling], places, output, check)
            return
        logits = (
            self._forward_prompts(batch, req_ids, rows)
            if self._prompt_logprobs
            else self._model.forward(batch, self._kv_cache)
        )
        forward_end_s = time.monotonic()
        output.forward_s += forward_end_s - start_s
        if not self._place.is_output:
            self._prompt_logprobs.take([req_ids[place] for place in sampling])
            return
        if len(sampling):
            bitmask = step.grammar_bitmask
            if bitmask is not None and self._pooler:
                bitmask = bitmask.only(req_ids)
            asking = rows[sampling] if check is None else rows[sampling][check.owner]
            ahead = None if check is None else check.ahead
            settings = SamplingBatch.of(self._batch, asking, bitmask, ahead)
            self._sample(logits, settings, rows[sampling], places, output, check)
            output.sampler_s += time.monotonic() - forward_end_s

    def _is_greedy(self, step: SchedulerOutput, rows: IntArray) -> bool:
        """True if nothing but the most likely token of each of `rows` is wanted."""
        is_plain = step.grammar_bitmask is None and not self._prompt_logprobs
        return is_plain and bool(self._batch.is_plain[rows].all())

    def _build(
        self, step: SchedulerOutput, req_ids: list[str], rows: IntArray
    ) -> tuple[StepBatch, IntArray]:
        counts = map(step.num_scheduled_tokens.__getitem__, req_ids)
        drafts = step.draft_token_ids
        batch, sampling = self._batch.build_step(
            rows,
            np.fromiter(counts, np.int64, len(rows)),
            self._batch.put_drafts(req_ids, drafts) if drafts else None,
        )
        self._links.note_batch(batch)
        batch = self._images.with_images(batch, req_ids)
        if not self._place.is_first_stage:
            residual = self._links.receive_states(len(batch.token_ids))
            batch = dataclasses.replace(batch, residual=residual)
        return batch, sampling

    def _run_stage(self, batch: StepBatch) -> None:
        """Of a stage that is not the last."""
        self._links.send_states(cast(StageStep, self._model).residual(batch, self._kv_cache))

    def _forward_prompts(self, batch: StepBatch, req_ids: list[str], rows: IntArray) -> Tensor:
        """The logits that the step asks for, after prompts took the log probabilities of theirs."""
        extended, wanted = self._prompt_logprobs.extend(batch, req_ids, self._batch, rows)
        logits = self._model.forward(extended, self._kv_cache)
        if not self._place.is_output:  # it has a part of the logits
            return logits
        self._prompt_logprobs.collect(logits, wanted)
        return logits[np.searchsorted(extended.logits_rows, batch.logits_rows)]

    def _sample(
        self,
        logits: Tensor,
        settings: SamplingBatch,
        rows: IntArray,
        places: list[int],
        output: ModelRunnerOutput,
        check: DraftCheck | None,
    ) -> None:
        """Choose one token per position and write what is kept, and the log probabilities asked
        for, to `output`.

        `places` are the rows' numbers in it.
        """
        owner = np.arange(len(rows)) if check is None else check.owner
        num_logprobs = self._batch.num_logprobs[rows][owner]
        asking = np.flatnonzero(num_logprobs >= 0)
        # The sampler overwrites the logits; the log probabilities are of the raw ones.
        raw = logits[asking] if len(asking) else None
        tokens = sample(logits, settings, self._draw)
        self._keep(tokens, rows, places, output, check)
        if raw is not None:
            entries = token_logprobs(raw, tokens[asking], num_logprobs[asking])
            for number, entry in zip(owner[asking].tolist(), entries, strict=True):
                place = places[number]
                listed = output.logprobs.setdefault(output.req_ids[place], [])
                if len(listed) < len(output.sampled_token_ids[place]):
                    listed.append(entry)
        if self._prompt_logprobs:
            complete = [output.req_ids[place] for place in places]
            output.prompt_logprobs |= self._prompt_logprobs.take(complete)

    def _keep(
        self,
        tokens: IntArray,
        rows: IntArray,
        places: list[int],
        output: ModelRunnerOutput,
        check: DraftCheck | None,
    ) -> None:
        if check is None:
            self._batch.append_tokens(rows, tokens)
            for place, token in zip(places, tokens.tolist(), strict=True):
                output.sampled_token_ids[place] = [token]
            return
        kept = check.kept(tokens)
        for place, found in zip(places, kept, strict=True):
            output.sampled_token_ids[place] = found
        for number in range(max(map(len, kept), default=0)):
            going = [at for at, found in enumerate(kept) if len(found) > number]
            nth = np.array([kept[at][number] for at in going], dtype=np.int64)
            self._batch.append_tokens(rows[going], nth)

    def run_dummy(self, num_tokens: int, num_seqs: int) -> None:
        """One forward pass of made-up prompts, written to the null block of a throwaway cache.

        No prompt is longer than the model; what is too much for `num_seqs` of them is left out.
        CorruptModelError when its logits are no numbers: no request could be answered.
        """
        tokens = min(num_tokens, num_seqs * self._max_model_len)
        batch = dummy_batch(tokens, num_seqs, self._block_size, self._num_groups)
        cache = self._model.create_kv_cache(1)
        if not self._place.is_first_stage:  # what the stage before would send
            zeros = np.zeros((len(batch.token_ids), self._hidden_size), dtype=np.float32)
            batch = dataclasses.replace(batch, residual=zeros)
        if not self._place.is_last_stage:
            cast(StageStep, self._model).residual(batch, cache)
            return
        logits = self._model.forward(batch, cache)
        if self._place.is_output and bool((most_likely(logits) == NO_TOKEN).any()):
            raise CorruptModelError(
                "The model's first logits are no numbers (NaN): a number in config.json (such as "
                "rope_theta or rms_norm_eps), a weight, or --dtype is wrong. Compare the folder "
                "with the model's repository, or try --dtype float32."
            )

    def _apply(self, step: SchedulerOutput) -> None:
        self._drop(step.finished_req_ids)
        for request in step.new_requests:
            self._batch.add(request, self._slot_of(request.lora_id))
            self._prompt_logprobs.add(request)
            self._pooler.add(request)
            self._images.add(request)
        self._batch.update(step.cached_requests)

    def _drop(self, req_ids: Sequence[str]) -> None:
        """Let requests go; unknown ids are those that never ran here."""
        if self._keeping is not None:
            here = [req_id for req_id in req_ids if req_id in self._batch]
            self._keeping.forget(self._batch.rows(here))
        self._batch.remove(req_ids)
        self._prompt_logprobs.remove(req_ids)
        self._pooler.remove(req_ids)
        self._images.remove(req_ids)


def dummy_batch(num_tokens: int, num_seqs: int, block_size: int, num_groups: int) -> StepBatch:
    """`num_seqs` prompts that share `num_tokens` tokens; every block table points at block 0."""
    seqs = min(num_seqs, num_tokens)
    lengths = np.full(seqs, num_tokens // seqs, dtype=np.int64)
    lengths[: num_tokens % seqs] += 1
    ends = np.cumsum(lengths)
    num_blocks = -(-int(lengths[0]) // block_size)
    positions = within_runs(lengths)
    return StepBatch(
        token_ids=np.zeros(num_tokens, dtype=np.int64),
        positions=positions,
        slot_mapping=np.tile(positions % block_size, (num_groups, 1)),
        query_start_loc=np.concatenate(([0], ends)),
        num_computed=np.zeros(seqs, dtype=np.int64),
        block_table=np.zeros((num_groups, seqs, num_blocks), dtype=np.int64),
        logits_rows=ends - 1,
    )
