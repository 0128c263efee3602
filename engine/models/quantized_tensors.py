"""Tensors of a quantised checkpoint as plain ones: each linear's numbers and factors in one weight.

compressed-tensors writes `weight_packed` or a small `weight` with `weight_scale`, FP8 models
`weight_scale_inv`, AWQ and GPTQ `qweight`, `qzeros` and `scales`, MXFP4 experts `NAME_blocks` and
`NAME_scales`. A weight is made in float32 when it is read, one at a time; of MXFP4 in bfloat16.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import CorruptModelError
from engine.logger import get_logger
from engine.model_files.checkpoint import checkpoint_headers
from engine.model_files.safetensors_header import Header
from engine.model_files.weight_quantization import AWQ, MXFP4, WeightQuantization
from engine.models.safetensors_loader import (
    CheckpointTensor,
    StoredTensor,
    iterate_tensors,
    unreadable,
)

logger = get_logger(__name__)

_SMALL = ("I8", "F8_E4M3", "F8_E5M2")  # formats of a `weight` that has factors
_FACTORS = ("weight_scale", "weight_scale_inv")
_PARTS = (
    *_FACTORS,
    *("weight_zero_point", "weight_shape", "weight_g_idx", "qzeros", "scales", "g_idx"),
)
_UNUSED = (  # what inputs or the KV cache would be rounded with; both stay in the model's format
    *("input_scale", "input_zero_point", "input_global_scale", "activation_scale"),
    *("output_scale", "output_zero_point", "k_scale", "v_scale", "q_scale"),
)
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of output 0, 1, ... among the nibbles of a word
_WORD_BITS, _BYTE_BITS = 32, 8
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of 3 bits; the fourth is the sign
_FP4_SCALE_BIAS = 127  # of the powers of two that 32 values share
_BLOCKS, _SCALES = "_blocks", "_scales"


def checkpoint_tensors(
    folder: Path, quantization: WeightQuantization | None, on_shard: Callable[[int, int], None]
) -> Iterator[CheckpointTensor]:
    """The parameters of any checkpoint; `on_shard(done, total)` reports progress."""
    if quantization is None:
        return iterate_tensors(folder, on_shard)
    logger.info(
        "The checkpoint is quantised (%s); its weights are dequantised while they are loaded.",
        quantization.description,
    )
    return iterate_plain_tensors(folder, quantization, on_shard)


def iterate_plain_tensors(
    folder: Path, quantization: WeightQuantization, on_shard: Callable[[int, int], None]
) -> Iterator[CheckpointTensor]:
    """What `iterate_tensors` yields of a plain checkpoint; a linear's parts may be in any shard."""
    headers = checkpoint_headers(folder)
    places = {name: path for path, header in headers.items() for name in header}
    entries: Header = {name: entry for header in headers.values() for name, entry in header.items()}
    on_shard(0, len(headers))
    with contextlib.ExitStack() as stack:
        shards = {path: _opened(path, stack) for path in headers}

        def stored(name: str) -> StoredTensor:
            path = places[name]
            return StoredTensor(name, entries[name].shape, path, shards[path])

        for done, header in enumerate(headers.values(), 1):
            for name in header:
                base, _, kind = name.rpartition(".")
                if kind in ("weight_packed", "qweight") or _has_factors(name, entries):
                    yield _linear(base, kind, entries, stored, quantization)
                elif quantization.method == MXFP4 and name.endswith((_BLOCKS, _SCALES)):
                    if name.endswith(_BLOCKS):
                        yield _mxfp4_experts(name.removesuffix(_BLOCKS), entries, stored)
                elif kind not in _UNUSED and not _is_part(base, kind, entries):
                    yield stored(name)
            on_shard(done, len(headers))


def _opened(path: Path, stack: contextlib.ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(path, framework="pt"))
    except SafetensorError as error:
        raise unreadable(path, error) from error


def _has_factors(name: str, entries: Header) -> bool:
    if not name.endswith(".weight") or entries[name].dtype not in _SMALL:
        return False
    return any(f"{name.removesuffix('weight')}{kind}" in entries for kind in _FACTORS)


def _is_part(base: str, kind: str, entries: Header) -> bool:
    return kind in _PARTS and any(
        f"{base}.{main}" in entries for main in ("weight_packed", "qweight", "weight")
    )


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A weight [outputs, inputs] that is made of `parts` when it is read."""

    name: str
    shape: tuple[int, ...]
    parts: Mapping[str, StoredTensor]
    unpack: Callable[[_Parts], Tensor]

    def read(self, part: tuple[slice, ...] = ()) -> Tensor:
        """Float32; the whole weight is made, also where a rank needs a slice of it."""
        whole = self.unpack(_Parts(self.name, self.shape, self.parts))
        return whole[part] if part else whole


def _linear(
    base: str,
    kind: str,
    entries: Header,
    stored: Callable[[str], StoredTensor],
    quantization: WeightQuantization,
) -> QuantizedTensor:
    prefix = f"{base}." if base else ""
    parts = {each: stored(prefix + each) for each in (kind, *_PARTS) if prefix + each in entries}
    name = f"{prefix}weight"
    if kind == "weight":
        shape = entries[name].shape
        return QuantizedTensor(name, shape, parts, lambda found: _scaled(found, quantization))
    if kind == "weight_packed":
        sizes = _read(parts, "weight_shape", name).flatten().tolist()
        if len(sizes) != 2 or min(sizes) < 1:
            raise _misfit(name, f"its weight_shape is {sizes}")
        plain = (int(sizes[0]), int(sizes[1]))
        return QuantizedTensor(name, plain, parts, lambda found: _packed(found, quantization))
    words, factors = parts[kind].shape, _part(parts, "scales", name).shape
    if len(words) != 2 or len(factors) != 2:
        raise _misfit(name, f"qweight has the shape {list(words)} and scales {list(factors)}")
    if quantization.method == AWQ:
        return QuantizedTensor(
            name, (factors[1], words[0]), parts, lambda found: _awq(found, quantization)
        )
    bits = quantization.bits[0]
    shape = (words[1], words[0] * _WORD_BITS // bits)
    return QuantizedTensor(name, shape, parts, lambda found: _gptq(found, quantization))


def _mxfp4_experts(
    name: str, entries: Header, stored: Callable[[str], StoredTensor]
) -> QuantizedTensor:
    """All experts' weights of a linear, [experts, inputs, outputs]; stored are [experts, outputs,
    groups, 16] bytes of two values.
    """
    parts = {kind: stored(name + kind) for kind in (_BLOCKS, _SCALES) if name + kind in entries}
    blocks, scales = parts[_BLOCKS].shape, _part(parts, _SCALES, name).shape
    if len(blocks) != 4 or blocks[:3] != scales or blocks[3] != 16:
        raise _misfit(name, f"its blocks have the shape {list(blocks)}, scales {list(scales)}")
    shape = blocks[0], blocks[2] * 2 * blocks[3], blocks[1]
    return QuantizedTensor(name, shape, parts, _mxfp4)


class _Parts:
    """The tensors that make up the weight `name` of `shape`."""

    def __init__(
        self, name: str, shape: tuple[int, ...], stored: Mapping[str, StoredTensor]
    ) -> None:
        self.name = name
        self.shape = shape
        self._stored = stored

    def find(self, kind: str) -> Tensor | None:
        return self._stored[kind].read() if kind in self._stored else None

    def read(self, kind: str) -> Tensor:
        return _read(self._stored, kind, self.name)

    def shape_of(self, kind: str) -> tuple[int, ...]:
        """What the file's header says; nothing is read."""
        return _part(self._stored, kind, self.name).shape

    def words(self, kind: str) -> Tensor:
        """Numbers of a few bits, packed into int32."""
        found = self.read(kind)
        if found.dtype != torch.int32 or found.dim() != 2:
            raise _misfit(self.name, f"{kind} holds {found.dtype} {list(found.shape)}")
        return found

    def input_groups(self, num_groups: int, quantization: WeightQuantization) -> Tensor:
        """Which of `num_groups` groups each input belongs to, in the order of the inputs or, of a
        checkpoint that is sorted by importance, as it says.
        """
        inputs = self.shape[1]
        listed = self.find("weight_g_idx")
        if listed is None:
            listed = self.find("g_idx")
        if listed is not None and not bool((listed < 0).any()):
            if listed.shape != (inputs,) or int(listed.max()) >= num_groups:
                raise _misfit(self.name, f"its g_idx does not list {num_groups} groups")
            return listed.long()
        if num_groups == 1:
            return torch.zeros(inputs, dtype=torch.long)
        sizes = [size for size in quantization.group_sizes if -(-inputs // size) == num_groups]
        if not sizes:
            raise _misfit(self.name, f"{inputs} inputs have factors for {num_groups} groups")
        return torch.arange(inputs) // sizes[0]


def _part(parts: Mapping[str, StoredTensor], kind: str, name: str) -> StoredTensor:
    if kind not in parts:
        raise _misfit(name, f"the checkpoint lacks its {kind}")
    return parts[kind]


def _read(parts: Mapping[str, StoredTensor], kind: str, name: str) -> Tensor:
    return _part(parts, kind, name).read()


def _misfit(name: str, reason: str) -> CorruptModelError:
    return CorruptModelError(
        f"The quantised parameter {name} does not fit config.json's quantization_config: {reason}."
    )


# ---- the formats -------------------------------------------------------------------------------


def _scaled(parts: _Parts, quantization: WeightQuantization) -> Tensor:
    """int8 or fp8 numbers times a factor: of the tensor, an output, a group or a block."""
    numbers = parts.read("weight").float()
    factors = parts.find("weight_scale")
    if factors is None:
        factors = parts.read("weight_scale_inv")
    zeros = parts.find("weight_zero_point")
    if zeros is not None:
        numbers -= _spread(zeros.float(), parts, quantization)
    return numbers.mul_(_spread(factors.float(), parts, quantization))


def _spread(factors: Tensor, parts: _Parts, quantization: WeightQuantization) -> Tensor:
    """`factors` so that they can be multiplied with the weight."""
    rows, columns = parts.shape
    if factors.numel() == 1:
        return factors.reshape(1, 1)
    if factors.shape in ((rows,), (rows, 1)):
        return factors.reshape(rows, 1)
    if factors.dim() == 2 and factors.shape[0] == rows:
        return factors[:, parts.input_groups(factors.shape[1], quantization)]
    for height, width in quantization.blocks:
        if factors.shape == (-(-rows // height), -(-columns // width)):
            high = factors.repeat_interleave(height, 0)[:rows]
            return high.repeat_interleave(width, 1)[:, :columns]
    raise _misfit(
        parts.name, f"its factors have the shape {list(factors.shape)}, and it {[rows, columns]}"
    )


def _packed(parts: _Parts, quantization: WeightQuantization) -> Tensor:
    """compressed-tensors: words along the inputs, zero points along the outputs."""
    words, factors = parts.words("weight_packed"), parts.read("weight_scale")
    rows, columns = parts.shape
    fitting = [bits for bits in quantization.bits if words.shape == (rows, _words(columns, bits))]
    if not fitting:
        raise _misfit(parts.name, f"its words have the shape {list(words.shape)}")
    bits = fitting[0]
    numbers = unpacked(words, bits, columns).float().sub_(1 << (bits - 1))
    zeros = parts.find("weight_zero_point")
    if zeros is not None:
        if zeros.dtype == torch.int32 and zeros.shape[0] != rows:
            zeros = unpacked(zeros.t(), bits, rows).t().float().sub_(1 << (bits - 1))
        numbers -= _spread(zeros.float(), parts, quantization)
    return numbers.mul_(_spread(factors.float(), parts, quantization))


def _awq(parts: _Parts, quantization: WeightQuantization) -> Tensor:
    """Words along the outputs, eight of them in an order of their own."""
    factors = parts.read("scales").float()
    groups, rows = factors.shape
    _require_words(parts, "qweight", (parts.shape[1], _words(rows, 4)))
    _require_words(parts, "qzeros", (groups, _words(rows, 4)))
    numbers, zeros = (_in_order(parts.words(kind), rows) for kind in ("qweight", "qzeros"))
    of_inputs = parts.input_groups(groups, quantization)
    return ((numbers - zeros[of_inputs]) * factors[of_inputs]).t()


def _in_order(words: Tensor, count: int) -> Tensor:
    nibbles = unpacked(words, 4, words.shape[1] * 8).view(len(words), -1, 8)
    return nibbles[:, :, list(_AWQ_PLACES)].flatten(1)[:, :count].float()


def _gptq(parts: _Parts, quantization: WeightQuantization) -> Tensor:
    """Words along the inputs; of the zero points along the outputs."""
    bits = quantization.bits[0]
    factors = parts.read("scales").float()
    groups, rows = factors.shape
    columns = parts.shape[1]
    _require_words(parts, "qweight", (_words(columns, bits), rows))
    _require_words(parts, "qzeros", (groups, _words(rows, bits)))
    numbers = unpacked(parts.words("qweight").t(), bits, columns).float()
    zeros = unpacked(parts.words("qzeros"), bits, rows).int() + quantization.zero_offset
    zeros &= (1 << bits) - 1  # a zero point of 0 was stored as the largest number
    of_inputs = parts.input_groups(groups, quantization)
    return numbers.sub_(zeros.t()[:, of_inputs]).mul_(factors.t()[:, of_inputs])


def _mxfp4(parts: _Parts) -> Tensor:
    """Exact in bfloat16; one expert after the other, since all together are gigabytes."""
    blocks, scales = parts.read(_BLOCKS), parts.read(_SCALES)
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise _misfit(parts.name, f"it holds {blocks.dtype} and {scales.dtype}")
    values = torch.tensor(_FP4).bfloat16()
    values = torch.cat((values, -values))
    experts, inputs, outputs = parts.shape
    plain = torch.empty(experts, outputs, inputs, dtype=torch.bfloat16)
    for found, numbers, powers in zip(plain, blocks, scales, strict=True):
        both = torch.stack((numbers & 15, numbers >> 4), -1).flatten(-2)
        factors = torch.exp2(powers.float() - _FP4_SCALE_BIAS).bfloat16().unsqueeze(-1)
        found.copy_((values[both.int()] * factors).flatten(-2))
    return plain.transpose(1, 2)


def _require_words(parts: _Parts, kind: str, shape: tuple[int, int]) -> None:
    found = parts.shape_of(kind)
    if found != shape:
        raise _misfit(parts.name, f"{kind} has the shape {list(found)}, not {list(shape)}")


def _words(count: int, bits: int) -> int:
    return -(-count * bits // _WORD_BITS)


def unpacked(words: Tensor, bits: int, count: int) -> Tensor:
    """uint8 [rows, count] of int32 `words` [rows, any]: `bits` each, the lowest first, densely."""
    found = words.contiguous().view(torch.uint8).unsqueeze(-1)
    if _BYTE_BITS % bits:  # they straddle bytes
        single = (found >> torch.arange(_BYTE_BITS, dtype=torch.uint8)) & 1
        single = single.flatten(1)[:, : count * bits].view(len(words), count, bits)
        return (single << torch.arange(bits, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
    shifts = torch.arange(0, _BYTE_BITS, bits, dtype=torch.uint8)
    return ((found >> shifts) & ((1 << bits) - 1)).flatten(1)[:, :count]
