"""Paged attention of the reference set against plain attention over each whole sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels.attention_plan import split_by_length
from engine.kernels.reference import ReferenceKernels
from engine.kernels.step_batch import IntArray, StepBatch
from engine.kv_sizing import KVCacheGroup, KVCacheSpec

CPU = torch.device("cpu")


def naive(qkv: Tensor, heads: int, kv_heads: int, window: int | None = None) -> Tensor:
    """Causal attention of one sequence, one head after the other."""
    queries, keys, values = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    out = torch.empty_like(queries)
    for head in range(heads):
        shared = head // (heads // kv_heads)
        scores = queries[:, head] @ keys[:, shared].T / qkv.shape[-1] ** 0.5
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        if window is not None:
            hidden |= torch.ones_like(hidden).tril(-window)
        out[:, head] = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values[:, shared]
    return out.flatten(1)


class Paged:
    """Sequences whose blocks lie in random places of one cache."""

    def __init__(
        self,
        lengths: list[int],
        block_size: int,
        heads: int,
        kv_heads: int,
        window: int | None = None,
        value_bytes: int = 4,
    ) -> None:
        torch.manual_seed(sum(lengths))
        groups = (KVCacheGroup((0,), window),)
        self.spec = KVCacheSpec(block_size, kv_heads, 8, 1, value_bytes, groups)
        self.heads = heads
        self.qkv = [torch.randn(n, heads + 2 * kv_heads, 8) for n in lengths]
        width = max(self.spec.blocks_for(n) for n in lengths)
        order = np.random.default_rng(1).permutation(len(lengths) * width) + 1
        self.table: IntArray = order.reshape(len(lengths), width)
        self.kernels = ReferenceKernels()
        count = len(lengths) * width + 1
        self.cache = self.kernels.create_kv_cache(self.spec, count, torch.float32, CPU)[0]

    def step(self, spans: list[tuple[int, int]]) -> list[Tensor]:
        """Compute tokens start..end of each sequence; (0, 0) leaves a sequence out."""
        used = [number for number, (start, end) in enumerate(spans) if end > start]
        positions = [np.arange(*spans[number]) for number in used]
        size = self.spec.block_size
        slots = [
            self.table[n][p // size] * size + p % size for n, p in zip(used, positions, strict=True)
        ]
        lengths = np.array([len(p) for p in positions])
        batch = StepBatch(
            token_ids=np.zeros(int(lengths.sum()), dtype=np.int64),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slots)[None],
            query_start_loc=np.concatenate(([0], np.cumsum(lengths))),
            num_computed=np.array([spans[n][0] for n in used]),
            block_table=self.table[None, used],
            logits_rows=np.zeros(0, dtype=np.int64),
        )
        qkv = torch.cat([self.qkv[n][slice(*spans[n])] for n in used])
        (plan,) = self.kernels.plan_attention(batch, self.spec, torch.float32, CPU)
        self.kernels.store_kv(qkv[:, self.heads :], self.cache, plan)
        out = self.kernels.attention(qkv, self.cache, plan, 8**-0.5)
        return list(torch.split(out, lengths.tolist()))


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (3, 1)])
def test_mixed_decode_and_chunked_prefill(block_size: int, heads: int, kv_heads: int) -> None:
    lengths = [1, 33, 150, 17, 90]
    paged = Paged(lengths, block_size, heads, kv_heads)
    expected = [naive(qkv, heads, kv_heads) for qkv in paged.qkv]
    done = [0] * len(lengths)
    for chunk in ([1, 32, 70, 0, 5], [0, 1, 79, 16, 1], [0, 0, 1, 1, 84]):
        spans = [(start, start + count) for start, count in zip(done, chunk, strict=True)]
        outputs = iter(paged.step(spans))
        for number, (start, end) in enumerate(spans):
            if end > start:
                torch.testing.assert_close(next(outputs), expected[number][start:end])
        done = [end for _, end in spans]
    assert done == lengths


@pytest.mark.parametrize("window", [1, 3, 16, 40])
def test_a_window_hides_what_lies_further_back(window: int) -> None:
    """Blocks before the window belong to somebody else by then: they are filled with NaN."""
    lengths = [1, 33, 150, 90]
    paged = Paged(lengths, 4, 4, 2, window)
    expected = [naive(qkv, 4, 2, window) for qkv in paged.qkv]
    done = [0] * len(lengths)
    while done != lengths:
        ends = [min(n, end + c) for n, end, c in zip(lengths, done, (1, 7, 50, 1), strict=True)]
        spans = list(zip(done, ends, strict=True))
        used = [number for number, (start, end) in enumerate(spans) if end > start]
        for number, output in zip(used, paged.step(spans), strict=True):
            torch.testing.assert_close(output, expected[number][slice(*spans[number])])
            first_seen = ends[number] - window + 1
            if first_seen >= 4:
                paged.cache[paged.table[number, : first_seen // 4]] = torch.nan
        done = ends


def test_an_fp8_cache_gives_back_rounded_and_clamped_values() -> None:
    lengths = [1, 33, 150, 17]
    paged = Paged(lengths, 16, 4, 2, value_bytes=1)
    for qkv in paged.qkv:
        qkv[0, 4:] *= 1000.0  # more than e4m3 can hold
    paged.step([(0, n - 1) for n in lengths])
    outputs = paged.step([(n - 1, n) for n in lengths])
    for qkv, output in zip(paged.qkv, outputs, strict=True):
        rounded = qkv.clone()
        rounded[:, 4:] = qkv[:, 4:].clamp(-448, 448).to(torch.float8_e4m3fn).float()
        torch.testing.assert_close(output, naive(rounded, 4, 2)[-1:])
    assert paged.cache.nbytes == paged.spec.bytes_per_block * len(paged.cache)


def test_decode_of_very_different_lengths_uses_several_groups() -> None:
    lengths = [300] + [3] * 8
    paged = Paged(lengths, 4, 4, 2)
    paged.step([(0, n - 1) for n in lengths])
    outputs = paged.step([(n - 1, n) for n in lengths])
    for qkv, output in zip(paged.qkv, outputs, strict=True):
        torch.testing.assert_close(output, naive(qkv, 4, 2)[-1:])
    groups = split_by_length(np.arange(9), np.array(lengths), 4)
    assert [len(group) for group in groups] == [1, 8]


def test_equal_lengths_stay_one_group_in_batch_order() -> None:
    (group,) = split_by_length(np.arange(5), np.array([40, 48, 33, 47, 35]), 16)
    assert group.tolist() == [0, 1, 2, 3, 4]


def test_blocks_of_other_sequences_are_untouched() -> None:
    paged = Paged([20, 20], 4, 4, 2)
    paged.step([(0, 20), (0, 0)])
    mine = set(paged.table[0].tolist())
    others = [block for block in range(len(paged.cache)) if block not in mine]
    assert not paged.cache[others].any()
    assert paged.cache[sorted(mine)].any(-1).all()
