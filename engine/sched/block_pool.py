"""BlockPool: the fixed set of KV blocks, the free queue and the prefix-cache index.

Rules of vLLM's v1/core/block_pool.py. Block 0 is the null block and is never handed out. The free
queue doubles as eviction order. Owns block bookkeeping only; no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.sched.block_hash import BlockHash


class KVCacheBlock:
    """One block. `block_hash` is set while its content can be found by prefix lookup."""

    __slots__ = ("block_hash", "block_id", "next_free", "prev_free", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: BlockHash | None = None
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt})"


class FreeBlockQueue:
    """Doubly linked list of free blocks, front first; every operation on one block is O(1)."""

    __slots__ = ("_head", "_tail", "num_free")

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self.num_free = 0
        for block in blocks:
            self.append(block)

    def popleft(self) -> KVCacheBlock:
        """Take the block at the front; the caller has checked `num_free`."""
        block = self._head.next_free
        assert block is not None
        assert block is not self._tail, "no free block"
        self.remove(block)
        return block

    def append(self, block: KVCacheBlock) -> None:
        """Put a block at the end: it is reused last."""
        last = self._tail.prev_free
        assert last is not None
        self._insert(last, block, self._tail)

    def appendleft(self, block: KVCacheBlock) -> None:
        """Put a block at the front: it is reused first."""
        first = self._head.next_free
        assert first is not None
        self._insert(self._head, block, first)

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out from anywhere."""
        before, after = block.prev_free, block.next_free
        assert before is not None, f"{block} is not free"
        assert after is not None, f"{block} is not free"
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self.num_free -= 1

    def block_ids(self) -> list[int]:
        """Ids from front to end, for tests and diagnosis."""
        ids = []
        block = self._head.next_free
        while block is not None and block is not self._tail:
            ids.append(block.block_id)
            block = block.next_free
        return ids

    def _insert(self, before: KVCacheBlock, block: KVCacheBlock, after: KVCacheBlock) -> None:
        before.next_free = after.prev_free = block
        block.prev_free, block.next_free = before, after
        self.num_free += 1


class BlockPool:
    """Hands out, shares, caches and takes back blocks.

    With prefix caching on, freed full blocks go to the end of the free queue (tail of a sequence
    first, so its head survives longest) and others to the front. With caching off every freed block
    goes to the end in table order.
    """

    def __init__(self, num_blocks: int, *, enable_caching: bool) -> None:
        assert num_blocks >= 2, "one null block and one usable block at least"
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.free_queue = FreeBlockQueue(self.blocks)
        self.null_block = self.free_queue.popleft()
        # Several blocks may hold equal content; the first inserted is the one that lookups return.
        self._cached: dict[BlockHash, dict[int, KVCacheBlock]] = {}
        self.num_cached_blocks = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now; cached ones without a user count as free."""
        return self.free_queue.num_free

    @property
    def usage(self) -> float:
        """Share of usable blocks that some request holds, 0..1."""
        return 1.0 - self.free_queue.num_free / (self.num_blocks - 1)

    def get_new_blocks(self, count: int) -> list[KVCacheBlock]:
        """Pop `count` blocks (the caller has checked that they are there) and evict what they
        cached.
        """
        blocks = [self.free_queue.popleft() for _ in range(count)]
        self.forget(blocks)
        for block in blocks:
            block.ref_cnt = 1
        return blocks

    def get_cached_block(self, block_hash: BlockHash) -> KVCacheBlock | None:
        """The block that holds this content, None on a miss."""
        entries = self._cached.get(block_hash)
        return next(iter(entries.values())) if entries else None

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add a user to cached blocks; free ones leave the free queue."""
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_queue.remove(block)
            block.ref_cnt += 1

    def cache_block(self, block: KVCacheBlock, block_hash: BlockHash) -> None:
        """Make a full block findable."""
        if block.block_hash is None:
            block.block_hash = block_hash
            self._cached.setdefault(block_hash, {})[block.block_id] = block
            self.num_cached_blocks += 1

    def forget(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Make blocks unfindable: they hold nothing, or nothing of use any more."""
        for block in blocks:
            if block.block_hash is not None:
                self._forget(block)

    def free_blocks(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Drop one use of each block of a request's table (given in table order)."""
        if not self.enable_caching:
            for block in blocks:
                if self._release(block):
                    self.free_queue.append(block)
            return
        for block in reversed(blocks):
            if self._release(block):
                if block.block_hash is None:
                    self.free_queue.appendleft(block)
                else:
                    self.free_queue.append(block)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; False (and nothing changed) while any block is in use."""
        if self.free_queue.num_free != self.num_blocks - 1:
            return False
        for block in self.blocks:
            block.block_hash = None
        self._cached.clear()
        self.num_cached_blocks = 0
        return True

    def _release(self, block: KVCacheBlock) -> bool:
        assert block.ref_cnt > 0, f"{block} is freed twice"
        block.ref_cnt -= 1
        return block.ref_cnt == 0

    def _forget(self, block: KVCacheBlock) -> None:
        assert block.block_hash is not None
        entries = self._cached[block.block_hash]
        del entries[block.block_id]
        if not entries:
            del self._cached[block.block_hash]
        block.block_hash = None
        self.num_cached_blocks -= 1
