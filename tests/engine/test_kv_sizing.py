from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import CacheConfig
from engine.errors import ConfigError, MemoryBudgetError
from engine.kv_sizing import (
    KVCacheGroup,
    KVCacheSpec,
    cache_dtype_bytes,
    capacity_line,
    format_gib,
    group_layers,
    kv_cache_spec,
    kv_capacity,
    longest_model_len,
    pipeline_stages,
    requested_memory,
    require_one_request_fits,
)
from engine.machine.sizes import GIB
from engine.model_config import ModelConfig
from tests.tiny_model import write_tiny_llama

LLAMA_8B = KVCacheSpec(block_size=16, num_kv_heads=8, head_dim=128, num_layers=32, dtype_bytes=2)
GEMMA_4B = KVCacheSpec(
    block_size=16,
    num_kv_heads=4,
    head_dim=256,
    num_layers=34,
    dtype_bytes=2,
    groups=group_layers([None if (n + 1) % 6 == 0 else 1024 for n in range(34)]),
    in_flight_tokens=2048,
)


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


@pytest.mark.parametrize(
    ("cache", "lever"),
    [
        (None, "`gpu_memory_utilization` or"),
        (CacheConfig(), "`gpu_memory_utilization` or"),
        (CacheConfig(num_gpu_blocks_override=9), "--num-gpu-blocks-override (to 4097 or more)"),
        (CacheConfig(kv_cache_memory_bytes=9), "--kv-cache-memory-bytes (to 8592"),
    ],
)
def test_the_advice_names_the_flag_that_decided_the_size(
    cache: CacheConfig | None, lever: str
) -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        require_one_request_fits(lesson_budget(), LLAMA_8B, 65_536, cache)
    assert f"Try increasing {lever}" in str(caught.value)
    others = {"gpu_memory_utilization", "num-gpu-blocks", "kv-cache-memory"}
    assert sum(other in str(caught.value) for other in others) == 1


@given(st.integers(0, 10**11), st.integers(1, 300_000))
def test_the_longest_length_fits_and_one_more_block_does_not(available: int, length: int) -> None:
    for spec in (LLAMA_8B, GEMMA_4B):
        longest = longest_model_len(available, spec, length)
        assert longest <= length
        if longest:
            require_one_request_fits(available, spec, longest)
        if longest < length:
            with pytest.raises(MemoryBudgetError):
                require_one_request_fits(available, spec, longest + 1)
        capacity = kv_capacity(available, spec, length)
        assert capacity.num_blocks * spec.bytes_per_block <= available


def test_layers_of_two_kinds_share_blocks_of_one_size() -> None:
    windows = [None if (n + 1) % 6 == 0 else 512 for n in range(18)]
    groups = group_layers(windows)
    assert [(len(group.layers), group.sliding_window) for group in groups] == [
        (3, None),
        *[(3, 512)] * 5,
    ]
    assert groups[0].layers == (5, 11, 17)
    assert groups[1].layers == (0, 6, 12)  # every fifth of the fifteen: interleaved
    assert sorted(n for group in groups for n in group.layers) == list(range(18))


def test_nearly_equal_kinds_are_padded_and_one_kind_is_one_group() -> None:
    assert [len(g.layers) for g in group_layers([None, 8] * 3 + [None])] == [4, 3]
    assert group_layers([8, 8]) == (KVCacheGroup((0, 1), 8),)
    assert group_layers([None] * 3) == (KVCacheGroup((0, 1, 2)),)


def test_a_window_holds_its_tokens_and_those_in_flight() -> None:
    assert GEMMA_4B.layers_per_block == 5
    full, sliding = GEMMA_4B.groups[0], GEMMA_4B.groups[1]
    assert GEMMA_4B.blocks_of_group(full, 32_768) == 2048
    # 1023 tokens seen by the next one and 2048 of the step, from the middle of a block on
    assert GEMMA_4B.blocks_of_group(sliding, 32_768) == 193
    assert GEMMA_4B.blocks_of_group(sliding, 100) == 7
    assert GEMMA_4B.blocks_per_request(32_768) == 2048 + 6 * 193
    capacity = kv_capacity(GIB, GEMMA_4B, 32_768)
    assert capacity.num_blocks == GIB // (5 * 2 * 16 * 4 * 256 * 2)
    assert capacity.num_tokens == int(capacity.num_blocks / 3206 * 32_768)


def test_ranks_share_the_heads_and_stages_the_layers(tmp_path: Path) -> None:
    model = ModelConfig.from_folder(
        write_tiny_llama(tmp_path, num_attention_heads=8, num_key_value_heads=4), "tiny"
    )

    def spec(ranks: int, layers: range | None = None, **changes: Any) -> KVCacheSpec:
        return kv_cache_spec(
            dataclasses.replace(model, **changes),
            block_size=16,
            cache_dtype="fp8",
            in_flight_tokens=0,
            tensor_parallel_size=ranks,
            layers=layers,
        )

    assert [spec(ranks).num_kv_heads for ranks in (1, 2, 4, 8)] == [4, 2, 1, 1]
    assert spec(1, range(1, 2)).num_layers == 1
    latent = spec(8, kv_lora_rank=512, qk_rope_head_dim=64)  # an MLA cache is not split
    assert latent.page_bytes == 16 * 576
    with pytest.raises(ConfigError, match="'int3' is not known; known: float32"):
        cache_dtype_bytes("int3", "bfloat16")


def test_stages_before_the_last_take_what_is_left_over() -> None:
    def sizes(layers: int, stages: int) -> list[int]:
        return [len(stage) for stage in pipeline_stages(layers, stages)]

    assert sizes(32, 4) == [8, 8, 8, 8]
    assert sizes(30, 4) == [7, 8, 8, 7]
    assert sizes(31, 4) == [8, 8, 8, 7]
    assert sizes(5, 1) == [5]
    stages = pipeline_stages(31, 4)
    assert [number for stage in stages for number in stage] == list(range(31))
