"""Products with weights of 8 bits against their plain-torch twins, under the interpreter."""

from __future__ import annotations

import pytest
import torch

import tests.interpreted_triton  # noqa: F401  (before any kernel)
from engine.kernels.scaled_weights import plain_weight, product, scaled_rows, scaled_weight
from engine.kernels.triton.kernels import TritonKernels
from engine.kernels.triton.runtime import launch
from engine.kernels.triton.targets import INTERPRETED
from engine.kernels.triton.weight_products import fp8_product, int8_product, quantize_rows
from engine.kernels.weight_formats import FP8, FP8_BLOCKS, INT8, weight_formats

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIZES = [(1, 1, 1), (3, 61, 37), (17, 130, 259), (33, 129, 128), (2, 16, 300)]  # tokens, out, in


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "depth"), [(1, 1), (3, 61), (2, 1000)])
def test_inputs_become_integers_by_token(dtype: torch.dtype, tokens: int, depth: int) -> None:
    torch.manual_seed(depth)
    x = (torch.randn(tokens, depth) * 10.0 ** torch.arange(tokens)[:, None]).to(dtype)
    numbers = torch.empty(tokens, depth, dtype=torch.int8)
    scales = torch.empty(tokens)
    quantize_rows(launch, numbers, scales, x, 256, 1)
    wanted, wanted_scales = scaled_rows(x)
    assert torch.equal(scales, wanted_scales)
    assert torch.equal(numbers, wanted)
    assert (numbers.abs().amax(1) == 127).all()


def test_a_token_of_zeros_stays_zeros() -> None:
    x = torch.zeros(2, 40)
    x[1, 3] = -2.0
    numbers, scales = torch.empty(2, 40, dtype=torch.int8), torch.empty(2)
    quantize_rows(launch, numbers, scales, x, 16, 1)
    assert scales.tolist() == [0.0, pytest.approx(2 / 127)]
    assert not numbers[0].any()
    assert numbers[1, 3] == -127


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "width", "depth"), SIZES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_int8_products(
    tokens: int, width: int, depth: int, has_bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(width)
    x, weight = torch.randn(tokens, depth).to(dtype), torch.randn(width, depth)
    bias = torch.randn(width).to(dtype) if has_bias else None
    scaled = scaled_weight(weight, INT8)
    numbers, scales = scaled_rows(x)
    out = torch.full((tokens, width), torch.nan, dtype=dtype)
    int8_product(launch, out, numbers, scales, scaled, bias, INTERPRETED)
    rtol = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    torch.testing.assert_close(
        out, product(x, scaled, bias).to(dtype), rtol=rtol, atol=rtol * depth**0.5
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "width", "depth"), SIZES)
@pytest.mark.parametrize("number_format", [FP8, FP8_BLOCKS])
def test_fp8_products(
    tokens: int, width: int, depth: int, number_format: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(width)
    x, weight = torch.randn(tokens, depth).to(dtype), torch.randn(width, depth)
    weight[:, : depth // 2] *= 50  # so that blocks and channels have scales of their own
    bias = torch.randn(width).to(dtype)
    scaled = scaled_weight(weight, number_format)
    out = torch.full((tokens, width), torch.nan, dtype=dtype)
    fp8_product(launch, out, x, scaled, bias, INTERPRETED)
    wanted = product(x, scaled, bias)
    rtol = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    atol = rtol * float(wanted.abs().max())
    torch.testing.assert_close(out, wanted.to(dtype), rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("number_format", "error"), [(INT8, 0.01), (FP8, 0.03), (FP8_BLOCKS, 0.03)]
)
def test_rounded_weights_are_near_the_real_ones(number_format: str, error: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(200, 300, dtype=torch.bfloat16)
    weight[7] = 0.0
    scaled = scaled_weight(weight, number_format)
    rounded = plain_weight(scaled)
    assert float((rounded - weight.float()).norm() / weight.float().norm()) < error
    assert not rounded[7].any()
    assert scaled.num_bytes < weight.nbytes * 0.52


@pytest.mark.parametrize("quantization", ["int8", "fp8", "fp8_per_block"])
def test_the_set_packs_linears_in_the_format_that_was_asked_for(quantization: str) -> None:
    torch.manual_seed(0)
    formats = weight_formats(quantization)
    kernels = TritonKernels(INTERPRETED, formats=formats)
    weight, bias, x = torch.randn(40, 64), torch.randn(40), torch.randn(5, 64)
    linear, head = kernels.pack_linear(weight, bias), kernels.pack_head(weight)
    scaled = scaled_weight(weight, formats.layers)
    torch.testing.assert_close(linear.run(x), product(x, scaled, bias), rtol=1e-4, atol=1e-4)
    assert linear.run(x[:0]).shape == (0, 40)
    assert (linear.is_copy, linear.num_bytes) == (True, scaled.num_bytes + bias.nbytes)
    wanted = product(x, scaled) if quantization == "int8" else x @ weight.t()
    torch.testing.assert_close(head.run(x), wanted, rtol=1e-4, atol=1e-4)
