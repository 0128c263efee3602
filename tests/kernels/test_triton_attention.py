"""Triton's attention kernels against the reference set's, under the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.interpreted_triton  # noqa: F401  (before any kernel)
from engine.kernels.triton.decode_attention import (
    AttentionShape,
    DecodeRows,
    DecodeScratch,
    decode_attention,
)
from engine.kernels.triton.heads import Rotation, rotate_and_store
from engine.kernels.triton.prefill_attention import (
    PrefillTiles,
    prefill_attention,
    tokens_per_tile,
)
from engine.kernels.triton.runtime import launch
from engine.kernels.triton.targets import INTERPRETED
from engine.kv_sizing import KVCacheGroup, KVCacheSpec

CPU = torch.device("cpu")
TILES = INTERPRETED.tiles


class Case:
    """One step of one layer: the last `new` of `context` tokens of each sequence are computed.

    What came before is in blocks at random places of a page; what was never written there is NaN.
    """

    def __init__(
        self,
        lengths: list[tuple[int, int]],
        *,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 16,
        block_size: int = 8,
        window: int | None = None,
        dtype: torch.dtype = torch.float32,
        is_fp8: bool = False,
    ) -> None:
        torch.manual_seed(len(lengths) + head_dim)
        self.q_heads, kv_heads = heads
        self.lengths = lengths
        num_bytes = 1 if is_fp8 else dtype.itemsize
        groups = (KVCacheGroup((0,), window),)
        self.spec = KVCacheSpec(block_size, kv_heads, head_dim, 1, num_bytes, groups)
        self.shape = AttentionShape(self.q_heads, head_dim**-0.5, window)
        width = max(self.spec.blocks_for(context) for _, context in lengths)
        count = len(lengths) * width
        order = np.random.default_rng(5).permutation(count) + 1
        self.table = torch.from_numpy(order.reshape(len(lengths), width)).int()
        page = torch.full((count + 1, 2, block_size, kv_heads, head_dim), torch.nan)
        for row, (new, context) in zip(self.table, lengths, strict=True):
            for position in range(context - new):
                block, offset = int(row[position // block_size]), position % block_size
                page[block, :, offset] = torch.randn(2, kv_heads, head_dim)
        stored = page.to(torch.float8_e4m3fn).view(torch.uint8) if is_fp8 else page.to(dtype)
        self.page = stored
        tokens = sum(new for new, _ in lengths)
        self.qkv = torch.randn(tokens, self.q_heads + 2 * kv_heads, head_dim).to(dtype)
        news = [new for new, _ in lengths]
        self.query_start = torch.tensor([0, *np.cumsum(news)], dtype=torch.int32)
        self.contexts = torch.tensor([context for _, context in lengths], dtype=torch.int32)
        spans = [range(context - new, context) for new, context in lengths]
        self.positions = torch.tensor([p for span in spans for p in span], dtype=torch.int32)
        self.slots = torch.tensor(
            [
                int(row[p // block_size]) * block_size + p % block_size
                for row, span in zip(self.table, spans, strict=True)
                for p in span
            ],
            dtype=torch.int32,
        )

    @property
    def width(self) -> Tensor:
        return torch.tensor([self.table.shape[1]], dtype=torch.int32)

    def rows(self, sequences: list[int] | None = None) -> DecodeRows:
        return DecodeRows(
            len(self.lengths) if sequences is None else len(sequences),
            None if sequences is None else torch.tensor(sequences, dtype=torch.int32),
            self.query_start,
            self.contexts,
            self.table,
            self.width,
        )

    def tiles(self, sequences: list[int]) -> PrefillTiles:
        step = tokens_per_tile(TILES, self.q_heads // self.spec.num_kv_heads, self.spec.head_dim)
        pairs = [(n, first) for n in sequences for first in range(0, self.lengths[n][0], step)]
        owners, starts = torch.tensor(pairs, dtype=torch.int32).T.contiguous()
        return PrefillTiles(owners, starts, self.query_start, self.contexts, self.table, self.width)

    def scratch(self, splits: int) -> DecodeScratch:
        kv_heads, head_dim = self.spec.num_kv_heads, self.spec.head_dim
        count = len(self.lengths)
        return DecodeScratch.allocate(count, self.q_heads, kv_heads, head_dim, splits, CPU)

    @property
    def sinks(self) -> Tensor:
        """A score of one more key for each query head."""
        return torch.linspace(-2.0, 3.0, self.q_heads)

    def expected(self, soft_cap: float | None = None, sinks: Tensor | None = None) -> Tensor:
        """Plain attention in float32 over what the page holds, one token after the other."""
        kv_heads, size = self.spec.num_kv_heads, self.spec.block_size
        out = torch.empty(len(self.qkv), self.q_heads, self.spec.head_dim)
        page = self.page
        page = (page.view(torch.float8_e4m3fn) if page.dtype == torch.uint8 else page).float()
        token = 0
        for row, (new, context) in zip(self.table, self.lengths, strict=True):
            for end in range(context - new + 1, context + 1):
                first = 0 if self.shape.window is None else max(0, end - self.shape.window)
                seen = torch.arange(first, end)
                keys, values = page[row[seen // size].long(), :, seen % size].unbind(1)
                for head in range(self.q_heads):
                    kv_head = head // (self.q_heads // kv_heads)
                    scores = keys[:, kv_head] @ self.qkv[token, head].float() * self.shape.scale
                    if soft_cap is not None:
                        scores = soft_cap * torch.tanh(scores / soft_cap)
                    if sinks is not None:
                        scores = torch.cat((scores, sinks[head : head + 1]))
                    out[token, head] = scores.softmax(0)[: len(keys)] @ values[:, kv_head]
                token += 1
        return out.flatten(1)


def store(case: Case) -> None:
    rotate_and_store(launch, case.qkv, case.page, case.slots, case.positions, None)


def near(found: Tensor, expected: Tensor) -> None:
    rtol = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}[found.dtype]
    torch.testing.assert_close(found.float(), expected, rtol=rtol, atol=rtol)


DECODES = [(1, 1), (1, 33), (1, 8), (1, 70), (1, 16)]


def decode(case: Case, splits: int, **changes: object) -> Tensor:
    scratch = case.scratch(splits)
    out = torch.full((len(case.qkv), case.q_heads * case.spec.head_dim), torch.nan)
    out = out.to(case.qkv.dtype)
    shape = replace(case.shape, **changes)  # type: ignore[arg-type]
    decode_attention(launch, out, case.qkv, case.page, case.rows(), shape, scratch, TILES, splits)
    assert not scratch.counters.any()
    return out


@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("heads", [(3, 1), (4, 4), (6, 2)], ids=str)
def test_decodes_with_split_keys(splits: int, heads: tuple[int, int]) -> None:
    case = Case(DECODES, heads=heads)
    store(case)
    near(decode(case, splits), case.expected())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("head_dim", "block_size"), [(8, 1), (24, 16), (40, 5)])
def test_decodes_in_16_bit_with_odd_sizes(
    dtype: torch.dtype, head_dim: int, block_size: int
) -> None:
    case = Case(DECODES, dtype=dtype, head_dim=head_dim, block_size=block_size)
    store(case)
    near(decode(case, 3), case.expected())


@pytest.mark.parametrize("window", [1, 7, 16, 40])
def test_decodes_see_their_window(window: int) -> None:
    """What lies before it was given to others: it is NaN."""
    case = Case(DECODES, window=window)
    store(case)
    for row, (_, context) in zip(case.table, case.lengths, strict=True):
        case.page[row[: max(0, context - window) // 8].long()] = torch.nan
    near(decode(case, 3), case.expected())


def test_a_soft_cap_presses_scores() -> None:
    case = Case(DECODES)
    case.qkv[:, :4] *= 30
    store(case)
    found = decode(case, 2, soft_cap=5.0)
    near(found, case.expected(soft_cap=5.0))
    assert not torch.allclose(found, case.expected())


@pytest.mark.parametrize("splits", [1, 3])
def test_sinks_take_a_share_of_the_weights(splits: int) -> None:
    case = Case(DECODES)
    store(case)
    expected = case.expected(sinks=case.sinks)
    case.shape = replace(case.shape, sinks=case.sinks)
    near(decode(case, splits), expected)
    assert not torch.allclose(expected, case.expected(), rtol=0.1)


def test_chunks_with_sinks() -> None:
    case = Case(CHUNKS, window=30)
    store(case)
    out = torch.empty(len(case.qkv), case.q_heads * 16)
    shape = replace(case.shape, sinks=case.sinks)
    prefill_attention(launch, out, case.qkv, case.page, case.tiles([0, 1, 2, 3, 4]), shape, TILES)
    near(out, case.expected(sinks=case.sinks))


def test_decodes_over_an_fp8_cache() -> None:
    case = Case(DECODES, is_fp8=True, dtype=torch.bfloat16)
    store(case)
    near(decode(case, 2), case.expected())


def test_fp8_scales_come_out_again() -> None:
    """Keys kept at a quarter and values at twice their size, told by the scales."""
    case = Case(DECODES)
    plain, scaled = Case(DECODES, is_fp8=True), Case(DECODES, is_fp8=True)
    for name, scale in ((0, 4.0), (1, 0.5)):
        values = (case.page[:, name].nan_to_num() / scale).to(torch.float8_e4m3fn)
        plain.page[:, name] = (values.float() * scale).to(torch.float8_e4m3fn).view(torch.uint8)
        scaled.page[:, name] = values.view(torch.uint8)
    rotate_and_store(launch, scaled.qkv, scaled.page, case.slots, case.positions, None, (4.0, 0.5))
    kept = scaled.page.view(torch.float8_e4m3fn).float()
    kept[:, 0] *= 4.0
    kept[:, 1] *= 0.5
    case.page = kept
    near(decode(scaled, 2, kv_scales=(4.0, 0.5)), case.expected())


def turn(case: Case, *, norms: bool) -> Rotation:
    size = case.spec.head_dim
    angles = torch.randn(80, size // 2)
    cos, sin = angles.cos(), angles.sin()
    q_norm, k_norm = torch.randn(2, size) if norms else (None, None)
    return Rotation(torch.cat((cos, cos, -sin, sin), -1), q_norm, k_norm, 1e-6)


@pytest.mark.parametrize(
    ("splits", "norms", "is_fp8"),
    [(1, False, False), (3, True, False), (3, False, True), (1, True, True)],
)
def test_one_launch_does_what_three_do(splits: int, norms: bool, is_fp8: bool) -> None:
    """Norms, rotation, write and attention: the same cache bytes, the same result; a sequence of
    a padded batch is left alone.
    """
    lengths = [*DECODES, (1, 5)]
    apart, fused = (Case(lengths, is_fp8=is_fp8, window=20) for _ in range(2))
    rotation = turn(apart, norms=norms)
    rotate_and_store(launch, apart.qkv, apart.page, apart.slots, apart.positions, rotation)
    expected = decode(apart, splits)
    fused.contexts[-1] = 0
    scratch = fused.scratch(splits)
    out = torch.full_like(expected, -1.0)
    decode_attention(
        launch,
        out,
        fused.qkv,
        fused.page,
        fused.rows(),
        fused.shape,
        scratch,
        TILES,
        splits,
        fused.slots,
        rotation,
    )
    near(out[:-1], expected[:-1])
    assert (out[-1] == -1).all()
    last = apart.page[apart.table[-1].long()]
    fused.page[fused.table[-1].long()] = last
    assert torch.equal(fused.page.view(torch.uint8), apart.page.view(torch.uint8))
    assert not scratch.counters.any()


CHUNKS = [(5, 5), (1, 40), (33, 33), (17, 60), (2, 9)]


@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size", "window"),
    [
        ((3, 1), 16, 8, None),
        ((4, 4), 24, 5, None),
        ((6, 2), 8, 1, 7),
        ((4, 2), 16, 16, 40),
        ((4, 2), 16, 8, 1),
    ],
)
def test_chunks_of_any_length(
    heads: tuple[int, int], head_dim: int, block_size: int, window: int | None
) -> None:
    case = Case(CHUNKS, heads=heads, head_dim=head_dim, block_size=block_size, window=window)
    store(case)
    out = torch.full((len(case.qkv), case.q_heads * head_dim), torch.nan)
    prefill_attention(
        launch, out, case.qkv, case.page, case.tiles([0, 1, 2, 3, 4]), case.shape, TILES
    )
    near(out, case.expected())


@pytest.mark.parametrize(("dtype", "is_fp8"), [(torch.float16, False), (torch.bfloat16, True)])
def test_chunks_in_16_and_8_bit(dtype: torch.dtype, is_fp8: bool) -> None:
    case = Case(CHUNKS, dtype=dtype, is_fp8=is_fp8)
    store(case)
    out = torch.empty(len(case.qkv), case.q_heads * 16, dtype=dtype)
    shape = replace(case.shape, soft_cap=3.0)
    prefill_attention(launch, out, case.qkv, case.page, case.tiles([0, 1, 2, 3, 4]), shape, TILES)
    near(out, case.expected(soft_cap=3.0))


def test_a_mixed_step_is_cut_into_decodes_and_chunks() -> None:
    """Each kernel writes the rows of its own sequences and no others."""
    case = Case(CHUNKS, window=30)
    store(case)
    out = torch.full((len(case.qkv), case.q_heads * 16), -7.0)
    expected = case.expected()
    decode_attention(
        launch,
        out,
        case.qkv,
        case.page,
        case.rows([1]),
        case.shape,
        case.scratch(2),
        TILES,
        splits=2,
    )
    near(out[5:6], expected[5:6])
    assert (out[:5] == -7).all()
    assert (out[6:] == -7).all()
    prefill_attention(launch, out, case.qkv, case.page, case.tiles([0, 2, 3, 4]), case.shape, TILES)
    near(out, expected)
