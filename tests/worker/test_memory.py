"""The memory arithmetic on worked examples."""

from __future__ import annotations

import pytest

from engine.config import CacheConfig
from engine.errors import MemoryBudgetError
from engine.kv_sizing import KVCacheSpec, format_gib
from engine.machine.gpus import GpuHolder
from engine.machine.sizes import GIB
from engine.worker.memory import (
    GpuMemoryProfile,
    cpu_available_bytes,
    describe_holders,
    gpu_available_bytes,
    require_requested_memory,
)

SPEC = KVCacheSpec(block_size=16, num_kv_heads=3, head_dim=64, num_layers=30, dtype_bytes=2)


def test_gpu_share_minus_consumed_minus_peak() -> None:
    """24 GiB, 0.92: 22.08 requested - 15.56 held - 1.20 peak = 5.32 GiB."""
    profile = GpuMemoryProfile(24 * GIB, int(23.5 * GIB), int(7.94 * GIB), int(1.2 * GIB))
    available = gpu_available_bytes(profile, CacheConfig(gpu_memory_utilization=0.92))
    assert format_gib(available) == "5.32"
    with_graphs = gpu_available_bytes(profile, CacheConfig(), int(0.35 * GIB))
    assert format_gib(with_graphs) == "4.97"
    explicit = CacheConfig(kv_cache_memory_bytes=3 * GIB)
    assert gpu_available_bytes(profile, explicit) == 3 * GIB


def test_memory_freed_by_others_during_the_profile_is_refused() -> None:
    profile = GpuMemoryProfile(24 * GIB, 10 * GIB, 11 * GIB, 0)
    with pytest.raises(MemoryBudgetError, match="grew from 10"):
        gpu_available_bytes(profile, CacheConfig())


def test_an_occupied_gpu_is_refused_with_both_numbers() -> None:
    require_requested_memory(24 * GIB, 23 * GIB, 0.92)
    with pytest.raises(MemoryBudgetError, match=r"20\.0/24\.0 GiB.*0\.92, 22\.08 GiB") as caught:
        require_requested_memory(24 * GIB, 20 * GIB, 0.92, lambda: ())
    assert str(caught.value).endswith(
        "GiB). Stop the other processes on this GPU, or give --gpu-memory-utilization 0.83."
    )
    require_requested_memory(24 * GIB, 20 * GIB, 0.83, lambda: ())


def test_who_holds_the_gpu_is_named_with_what_to_type() -> None:
    holders = (GpuHolder(77, GIB), GpuHolder(1234, int(12.3 * GIB), "python"))
    with pytest.raises(MemoryBudgetError) as caught:
        require_requested_memory(24 * GIB, 10 * GIB, 0.92, lambda: holders)
    assert str(caught.value).endswith(
        "Memory is held by: pid 77 (1.0 GiB), pid 1234 python (12.3 GiB). "
        "If that is not needed any more, type `kill 1234`, or give --gpu-memory-utilization 0.41."
    )
    with pytest.raises(MemoryBudgetError, match=r"type `kill 1234`\.$"):  # 0.0 would be refused
        require_requested_memory(24 * GIB, GIB // 8, 0.92, lambda: holders)


def test_a_pid_that_cannot_be_looked_up_is_never_offered_to_kill() -> None:
    with pytest.raises(MemoryBudgetError, match=r"pid 77 \(1\.0 GiB\)") as caught:
        require_requested_memory(24 * GIB, 10 * GIB, 0.92, lambda: [GpuHolder(77, GIB)])
    assert "kill" not in str(caught.value)


def test_cpu_takes_a_share_up_to_the_cap() -> None:
    cache = CacheConfig(gpu_memory_utilization=0.5)
    assert cpu_available_bytes(2 * GIB, cache, SPEC, 8192) == GIB
    assert cpu_available_bytes(100 * GIB, cache, SPEC, 8192) == 4 * GIB


def test_one_long_request_lifts_the_cap() -> None:
    length = 1_000_000
    needed = (length // 16 + 1) * SPEC.bytes_per_block
    assert needed > 4 * GIB
    assert cpu_available_bytes(500 * GIB, CacheConfig(), SPEC, length) == needed


def test_an_explicit_size_must_fit_into_free_ram() -> None:
    cache = CacheConfig(kv_cache_memory_bytes=3 * GIB)
    assert cpu_available_bytes(4 * GIB, cache, SPEC, 8192) == 3 * GIB
    with pytest.raises(MemoryBudgetError, match=r"3\.0 GiB.*2\.0 GiB"):
        cpu_available_bytes(2 * GIB, cache, SPEC, 8192)


def test_description_of_holders() -> None:
    processes = [GpuHolder(1234, int(12.3 * GIB), "python"), GpuHolder(77, None)]

    assert describe_holders(processes) == "pid 1234 python (12.3 GiB), pid 77 (size unknown)"
    assert describe_holders([GpuHolder(pid, GIB) for pid in range(1, 7)]).endswith(
        "pid 4 (1.0 GiB), 2 more"
    )
