"""How many tokens and requests one step may have: vLLM's defaults by device, and their caps.

get_batch_defaults and _set_default_max_num_seqs_and_batched_tokens_args in vLLM's
engine/arg_utils.py. The engine and `stoker plan` both ask here. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.machine.sizes import GIB


@dataclass(frozen=True, slots=True)
class StepBudget:
    """`basis` says which device the defaults are those of."""

    max_num_batched_tokens: int
    max_num_seqs: int
    basis: str


@dataclass(frozen=True, slots=True)
class StepDevice:
    """The device whose defaults count; no `memory_bytes` is a CPU."""

    name: str = "cpu"
    memory_bytes: int | None = None


def step_budget(
    device: StepDevice,
    max_model_len: int,
    *,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    enable_chunked_prefill: bool = True,
) -> StepBudget:
    """The limits of a step; None takes the device's default.

    No step has more tokens than `max_num_seqs` requests of `max_model_len` tokens, and no more
    requests than tokens, whatever was asked for.
    """
    tokens, seqs, basis = _device_defaults(device)
    if max_num_batched_tokens is not None:
        tokens = max_num_batched_tokens
    elif not enable_chunked_prefill:
        tokens = max(tokens, max_model_len)
    seqs = max_num_seqs or seqs
    tokens = min(tokens, seqs * max_model_len)
    return StepBudget(tokens, min(seqs, tokens), basis)


def _device_defaults(device: StepDevice) -> tuple[int, int, str]:
    """(max_num_batched_tokens, max_num_seqs, what they are the defaults of) of `vllm serve`."""
    memory = device.memory_bytes
    if memory is None:
        return 2048, 128, "a CPU"
    if memory >= 160 * GIB:
        return 16_384, 1024, "a GPU of 160 GiB or more"
    if memory >= 70 * GIB and "a100" not in device.name.lower():
        return 8192, 1024, "a GPU of 70 GiB or more that is no A100"
    return 2048, 256, "a GPU below 70 GiB, or an A100"
