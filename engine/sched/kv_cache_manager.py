"""KVCacheManager: which blocks each request holds, prefix-cache lookup, allocation and release.

Every group of layers (full attention, sliding window) has a block table of its own per request; all
take their blocks from one pool. Rules of vLLM's v1/core/kv_cache_manager.py and its coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from engine.kv_sizing import FULL_ATTENTION, KVCacheGroup, blocks_held
from engine.sched.block_hash import BlockHash
from engine.sched.block_pool import BlockPool, KVCacheBlock
from engine.sched.request import Request
from engine.sched.scheduler_output import BlockIds

PrefixHits: TypeAlias = list[list[KVCacheBlock]]
"""Cached blocks of each group, equally long; the null block where a window needs none."""


class KVCacheManager:
    """Block tables of the live requests, over one BlockPool.

    `in_flight_tokens` is what one step may add to a request before it gives back the blocks that
    fell out of a window.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_caching: bool,
        groups: Sequence[KVCacheGroup] = FULL_ATTENTION,
        in_flight_tokens: int = 0,
    ) -> None:
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.block_pool = BlockPool(num_blocks, enable_caching=enable_caching)
        self._windows = [group.sliding_window for group in groups]
        self._has_windows = any(window is not None for window in self._windows)
        self._in_flight_tokens = in_flight_tokens
        self._tables: dict[str, list[list[KVCacheBlock]]] = {}
        self._num_hashed: dict[str, int] = {}  # leading positions whose hashes are registered
        self._num_dropped: dict[str, list[int]] = {}  # leading positions out of each window

    @property
    def usage(self) -> float:
        """Share of usable blocks in use, 0..1."""
        return self.block_pool.usage

    # ---- lookup --------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Request) -> PrefixHits:
        """Longest run of cached blocks from the start of the request; empty lists when none.

        At least the last token is left to compute, because its logits are needed. A group with a
        window needs only the blocks that the next token sees.
        """
        if not self.enable_caching:
            return [[] for _ in self._windows]
        limit = (request.num_tokens - 1) // self.block_size
        hashes = request.block_hashes[:limit]
        full = [group for group, window in enumerate(self._windows) if window is None]
        for group in full:
            hashes = hashes[: self._num_leading(hashes, group)]
        shorter = True
        while shorter and hashes:
            before = len(hashes)
            for group, window in enumerate(self._windows):
                if window is not None:
                    hashes = hashes[: self._num_before_window(hashes, group, window)]
            shorter = len(hashes) < before
        return [self._hits(hashes, group) for group in range(len(self._windows))]

    def _num_leading(self, hashes: Sequence[BlockHash], group: int) -> int:
        for number, block_hash in enumerate(hashes):
            if self.block_pool.get_cached_block(_key(block_hash, group)) is None:
                return number
        return len(hashes)

    def _num_before_window(self, hashes: Sequence[BlockHash], group: int, window: int) -> int:
        """Longest prefix whose last `window - 1` tokens are cached in this group."""
        needed, run = -(-(window - 1) // self.block_size), 0
        for index in range(len(hashes) - 1, -1, -1):
            if run == needed:
                return index + 1 + needed
            is_cached = self.block_pool.get_cached_block(_key(hashes[index], group)) is not None
            run = run + 1 if is_cached else 0
        return run

    def _hits(self, hashes: Sequence[BlockHash], group: int) -> list[KVCacheBlock]:
        window = self._windows[group]
        first = 0
        if window is not None:
            first = max(0, len(hashes) - -(-(window - 1) // self.block_size))
        hits = [self.block_pool.null_block] * first
        for block_hash in hashes[first:]:
            block = self.block_pool.get_cached_block(_key(block_hash, group))
            assert block is not None, "looked up a moment ago"
            hits.append(block)
        return hits

    # ---- allocation ----------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: PrefixHits | None = None,
        *,
        must_fit_tokens: int = 0,
    ) -> BlockIds | None:
        """Blocks for `num_new_tokens` after the computed tokens and `hits`.

        None when they do not fit, an empty list when none are needed. `must_fit_tokens` is the
        admission gate: that many tokens of the request must fit now, although only
        `num_new_tokens` get blocks. Full blocks are registered for prefix lookup right away.
        """
        tables = self._tables.get(request.request_id)
        if tables is None:
            return self._admit(request, num_new_tokens, hits or [], must_fit_tokens)
        if self._has_windows:
            self._drop_outside_windows(request, tables)
        end = request.num_computed_tokens + num_new_tokens
        needed = self._blocks_for(end) - len(tables[0])
        new_ids: BlockIds = []
        if needed > 0:  # not so in the usual decode step
            if needed * len(tables) > self.block_pool.num_free_blocks:
                return None
            new_ids = self._extend(tables, needed)
        if self.enable_caching:
            self._register_full_blocks(request, tables, end)
        return new_ids

    def _admit(
        self, request: Request, num_new_tokens: int, hits: PrefixHits, must_fit_tokens: int
    ) -> BlockIds | None:
        num_hit = len(hits[0]) if hits else 0
        end = num_hit * self.block_size + num_new_tokens
        needed = self._blocks_for(end) - num_hit
        live = [
            [block for block in group_hits if block is not self.block_pool.null_block]
            for group_hits in hits or [[] for _ in self._windows]
        ]
        wanted = sum(
            max(
                needed,
                blocks_held(must_fit_tokens, window, self._in_flight_tokens, self.block_size)
                - len(held),
            )
            for window, held in zip(self._windows, live, strict=True)
        )
        # A hit without a user still lies in the free queue, so taking it uses up a free block.
        evictable = sum(block.ref_cnt == 0 for held in live for block in held)
        if wanted + evictable > self.block_pool.num_free_blocks:
            return None
        for held in live:
            self.block_pool.touch(held)
        tables = [list(group_hits) for group_hits in hits] or [[] for _ in self._windows]
        new_ids = self._extend(tables, needed)
        self._tables[request.request_id] = tables
        self._num_hashed[request.request_id] = num_hit
        self._num_dropped[request.request_id] = [
            len(table) - needed - len(held) for table, held in zip(tables, live, strict=True)
        ]
        if self.enable_caching:
            self._register_full_blocks(request, tables, end)
        return new_ids

    def _extend(self, tables: list[list[KVCacheBlock]], count: int) -> BlockIds:
        new_ids = []
        for table in tables:
            blocks = self.block_pool.get_new_blocks(count)
            table.extend(blocks)
            new_ids.append([block.block_id for block in blocks])
        return new_ids

    def _drop_outside_windows(self, request: Request, tables: list[list[KVCacheBlock]]) -> None:
        """Give back blocks that no later token of the request sees."""
        dropped = self._num_dropped[request.request_id]
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            first_seen = request.num_computed_tokens - window + 1
            done, end = dropped[group], first_seen // self.block_size
            if end > done:
                table = tables[group]
                self.block_pool.free_blocks(table[done:end])
                table[done:end] = [self.block_pool.null_block] * (end - done)
                dropped[group] = end

    def free(self, request: Request) -> None:
        """Give back every block of the request; cached content stays findable until reused."""
        request_id = request.request_id
        self._num_hashed.pop(request_id, None)
        dropped = self._num_dropped.pop(request_id, None)
        if dropped is not None:
            for table, start in zip(self._tables.pop(request_id), dropped, strict=True):
                self.block_pool.free_blocks(table[start:])

    def forget_uncomputed(self, request: Request) -> None:
        """Blocks that a step taken back was to fill must not be found by a prefix lookup."""
        computed = request.num_computed_tokens // self.block_size
        end = self._num_hashed[request.request_id]
        for table in self._tables[request.request_id]:
            self.block_pool.forget(table[computed:end])

    def forget(self, request: Request) -> None:
        """None of the request's blocks may be found by a prefix lookup any more."""
        for table in self._tables[request.request_id]:
            self.block_pool.forget(table)

    def register_computed(self, request: Request) -> None:
        """Blocks that a draft filled can be found from now on, as others from their planning on."""
        if self.enable_caching:
            tables = self._tables[request.request_id]
            self._register_full_blocks(request, tables, request.num_computed_tokens)

    def get_block_ids(self, request_id: str) -> BlockIds:
        """The request's block tables, one per group."""
        tables = self._tables.get(request_id) or [[] for _ in self._windows]
        return [[block.block_id for block in table] for table in tables]

    def reset_prefix_cache(self) -> bool:
        """Forget cached content; False while blocks are in use."""
        return self.block_pool.reset_prefix_cache()

    def _register_full_blocks(
        self, request: Request, tables: list[list[KVCacheBlock]], num_tokens: int
    ) -> None:
        done = self._num_hashed[request.request_id]
        full = num_tokens // self.block_size
        if full <= done:
            return
        full = min(full, request.num_tokens // self.block_size)
        for group, table in enumerate(tables):
            for index in range(done, full):
                self.block_pool.cache_block(table[index], _key(request.block_hashes[index], group))
        self._num_hashed[request.request_id] = full

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def _key(block_hash: BlockHash, group: int) -> BlockHash:
    """Equal tokens have other keys and values in the layers of another group."""
    return block_hash if group == 0 else BlockHash(block_hash + group.to_bytes(4, "big"))
