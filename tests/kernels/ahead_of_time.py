"""Compiles every Triton kernel for every target without a GPU, as real launches would have it.

    python -m tests.kernels.ahead_of_time [TARGET ...]     a line of JSON per kernel and target
    python -m tests.kernels.ahead_of_time --table          the table of docs/gpu.md

Run it in a process of its own: where the interpreter is on, nothing can be compiled. The launches
are recorded from the functions that the engine calls, on tensors without memory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.env import user_cache_dir
from engine.kernels.scaled_weights import ScaledWeight
from engine.kernels.triton.runtime import prepare
from engine.kernels.triton.targets import TARGETS, Target, programs_per_processor, target_named
from tests.kernels.resource_table import Resources, table

# What has been compiled once from the same source is not compiled again.
os.environ.setdefault("TRITON_CACHE_DIR", str(user_cache_dir() / "triton-ahead-of-time"))
prepare("cuda")

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from engine.kernels.triton.activation import activate_and_mul  # noqa: E402
from engine.kernels.triton.argmax import argmax  # noqa: E402
from engine.kernels.triton.decode_attention import (  # noqa: E402
    AttentionShape,
    DecodeRows,
    DecodeScratch,
    decode_attention,
)
from engine.kernels.triton.embedding import embed  # noqa: E402
from engine.kernels.triton.heads import Rotation, rotate_and_store  # noqa: E402
from engine.kernels.triton.norm import add_rms_norm  # noqa: E402
from engine.kernels.triton.prefill_attention import (  # noqa: E402
    PrefillTiles,
    prefill_attention,
)
from engine.kernels.triton.sampling import sample  # noqa: E402
from engine.kernels.triton.weight_products import (  # noqa: E402
    fp8_product,
    int8_product,
    quantize_rows,
)

META = torch.device("meta")
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_TYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's attention as the kernels see it."""

    name: str
    q_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    window: int | None = None
    has_norms: bool = False


LLAMA = Shape("Llama 3.1 8B", 32, 8, 128, 4096)
GEMMA = Shape("Gemma 3 4B", 8, 4, 256, 2560, 1024, has_norms=True)


@dataclass(frozen=True, slots=True)
class Launched:
    """One recorded launch."""

    case: str
    kernel: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]


class Recorder:
    """Takes the place of `launch` and keeps what it is given."""

    def __init__(self) -> None:
        self.found: list[Launched] = []
        self.case = ""

    def __call__(self, kernel: Any, grid: Sequence[int], *args: Any, **constants: Any) -> None:
        self.found.append(Launched(self.case, kernel, args, constants))


def launches(target: Target) -> list[Launched]:
    """Every kernel in the forms that models use: heads of 128 and 256, bf16 and fp8 caches."""
    record, dtype, tiles = Recorder(), _DTYPES[target.half_dtype], target.tiles
    for model, is_fp8 in ((LLAMA, False), (LLAMA, True), (GEMMA, False)):
        record.case = f"{model.name}{', fp8 cache' * is_fp8}"
        _attention(record, model, target, dtype, is_fp8)
    for model in (LLAMA, GEMMA):
        record.case = model.name
        rows, norm = _meta((4, model.hidden), dtype), _meta((model.hidden,))
        x_norm = norm if model.has_norms else None
        add_rms_norm(record, rows, rows, _meta((4, model.hidden)), norm, 1e-5, x_norm)
        width = 4 * model.hidden
        activation = "gelu_pytorch_tanh" if model is GEMMA else "silu"
        out, gate_up = _meta((4, width), dtype), _meta((4, 2 * width), dtype)
        activate_and_mul(record, out, gate_up, activation, tiles.row, tiles.row_warps)
    record.case = ""
    table, hidden = _meta((128256, 4096), dtype), _meta((4, 4096))
    ids, sampled = _meta((4,), torch.int32), _meta((256,), torch.int64)
    embed(record, hidden, ids, table, 1.0, tiles.row, tiles.row_warps, sampled)
    logits, tokens = _meta((4, 128256)), _meta((4,), torch.int64)
    parts = _meta((32,)), _meta((32,), torch.int32), _meta((4,), torch.int32)
    argmax(record, tokens, logits, parts, 8, tiles.row, tiles.row_warps)
    floats, counts = _meta((4,)), _meta((4,), torch.int32)
    sample(
        record, tokens, logits, floats, counts, floats, floats, floats, tiles.row, tiles.row_warps
    )
    _weight_products(record, target, dtype)
    return record.found


def _weight_products(record: Recorder, target: Target, dtype: torch.dtype) -> None:
    """Of the layer's widest linear, for a step of decodes and for one with chunks."""
    width, depth, bias, tiles = 28672, 4096, _meta((28672,), dtype), target.tiles
    scales, blocks = _meta((width,)), _meta((width // 128, depth // 128))
    int8 = ScaledWeight(_meta((width, depth), torch.int8), scales)
    fp8 = ScaledWeight(_meta((width, depth), torch.uint8), scales)
    fp8_blocks = ScaledWeight(fp8.numbers, blocks)
    for tokens, case in ((1, "decodes"), (2048, "chunks")):
        rows, x = _meta((tokens, depth), torch.int8), _meta((tokens, depth), dtype)
        x_scales, out = _meta((tokens,)), _meta((tokens, width), dtype)
        if tokens == 1:
            record.case = ""
            quantize_rows(record, rows, x_scales, x, tiles.row, tiles.row_warps)
        record.case = case
        int8_product(record, out, rows, x_scales, int8, bias, target)
        fp8_product(record, out, x, fp8, bias, target)
        record.case = f"{case}, scales of blocks"
        fp8_product(record, out, x, fp8_blocks, bias, target)


def _attention(
    record: Recorder, model: Shape, target: Target, dtype: torch.dtype, is_fp8: bool
) -> None:
    """Decodes in the form that needs the most registers: normed, rotated, stored and split."""
    heads = model.q_heads + 2 * model.kv_heads
    qkv = _meta((4, heads, model.head_dim), dtype)
    cache_shape = (8, 2, 16, model.kv_heads, model.head_dim)
    page = _meta(cache_shape, torch.uint8 if is_fp8 else dtype)
    numbers, tables = _meta((4,), torch.int32), _meta((4, 16), torch.int32)
    norm = _meta((model.head_dim,)) if model.has_norms else None
    rotation = Rotation(_meta((8192, 2 * model.head_dim)), norm, norm, 1e-6)
    out = _meta((4, model.q_heads * model.head_dim), dtype)
    shape = AttentionShape(model.q_heads, model.head_dim**-0.5, model.window)
    scratch = DecodeScratch.allocate(4, model.q_heads, model.kv_heads, model.head_dim, 8, META)
    rotate_and_store(record, qkv, page, numbers, numbers, rotation)
    uniform = DecodeRows(4, None, None, numbers, tables, numbers)
    decode_attention(
        record, out, qkv, page, uniform, shape, scratch, target.tiles, 8, numbers, rotation
    )
    chunks = PrefillTiles(numbers, numbers, numbers, numbers, tables, numbers)
    prefill_attention(record, out, qkv, page, chunks, shape, target.tiles)


def _meta(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def compiled(target: Target, launched: Launched) -> Resources:
    """Compile one launch as Triton would on the device, and read what the binary takes."""
    kernel, constants = launched.kernel, dict(launched.constants)
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") & constants.keys()}
    values = dict(zip(kernel.arg_names, launched.args, strict=False))
    signature = {name: _type_name(values[name]) for name in values} | dict.fromkeys(
        constants, "constexpr"
    )
    aligned = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, value in values.items()
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)
    }
    source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
    gpu = GPUTarget(target.backend, target.architecture, target.warp_size)
    binary = triton.compile(source, target=gpu, options=options)
    registers, spilled, spilled_bytes = (_hip if target.backend == "hip" else _cuda)(binary)
    warps, shared = binary.metadata.num_warps, binary.metadata.shared
    programs = programs_per_processor(target, registers, shared, warps)
    return Resources(
        target=target.name,
        kernel=kernel.__name__.removesuffix("_kernel"),
        case=launched.case,
        warps=warps,
        registers=registers,
        shared_bytes=shared,
        spilled_registers=spilled,
        spilled_bytes=spilled_bytes,
        programs=programs,
        occupancy=programs * warps * target.warp_size / target.processor_threads,
    )


def _type_name(value: Any) -> str:
    if isinstance(value, Tensor):
        return "*" + _TYPE_NAMES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _cuda(binary: Any) -> tuple[int, int, int]:
    """Registers, and the bytes of local memory, which is where ptxas spills to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        report = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", report)
    assert found is not None, report
    registers, stack, local = map(int, found.groups())
    return registers, (stack + local) // 4, stack + local


def _hip(binary: Any) -> tuple[int, int, int]:
    """Vector registers; spilled ones of both kinds, also those that other registers took in."""
    text = binary.asm["amdgcn"]

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        assert found is not None, name
        return int(found.group(1))

    spilled = number("vgpr_spill_count") + number("sgpr_spill_count")
    return number("vgpr_count"), spilled, number("private_segment_fixed_size")


def resources(targets: Sequence[Target]) -> Iterator[Resources]:
    """Of every kernel on each target, in the order of `launches`."""
    for target in targets:
        for launched in launches(target):
            yield compiled(target, launched)


def main(words: Sequence[str]) -> None:
    wanted = [target_named(word) for word in words if word != "--table"] or list(TARGETS)
    if "--table" in words:
        print(table(list(resources(wanted))))
        return
    for entry in resources(wanted):
        print(json.dumps(dataclasses.asdict(entry)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
