"""Triton's kernels for rows and heads against their plain-torch twins, under the interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tests.interpreted_triton  # noqa: F401  (before any kernel)
from engine.kernels.kernel_set import most_likely
from engine.kernels.reference import ReferenceKernels
from engine.kernels.step_batch import NO_TOKEN
from engine.kernels.triton.activation import activate_and_mul
from engine.kernels.triton.argmax import argmax
from engine.kernels.triton.embedding import embed
from engine.kernels.triton.heads import Rotation, rotate_and_store
from engine.kernels.triton.norm import add_rms_norm
from engine.kernels.triton.runtime import launch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
REFERENCE = ReferenceKernels()


def near(found: Tensor, expected: Tensor) -> None:
    """Equal up to the last digit of the format."""
    rtol = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[found.dtype]
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 1), (3, 61), (2, 1000)])
def test_norm_of_the_residual_stream(dtype: torch.dtype, tokens: int, hidden: int) -> None:
    torch.manual_seed(hidden)
    x = torch.randn(tokens, hidden).to(dtype)
    residual, weight = torch.randn(tokens, hidden), torch.randn(hidden)
    expected_residual = residual.clone()
    expected = REFERENCE.add_rms_norm(x, expected_residual, weight, 1e-5)
    out = torch.full((tokens, hidden), torch.nan, dtype=dtype)
    near(add_rms_norm(launch, out, x, residual, weight, 1e-5), expected)
    torch.testing.assert_close(residual, expected_residual)
    plain = add_rms_norm(launch, torch.empty_like(residual), None, residual, weight, 1e-5)
    near(plain, REFERENCE.rms_norm(residual, weight, 1e-5))
    torch.testing.assert_close(residual, expected_residual)  # only read


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm_of_what_is_added(dtype: torch.dtype) -> None:
    """Gemma 3 norms the output of each block before it is added."""
    torch.manual_seed(1)
    x, residual = torch.randn(4, 77).to(dtype), torch.randn(4, 77)
    weight, x_weight = torch.randn(77), torch.randn(77)
    expected_residual = residual.clone()
    normed = REFERENCE.rms_norm(x.float(), x_weight, 1e-6)
    expected = REFERENCE.add_rms_norm(normed, expected_residual, weight, 1e-6)
    out = add_rms_norm(launch, torch.empty_like(x), x, residual, weight, 1e-6, x_weight)
    near(out, expected)
    torch.testing.assert_close(residual, expected_residual)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("width", [1, 37])
def test_activations(dtype: torch.dtype, activation: str, width: int) -> None:
    torch.manual_seed(width)
    gate_up = (torch.randn(3, 2 * width) * 6).to(dtype)
    out = torch.empty(3, width, dtype=dtype)
    activate_and_mul(launch, out, gate_up, activation, block=16, warps=1)
    near(out, REFERENCE.activate_and_mul(gate_up.float(), activation))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [16, 33])
def test_embedding_rows_are_scaled(dtype: torch.dtype, hidden: int) -> None:
    table = torch.randn(11, hidden).to(dtype)
    token_ids = torch.tensor([10, 0, 3, 3], dtype=torch.int32)
    residual = torch.empty(4, hidden)
    embed(launch, residual, token_ids, table, 1.5, block=16, warps=1)
    torch.testing.assert_close(residual, F.embedding(token_ids.long(), table).float() * 1.5)


def test_embedding_rows_of_tokens_that_only_the_device_knows() -> None:
    """-1 - r is the token of row r; that of a row without one does no harm."""
    table, residual = torch.randn(11, 20), torch.empty(4, 20)
    token_ids = torch.tensor([7, -1, -3, -2], dtype=torch.int32)
    sampled = torch.tensor([10, NO_TOKEN, 4])
    embed(launch, residual, token_ids, table, 1.0, block=16, warps=1, sampled=sampled)
    torch.testing.assert_close(residual, table[[7, 10, 4, 0]])


@pytest.mark.parametrize("splits", [1, 3, 4])
@pytest.mark.parametrize("vocabulary", [1, 40, 199])
def test_greedy_tokens(splits: int, vocabulary: int) -> None:
    """The first of equal logits, also across parts; NO_TOKEN where one is NaN."""
    torch.manual_seed(vocabulary)
    logits = torch.randint(-3, 4, (9, vocabulary)).float()
    logits[1] = 2.0
    logits[2] = -torch.inf
    logits[3, vocabulary // 2] = torch.inf
    logits[4, vocabulary - 1] = torch.nan
    logits[5] = torch.nan
    logits[6, 0], logits[6, vocabulary - 1] = torch.inf, torch.nan
    counters = torch.zeros(9, dtype=torch.int32)
    scratch = torch.empty(9 * splits), torch.empty(9 * splits, dtype=torch.int32), counters
    tokens = torch.empty(9, dtype=torch.int64)
    for _ in range(2):  # the second launch finds the counters as the first one did
        argmax(launch, tokens.fill_(-7), logits, scratch, splits, block=16, warps=1)
        assert tokens.tolist() == most_likely(logits).tolist()
    assert tokens[4:7].tolist() == [NO_TOKEN] * 3
    assert not counters.any()


def rotation(head_dim: int, *, norms: bool) -> Rotation:
    angles = torch.randn(40, head_dim // 2)
    cos, sin = angles.cos(), angles.sin()
    q_norm, k_norm = torch.randn(2, head_dim) if norms else (None, None)
    return Rotation(torch.cat((cos, cos, -sin, sin), -1), q_norm, k_norm, 1e-6)


def expected_heads(qkv: Tensor, positions: Tensor, turn: Rotation, q_heads: int) -> Tensor:
    """By the reference's operations in float32."""
    result, kv_heads = qkv.float(), (qkv.shape[1] - q_heads) // 2
    for part, norm in (
        (result[:, :q_heads], turn.q_norm),
        (result[:, q_heads : q_heads + kv_heads], turn.k_norm),
    ):
        if norm is not None:
            part.copy_(REFERENCE.rms_norm(part, norm, turn.eps))
        cos, sin = turn.angles[positions.long()].chunk(2, -1)
        REFERENCE.rotary(part, cos[:, None], sin[:, None])
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("head_dim", "q_heads", "kv_heads"), [(8, 3, 1), (24, 4, 2)])
def test_heads_are_rotated_and_stored(
    dtype: torch.dtype, norms: bool, head_dim: int, q_heads: int, kv_heads: int
) -> None:
    torch.manual_seed(head_dim)
    qkv = torch.randn(5, q_heads + 2 * kv_heads, head_dim).to(dtype)
    positions = torch.tensor([0, 7, 39, 8, 1], dtype=torch.int32)
    slots = torch.tensor([3, 19, 4, -1, 11], dtype=torch.int32)
    turn = rotation(head_dim, norms=norms)
    expected = expected_heads(qkv, positions, turn, q_heads)
    page = torch.zeros(5, 2, 4, kv_heads, head_dim, dtype=dtype)
    rotate_and_store(launch, qkv, page, slots, positions, turn)
    near(qkv, expected)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            stored = page[slot // 4, :, slot % 4]
            assert torch.equal(stored.flatten(0, 1), qkv[token, q_heads:])
            stored.zero_()
    assert not page.any()  # the token without a slot is nowhere


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.5, 4.0)], ids=["plain", "scaled"])
def test_an_fp8_cache_has_the_bytes_of_torch(
    dtype: torch.dtype, scales: tuple[float, float]
) -> None:
    """Every magnitude: what is rounded to zero, subnormal, normal, and beyond 448."""
    torch.manual_seed(2)
    exponents = torch.linspace(-14, 10, 4 * 2 * 24).view(4, 2, 24)
    kv = (torch.exp2(exponents) * torch.randn(4, 2, 24).sign()).to(dtype)
    kv[0, 0, :4] = torch.tensor([0.0, -0.0, 448.0, 480.0]).to(dtype)
    kv[0, 0, 4:9] = torch.tensor([17.0, 19.0, 2**-10, 3 * 2**-10, 15 * 2**-10]).to(dtype)  # ties
    qkv = torch.cat((torch.randn(4, 1, 24).to(dtype), kv), 1)
    before = qkv.clone()
    page = torch.zeros(1, 2, 4, 1, 24, dtype=torch.uint8)
    slots = torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    rotate_and_store(launch, qkv, page, slots, slots, None, scales)
    assert torch.equal(qkv, before)
    for side, scale in enumerate(scales):
        scaled = (kv[:, side].float() / scale).clamp(-448, 448)
        expected = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
        assert torch.equal(page[0, side, slots.long(), 0], expected)
