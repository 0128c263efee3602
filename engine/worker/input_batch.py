"""InputBatch: per-request state of the model runner as numpy columns, one row per request.

A request keeps its row until it is dropped. The order of a step is the scheduler's: row numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.kernels.step_batch import IntArray, StepBatch, within_runs
from engine.sched.scheduler_output import BlockIds, CachedRequestData, NewRequestData
from engine.worker.row_edits import RowEdits, SeenTokens


class InputBatch:
    """Tokens, block tables and sampling settings of every request that the runner holds."""

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        seed: int,
        num_groups: int = 1,
    ) -> None:
        self._block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._seeds = np.random.default_rng(seed)
        # np.zeros takes no memory until a row is used. One more token than the model's length: the
        # token sampled last is kept although it is never computed.
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), dtype=np.int32)
        self.block_table = np.zeros((num_groups, max_num_seqs, max_blocks), dtype=np.int32)
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_computed = np.zeros(max_num_seqs, dtype=np.int64)
        self.temperature = np.zeros(max_num_seqs, dtype=np.float32)  # 0 is greedy
        self.top_k = np.zeros(max_num_seqs, dtype=np.int64)  # 0 is off
        self.top_p = np.ones(max_num_seqs, dtype=np.float32)
        self.min_p = np.zeros(max_num_seqs, dtype=np.float32)
        self.seeds = np.zeros(max_num_seqs, dtype=np.uint64)
        self.min_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.adapter = np.full(max_num_seqs, -1, dtype=np.int64)  # slot of its LoRA adapter
        self.num_logprobs = np.full(max_num_seqs, -1, dtype=np.int64)  # -1 is off
        self.repetition_penalty = np.ones(max_num_seqs, dtype=np.float32)
        self.presence_penalty = np.zeros(max_num_seqs, dtype=np.float32)
        self.frequency_penalty = np.zeros(max_num_seqs, dtype=np.float32)
        self.has_penalties = np.zeros(max_num_seqs, dtype=np.bool_)
        self.seen = SeenTokens(max_num_seqs, max_model_len + 1)  # rows with has_penalties only
        self.has_edits = np.zeros(max_num_seqs, dtype=np.bool_)
        self.edits: dict[int, RowEdits] = {}  # rows with has_edits only
        # Rows whose token is the most likely one, with nothing to change or to report before.
        self.is_plain = np.zeros(max_num_seqs, dtype=np.bool_)
        # Rows whose token is chosen, or told, with what the host knows of the tokens before.
        self.needs_host = np.zeros(max_num_seqs, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, req_id: object) -> bool:
        return req_id in self._row_of

    @property
    def req_ids(self) -> list[str]:
        """All requests that have a row."""
        return list(self._row_of)

    def remove(self, req_ids: Sequence[str]) -> None:
        """Drop requests; unknown ids are those that never ran here."""
        for req_id in req_ids:
            row = self._row_of.pop(req_id, None)
            if row is not None:
                self._free_rows.append(row)
                self.edits.pop(row, None)

    def add(self, request: NewRequestData, adapter: int = -1) -> None:
        """Take a row for a request that comes in full (new, or back from preemption); `adapter` is
        the slot of its LoRA adapter.
        """
        row = self._free_rows.pop()
        self._row_of[request.req_id] = row
        count = len(request.token_ids)
        self.token_ids[row, :count] = request.token_ids
        self.num_tokens[row] = count
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self.num_computed[row] = request.num_computed_tokens
        self.num_blocks[row] = 0
        self.adapter[row] = adapter
        self._append_blocks(row, request.block_ids)
        self._set_sampling(row, request)

    def update(self, cached: CachedRequestData) -> None:
        """Apply the differences of requests that are here already."""
        if not cached.req_ids:
            return
        rows = self.rows(cached.req_ids)
        self.num_computed[rows] = cached.num_computed_tokens
        for row, block_ids in zip(rows, cached.new_block_ids, strict=True):
            if block_ids:
                self._append_blocks(int(row), block_ids)

    def rows(self, req_ids: Sequence[str]) -> IntArray:
        """Row numbers in the given order."""
        return np.fromiter(
            (self._row_of[req_id] for req_id in req_ids), dtype=np.int64, count=len(req_ids)
        )

    def put_drafts(self, req_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> IntArray:
        """Write each draft behind its request's last token; their lengths, in the ids' order."""
        lengths = np.zeros(len(req_ids), dtype=np.int64)
        for place, req_id in enumerate(req_ids):
            if draft := drafts.get(req_id):
                row = self._row_of[req_id]
                start = int(self.num_tokens[row])
                self.token_ids[row, start : start + len(draft)] = draft
                lengths[place] = len(draft)
        return lengths

    def build_step(
        self, rows: IntArray, scheduled: IntArray, drafted: IntArray | None = None
    ) -> tuple[StepBatch, IntArray]:
        """The flat batch of this step, and the places in `rows` whose last known token is in it.

        With `drafted`, lengths per row, each position of a draft asks for logits too.
        """
        if drafted is None and int(scheduled.sum()) == len(rows):
            return self._build_single(rows)
        computed = self.num_computed[rows]
        ends = np.cumsum(scheduled)
        owner = np.repeat(np.arange(len(rows)), scheduled)
        positions = np.arange(int(ends[-1])) + (computed + scheduled - ends)[owner]
        blocks, offsets = np.divmod(positions, self._block_size)
        width = int(self.num_blocks[rows].max())
        table = self.block_table[:, rows, :width].astype(np.int64)
        ahead = 0 if drafted is None else drafted
        sampling = np.flatnonzero(computed + scheduled == self.num_tokens[rows] + ahead)
        logits_rows = ends[sampling] - 1
        if drafted is not None:
            wide = drafted[sampling] + 1
            logits_rows = np.repeat(ends[sampling] - wide, wide) + within_runs(wide)
        adapters = self.adapter[rows]
        batch = StepBatch(
            token_ids=self.token_ids[rows[owner], positions].astype(np.int64),
            positions=positions,
            slot_mapping=table[:, owner, blocks] * self._block_size + offsets,
            query_start_loc=np.concatenate(([0], ends)),
            num_computed=computed,
            block_table=table,
            logits_rows=logits_rows,
            adapters=adapters[owner] if (adapters >= 0).any() else None,
            rows=rows,
        )
        return batch, sampling

    def _build_single(self, rows: IntArray) -> tuple[StepBatch, IntArray]:
        """The same with one token of each row, as in most steps: a third fewer arrays to make."""
        computed = self.num_computed[rows]
        starts = np.arange(len(rows) + 1)
        blocks, offsets = np.divmod(computed, self._block_size)
        width = int(self.num_blocks[rows].max())
        table = self.block_table[:, rows, :width].astype(np.int64)
        sampling = np.flatnonzero(computed + 1 == self.num_tokens[rows])
        adapters = self.adapter[rows]
        batch = StepBatch(
            token_ids=self.token_ids[rows, computed].astype(np.int64),
            positions=computed,
            slot_mapping=table[:, starts[:-1], blocks] * self._block_size + offsets,
            query_start_loc=starts,
            num_computed=computed,
            block_table=table,
            logits_rows=sampling,
            adapters=adapters if (adapters >= 0).any() else None,
            rows=rows,
        )
        return batch, sampling

    def append_tokens(self, rows: IntArray, token_ids: IntArray) -> None:
        """Remember the sampled token of each row."""
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1
        self._count_seen(rows, token_ids)

    def _count_seen(self, rows: IntArray, token_ids: IntArray) -> None:
        penalised = self.has_penalties[rows]
        if penalised.any():
            self.seen.add(rows[penalised], token_ids[penalised])

    def expect_tokens(self, rows: IntArray) -> IntArray:
        """Tokens that are sampled, but not here yet; the next step names them by their places in
        `rows`. Returns their places in the rows' texts.
        """
        places = self.num_tokens[rows]
        self.token_ids[rows, places] = -1 - np.arange(len(rows))
        self.num_tokens[rows] += 1
        return places

    def fill_tokens(
        self, req_ids: Sequence[str], rows: IntArray, places: IntArray, token_ids: IntArray
    ) -> None:
        """What `expect_tokens` waited for; a request that was dropped since is left out."""
        known = np.array(
            [self._row_of.get(req_id) == row for req_id, row in zip(req_ids, rows, strict=True)],
            dtype=np.bool_,
        )
        self.token_ids[rows[known], places[known]] = token_ids[known]
        self._count_seen(rows[known], token_ids[known])

    def _append_blocks(self, row: int, block_ids: BlockIds) -> None:
        start = int(self.num_blocks[row])
        end = start + len(block_ids[0])
        self.block_table[:, row, start:end] = block_ids
        self.num_blocks[row] = end

    def _set_sampling(self, row: int, request: NewRequestData) -> None:
        params = request.sampling_params
        self.temperature[row] = 0.0 if params.is_greedy else params.temperature
        self.top_k[row] = max(params.top_k, 0)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.min_tokens[row] = params.min_tokens
        # A request without a seed draws one here, so that every row works the same way afterwards.
        drawn = int(self._seeds.integers(1 << 63)) if params.seed is None else params.seed
        self.seeds[row] = np.uint64(drawn % (1 << 64))
        self.num_logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self._set_edits(row, request)

    def _set_edits(self, row: int, request: NewRequestData) -> None:
        params = request.sampling_params
        self.repetition_penalty[row] = params.repetition_penalty
        self.presence_penalty[row] = params.presence_penalty
        self.frequency_penalty[row] = params.frequency_penalty
        self.has_penalties[row] = params.has_penalties
        if params.has_penalties:
            # Only the repetition penalty looks at the prompt.
            first = 0 if params.repetition_penalty != 1 else request.num_prompt_tokens
            self.seen.start(row, request.token_ids[first:], request.num_prompt_tokens - first)
        edits = RowEdits.of(params, request.eos_token_ids)
        self.has_edits[row] = edits is not None
        if edits is not None:
            self.edits[row] = edits
        is_changed = edits is not None or params.has_penalties
        has_grammar = params.structured_outputs is not None
        self.needs_host[row] = params.logprobs is not None or is_changed or has_grammar
        self.is_plain[row] = params.is_greedy and not self.needs_host[row]
