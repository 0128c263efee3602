from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import MemoryBudgetError
from engine.kv_sizing import (
    GIB,
    KVCacheSpec,
    capacity_line,
    format_gib,
    kv_capacity,
    longest_model_len,
    requested_memory,
    require_one_request_fits,
)

LLAMA_8B = KVCacheSpec(block_size=16, num_kv_heads=8, head_dim=128, num_layers=32, dtype_bytes=2)


def lesson_budget() -> int:
    """Example 6: a Llama-3.1-8B shape in bf16 on a GPU of 24 GiB."""
    weights = 8_030_261_248 * 2
    other = int(0.60 * GIB) + int(1.20 * GIB) + int(0.35 * GIB)
    return requested_memory(24 * GIB, 0.92) - weights - other


def test_example_6_to_the_digit() -> None:
    available = lesson_budget()
    assert format_gib(available) == "4.97"
    lines = []
    for dtype_bytes in (2, 1):
        spec = KVCacheSpec(16, 8, 128, 32, dtype_bytes)
        for length in (32_768, 8_192):
            capacity = kv_capacity(available, spec, length)
            lines.append(
                f"block={spec.bytes_per_block // 1024} KiB blocks={capacity.num_blocks} | "
                + capacity_line(capacity, length, "GPU")
            )
    bf16, fp8 = "block=2048 KiB blocks=2545", "block=1024 KiB blocks=5091"
    size = "GPU KV cache size"
    most = "Maximum concurrency for"
    assert lines == [
        f"{bf16} | {size}: 40,720 tokens, {most} 32,768 tokens per request: 1.24x",
        f"{bf16} | {size}: 40,720 tokens, {most} 8,192 tokens per request: 4.97x",
        f"{fp8} | {size}: 81,456 tokens, {most} 32,768 tokens per request: 2.49x",
        f"{fp8} | {size}: 81,456 tokens, {most} 8,192 tokens per request: 9.94x",
    ]


def test_gib_is_printed_without_padding() -> None:
    assert format_gib(5 * GIB) == "5.0"
    assert format_gib(lesson_budget() - 5 * GIB).startswith("-0.03")


def test_a_request_that_does_not_fit_is_refused_with_the_length_that_would() -> None:
    with pytest.raises(MemoryBudgetError, match=r"max seq len \(65536\).*is 40704") as caught:
        require_one_request_fits(lesson_budget(), LLAMA_8B, 65_536)
    assert "decreasing `max_model_len`" in str(caught.value)
    with pytest.raises(MemoryBudgetError, match="No available memory for the cache blocks"):
        require_one_request_fits(LLAMA_8B.bytes_per_block, LLAMA_8B, 16)


@given(st.integers(0, 10**11), st.integers(1, 300_000))
def test_the_longest_length_fits_and_one_more_block_does_not(available: int, length: int) -> None:
    longest = longest_model_len(available, LLAMA_8B)
    if longest:
        require_one_request_fits(available, LLAMA_8B, longest)
    with pytest.raises(MemoryBudgetError):
        require_one_request_fits(available, LLAMA_8B, longest + 1)
    capacity = kv_capacity(available, LLAMA_8B, length)
    assert capacity.num_blocks * LLAMA_8B.bytes_per_block <= available
