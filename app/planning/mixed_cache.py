"""The cache of layers that differ: other heads, windows and states beside each other.

vLLM's rules (v1/core/kv_cache_utils.py and platforms/interface.py): one size of block for all
groups of layers, so that blocks of layers with small pages hold more tokens, and where layers keep
a state, a block of attention holds as many tokens as make its page as large as the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.planning.layer_caches import LayerCache, LayerState
from engine.kv_sizing import KVCacheGroup, KVCacheSpec, group_layers

_ALIGNMENT = 16  # tokens: blocks of attention are multiples of it
_SCALE_OF = 128  # keys of an indexer that share a scale of 4 bytes


@dataclass(frozen=True, slots=True)
class CacheRules:
    """`dtype_bytes` are those of a cached value, `state_bytes` those of one of a state."""

    block_size: int
    dtype_bytes: int
    state_bytes: int
    tensor_parallel_size: int
    in_flight_tokens: int


@dataclass(frozen=True, slots=True)
class MixedGroup(KVCacheGroup):
    """`tokens` that one of its blocks holds; 0 for a state, which is one block of a request."""

    tokens: int = 0


@dataclass(frozen=True, slots=True)
class MixedCacheSpec(KVCacheSpec):
    """A cache whose groups differ in the tokens of a block, not in the bytes of one."""

    largest_page: int = 0
    block_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        """The largest layer's share of a block."""
        return self.largest_page

    @property
    def bytes_per_block(self) -> int:
        """All pages of one block."""
        return self.block_bytes

    def blocks_of_group(self, group: KVCacheGroup, num_tokens: int) -> int:
        """Blocks that one request of `num_tokens` can need in this group."""
        tokens = group.tokens if isinstance(group, MixedGroup) else self.block_size
        if tokens == 0:  # a state
            return 1
        return blocks_cut(num_tokens, group.sliding_window, self.in_flight_tokens, tokens)


def blocks_cut(num_tokens: int, window: int | None, in_flight_tokens: int, block_size: int) -> int:
    """`blocks_held` as vLLM plans it: a window that reaches beyond the request is cut at the
    request, before the block at its edge is added.
    """
    if window is None:
        return -(-num_tokens // block_size)
    return -(-min(window - 1 + in_flight_tokens, num_tokens) // block_size) + 1


def is_mixed(caches: Sequence[LayerCache]) -> bool:
    """Whether layers differ in more than their windows."""
    kinds = {(c.num_kv_heads, c.key_dim, c.value_dim, c.index_dim, c.state) for c in caches}
    first = caches[0]
    is_plain = first.is_latent or first.key_dim == first.value_dim
    return len(kinds) > 1 or first.state is not None or first.index_dim > 0 or not is_plain


def mixed_spec(caches: Sequence[LayerCache], rules: CacheRules) -> MixedCacheSpec:
    """The cache of one rank that holds layers with these `caches`."""
    token_bytes = [bytes_of_token(cache, rules) for cache in caches]
    ranks = rules.tensor_parallel_size
    state_bytes = [
        0 if c.state is None else bytes_of_state(c.state, rules.state_bytes, ranks) for c in caches
    ]
    block_size = _block_size(token_bytes, state_bytes, rules)
    page = max(*(block_size * size for size in token_bytes), *state_bytes, 0)
    kinds = [
        kind
        for cache, size, state in zip(caches, token_bytes, state_bytes, strict=True)
        for kind in _kinds_of(cache, size, state)
    ]
    if all(kind == ("full", None) for kind, _ in kinds) and kinds:
        sizes = [size for _, size in kinds]
        return _spec(
            block_size, rules, page, block_size * sum(sizes), _one_group(sizes, block_size)
        )
    groups = _groups(kinds, block_size, page)
    pages = max((len(group.layers) for group in groups), default=0)
    return _spec(block_size, rules, page, max(1, page * pages), groups)


def bytes_of_token(cache: LayerCache, rules: CacheRules) -> int:
    """What one layer keeps of a token on a rank; the keys of an indexer are in fp8."""
    size = cache.key_dim + cache.value_dim
    heads = cache.num_kv_heads
    if heads and not cache.is_latent:
        heads = max(1, heads // rules.tensor_parallel_size)
    index = cache.index_dim + 4 * -(-cache.index_dim // _SCALE_OF)
    return heads * size * rules.dtype_bytes + index


def bytes_of_state(state: LayerState, value_bytes: int, tensor_parallel_size: int) -> int:
    """What one layer keeps of a request, however long it is, on a rank."""
    inputs = state.channels * (state.width - 1) * value_bytes
    size = 4 if state.is_float32 else value_bytes
    return (inputs + state.recurrent * size) // tensor_parallel_size


_Kind = tuple[tuple[str, int | None], int]  # (what, window), bytes of a token or of the state


def _kinds_of(cache: LayerCache, token_bytes: int, state_bytes: int) -> list[_Kind]:
    """A layer with attention and a state counts as two."""
    found: list[_Kind] = []
    if token_bytes:
        name = "full" if cache.window is None else "sliding"
        found.append(((name, cache.window), token_bytes))
    if state_bytes:
        found.append((("state", None), state_bytes))
    return found


def _block_size(token_bytes: list[int], state_bytes: list[int], rules: CacheRules) -> int:
    largest, state = max(token_bytes, default=0), max(state_bytes, default=0)
    if not largest or state <= rules.block_size * largest:
        return rules.block_size
    step = max(_ALIGNMENT, rules.block_size) if rules.block_size > 1 else 1
    return step * -(-state // (step * largest))


def _groups(kinds: list[_Kind], block_size: int, page: int) -> tuple[MixedGroup, ...]:
    order = sorted(set(kinds), key=lambda kind: (kind[0][0], kind[0][1] or 0, kind[1]))
    found = group_layers([order.index(kind) or None for kind in kinds])
    groups = []
    for group in found:
        (name, window), size = order[group.sliding_window or 0]
        tokens = 0 if name == "state" else block_size * max(1, page // (block_size * size))
        groups.append(MixedGroup(group.layers, window, tokens))
    return tuple(groups)


def _one_group(sizes: list[int], block_size: int) -> tuple[MixedGroup, ...]:
    return (MixedGroup(tuple(range(len(sizes))), None, block_size),)


def _spec(
    block_size: int, rules: CacheRules, page: int, block_bytes: int, groups: tuple[MixedGroup, ...]
) -> MixedCacheSpec:
    return MixedCacheSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_dim=1,
        num_layers=sum(len(group.layers) for group in groups),
        dtype_bytes=rules.dtype_bytes,
        groups=groups,
        in_flight_tokens=rules.in_flight_tokens,
        largest_page=page,
        block_bytes=block_bytes,
    )
