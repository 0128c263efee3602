"""Single operations of the reference set against their definitions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine.errors import ConfigError
from engine.kernels.kernel_set import create_kernel_set
from engine.kernels.reference import ReferenceKernels
from engine.kv_sizing import KVCacheSpec


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_linear_equals_plain_linear(dtype: torch.dtype, with_bias: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(48, 32).to(dtype)
    bias = torch.randn(48).to(dtype) if with_bias else None
    packed = ReferenceKernels().pack_linear(weight, bias)
    for rows in (0, 1, 7, 40):
        x = torch.randn(rows, 32).to(dtype)
        torch.testing.assert_close(packed.run(x), F.linear(x, weight, bias), rtol=0.02, atol=0.02)
    assert packed.num_bytes >= weight.nbytes


def test_add_rms_norm_updates_the_residual() -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(5, 16), torch.randn(5, 16), torch.randn(16)
    total = x + residual
    result = ReferenceKernels().add_rms_norm(x, residual, weight, 1e-5)
    expected = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(residual, total)


def test_rotary_turns_each_pair_by_its_angle() -> None:
    torch.manual_seed(0)
    heads, angles = torch.randn(4, 3, 8), torch.randn(4, 1, 4)
    first, second = heads[..., :4].clone(), heads[..., 4:].clone()
    cos, sin = angles.cos(), angles.sin()
    ReferenceKernels().rotary(heads, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    torch.testing.assert_close(heads[..., :4], first * cos - second * sin)
    torch.testing.assert_close(heads[..., 4:], second * cos + first * sin)


def test_silu_and_mul_gates_the_second_half_by_the_first() -> None:
    x = torch.tensor([[0.0, 2.0, 5.0, -3.0]])
    result = ReferenceKernels().activate_and_mul(x, "silu")
    expected = torch.tensor([[0.0, -3.0 * 2.0 / (1 + 2.718281828**-2.0)]])
    torch.testing.assert_close(result, expected)


def test_a_fresh_cache_reads_as_zeros() -> None:
    spec = KVCacheSpec(4, 2, 8, 3, 2)
    cache = ReferenceKernels().create_kv_cache(spec, 5, torch.bfloat16, torch.device("cpu"))
    assert len(cache) == 3
    assert sum(layer.nbytes for layer in cache) == 5 * spec.bytes_per_block
    assert not any(layer.any() for layer in cache)


def test_an_unknown_kernel_set_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'warp'.*reference"):
        create_kernel_set("warp")
