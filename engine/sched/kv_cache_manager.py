"""KVCacheManager: which blocks each request holds, prefix-cache lookup, allocation and release.

Rules of vLLM's v1/core/kv_cache_manager.py for one full-attention group.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.sched.block_pool import BlockPool, KVCacheBlock
from engine.sched.request import Request


class KVCacheManager:
    """Block tables of the live requests, over one BlockPool."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_caching: bool) -> None:
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.block_pool = BlockPool(num_blocks, enable_caching=enable_caching)
        self._tables: dict[str, list[KVCacheBlock]] = {}
        self._num_hashed: dict[str, int] = {}  # leading blocks whose hash is registered

    @property
    def usage(self) -> float:
        """Share of usable blocks in use, 0..1."""
        return self.block_pool.usage

    def get_computed_blocks(self, request: Request) -> list[KVCacheBlock]:
        """Longest run of cached blocks from the start of the request.

        At least the last token is left to compute, because its logits are needed.
        """
        if not self.enable_caching:
            return []
        limit = (request.num_tokens - 1) // self.block_size
        hits: list[KVCacheBlock] = []
        for block_hash in request.block_hashes[:limit]:
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: Sequence[KVCacheBlock] = (),
        *,
        must_fit_tokens: int = 0,
    ) -> list[KVCacheBlock] | None:
        """Blocks for `num_new_tokens` after the computed tokens and `hits`; None when they do not
        fit.

        `must_fit_tokens` is the admission gate: that many tokens of the request must fit now,
        although only `num_new_tokens` get blocks. Full blocks are registered for prefix lookup
        right away.
        """
        table = self._tables.get(request.request_id, [])
        if table and not hits and not must_fit_tokens:
            end = request.num_computed_tokens + num_new_tokens
            if end <= len(table) * self.block_size:  # the usual decode step: nothing to allocate
                if self.enable_caching:
                    self._register_full_blocks(request, end)
                return []
        num_computed = request.num_computed_tokens + len(hits) * self.block_size
        num_held = len(table) + len(hits)
        needed = self._blocks_for(num_computed + num_new_tokens) - num_held
        gate = max(needed, self._blocks_for(must_fit_tokens) - num_held)
        # A hit without a user still lies in the free queue, so taking it uses up a free block.
        evictable_hits = sum(1 for block in hits if block.ref_cnt == 0)
        if max(gate, 0) + evictable_hits > self.block_pool.num_free_blocks:
            return None
        self.block_pool.touch(hits)
        new_blocks = self.block_pool.get_new_blocks(needed) if needed > 0 else []
        if not table:
            self._tables[request.request_id] = table
            self._num_hashed[request.request_id] = len(hits)
        table.extend(hits)
        table.extend(new_blocks)
        if self.enable_caching:
            self._register_full_blocks(request, num_computed + num_new_tokens)
        return new_blocks

    def free(self, request: Request) -> None:
        """Give back every block of the request; cached content stays findable until reused."""
        self._num_hashed.pop(request.request_id, None)
        self.block_pool.free_blocks(self._tables.pop(request.request_id, []))

    def get_block_ids(self, request_id: str) -> list[int]:
        """The request's block table."""
        return [block.block_id for block in self._tables.get(request_id, ())]

    def reset_prefix_cache(self) -> bool:
        """Forget cached content; False while blocks are in use."""
        return self.block_pool.reset_prefix_cache()

    def _register_full_blocks(self, request: Request, num_tokens: int) -> None:
        done = self._num_hashed[request.request_id]
        full = num_tokens // self.block_size
        if full <= done:
            return
        full = min(full, request.num_tokens // self.block_size)
        table = self._tables[request.request_id]
        for index in range(done, full):
            self.block_pool.cache_block(table[index], request.block_hashes[index])
        self._num_hashed[request.request_id] = full

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
