"""How many bytes the KV cache may take: vLLM's rule on a GPU, a capped share of free RAM on a CPU.

The arithmetic alone: free memory comes from the device, or from `engine.machine.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config import CacheConfig
from engine.errors import MemoryBudgetError
from engine.kv_sizing import KVCacheSpec, cpu_share, format_gib, requested_memory
from engine.machine.gpus import GpuHolder, read_other_processes

_SHOWN_HOLDERS = 4


@dataclass(frozen=True, slots=True)
class GpuMemoryProfile:
    """Bytes around the profile run; `free_at_init` was taken before the weights were loaded."""

    total: int
    free_at_init: int
    free_after_profile: int
    transient_peak: int  # highest allocation of the forward pass above what stays allocated


def require_requested_memory(
    total: int,
    free: int,
    utilization: float,
    read_processes: Callable[[], Sequence[GpuHolder]] = read_other_processes,
) -> None:
    """Raise MemoryBudgetError when other processes hold too much of the device, and name them."""
    requested = requested_memory(total, utilization)
    if free >= requested:
        return
    holders = read_processes()
    held_by = f" Memory is held by: {describe_holders(holders)}." if holders else ""
    # Only a pid that could be looked up here is certain to be the process that is meant.
    named = next((holder.pid for holder in holders if holder.name is not None), None)
    advice = "Stop the other processes on this GPU"
    if named is not None:  # it may be somebody's server at work: that is not ours to decide
        advice = f"If that is not needed any more, type `kill {named}`"
    if (share := free * 100 // total) > 0:
        advice += f", or give --gpu-memory-utilization {share / 100}"
    raise MemoryBudgetError(
        f"Free memory on device ({format_gib(free)}/{format_gib(total)} GiB) on startup is less "
        f"than desired GPU memory utilization ({utilization}, {format_gib(requested)} GiB)."
        f"{held_by} {advice}."
    )


def describe_holders(holders: Sequence[GpuHolder]) -> str:
    """`pid 1234 python (12.3 GiB), pid 77 (size unknown)`."""
    shown = [_describe(holder) for holder in holders[:_SHOWN_HOLDERS]]
    if len(holders) > _SHOWN_HOLDERS:
        shown.append(f"{len(holders) - _SHOWN_HOLDERS} more")
    return ", ".join(shown)


def _describe(holder: GpuHolder) -> str:
    label = f"{holder.pid}" if holder.name is None else f"{holder.pid} {holder.name}"
    size = "size unknown" if holder.bytes is None else f"{format_gib(holder.bytes)} GiB"
    return f"pid {label} ({size})"


def gpu_available_bytes(profile: GpuMemoryProfile, cache: CacheConfig, graph_bytes: int = 0) -> int:
    """requested share - (held by this process + transient peak) - what CUDA graphs will take.

    An explicit size wins.
    """
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes
    if profile.free_after_profile > profile.free_at_init:
        raise MemoryBudgetError(
            f"Free GPU memory grew from {format_gib(profile.free_at_init)} to "
            f"{format_gib(profile.free_after_profile)} GiB during the profile run: another process "
            "freed memory meanwhile. Start the server again."
        )
    consumed = profile.free_at_init - profile.free_after_profile
    requested = requested_memory(profile.total, cache.gpu_memory_utilization)
    return requested - consumed - profile.transient_peak - graph_bytes


def cpu_available_bytes(
    free_bytes: int, cache: CacheConfig, spec: KVCacheSpec, max_model_len: int
) -> int:
    """The share of free RAM, but at most 4 GiB, or one full-length request if that is more."""
    explicit = cache.kv_cache_memory_bytes
    if explicit is None:
        return cpu_share(free_bytes, cache.gpu_memory_utilization, spec, max_model_len)
    if explicit > free_bytes:
        raise MemoryBudgetError(
            f"--kv-cache-memory-bytes {explicit} ({format_gib(explicit)} GiB) is more than the "
            f"{format_gib(free_bytes)} GiB of RAM that are free. Give at most that."
        )
    return explicit
