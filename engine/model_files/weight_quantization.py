"""What a config.json says about weights that its checkpoint holds as small numbers with factors.

Reads `quantization_config`; the tensors are `engine.models.quantized_tensors`' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelError
from engine.model_files.bounds import of_type, shown, whole_number

COMPRESSED_TENSORS, FP8, AWQ, GPTQ = "compressed-tensors", "fp8", "awq", "gptq"
MXFP4 = "mxfp4"
_SCALED_METHODS = (FP8, "fbgemm_fp8")
_FORMATS = (  # of compressed-tensors
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized"),
    *("mixed-precision", "dense"),
)
_MXFP4_GROUP = 32
_MOST_BITS = 8
_LARGEST_GROUP = 1 << 24
_READ = (
    "compressed-tensors (int8, fp8, and packed integers of up to 8 bits), fp8 with factors per "
    "tensor, channel or block, AWQ (gemm), GPTQ, and MXFP4 of gpt-oss"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightQuantization:
    """How the linears of a checkpoint are stored.

    `bits`, `group_sizes` (of inputs that share a factor) and `blocks` (outputs, inputs that share
    one) hold every value that occurs: the tensors' shapes tell which one is theirs.
    `zero_offset` is what a stored GPTQ zero point lacks.
    """

    method: str
    bits: tuple[int, ...] = ()
    group_sizes: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    zero_offset: int = 0

    @property
    def description(self) -> str:
        """For the log: `gptq, 4 bits, groups of 128`."""
        words = [self.method]
        words += [f"{' or '.join(map(str, self.bits))} bits"] if self.bits else []
        words += [f"groups of {' or '.join(map(str, self.group_sizes))}"] * bool(self.group_sizes)
        words += [f"blocks of {rows} x {columns}" for rows, columns in self.blocks]
        return ", ".join(words)


def read_quantization(raw: Mapping[str, Any]) -> WeightQuantization | None:
    """Of a whole config.json; None for plain weights.

    Raises ModelError for a format that is not read, CorruptModelError for values that none has.
    """
    config = raw.get("quantization_config") or raw.get("compression_config")
    if not config:
        return None
    config = of_type(config, "config.json: quantization_config", dict, "an object")
    method = str(config.get("quant_method", "unknown"))
    if method == COMPRESSED_TENSORS:
        return _compressed_tensors(config)
    if method in _SCALED_METHODS or _is_modelopt_fp8(config):
        block = config.get("weight_block_size")
        return WeightQuantization(method=method, bits=(8,), blocks=_blocks([block]))
    if method == AWQ:
        return _awq(config)
    if method == GPTQ:
        return _gptq(config)
    if method == MXFP4 and "GptOssForCausalLM" in (raw.get("architectures") or ()):
        return WeightQuantization(method=MXFP4, bits=(4,), group_sizes=(_MXFP4_GROUP,))
    raise _not_read(method)


def _is_modelopt_fp8(config: Mapping[str, Any]) -> bool:
    return config.get("quant_method") == "modelopt" and config.get("quant_algo") == "FP8"


def _compressed_tensors(config: Mapping[str, Any]) -> WeightQuantization:
    sparsity = (config.get("sparsity_config") or {}).get("format", "dense")
    groups = of_type(
        config.get("config_groups") or {}, "config.json: config_groups", dict, "an object"
    )
    transforms = (config.get("transform_config") or {}).get("config_groups")
    if sparsity != "dense" or transforms:
        kind = "rotated" if transforms else "sparse"
        raise _not_read(COMPRESSED_TENSORS, f" with {kind} weights")
    weights = []
    for group in groups.values():
        found = str(group.get("format") or config.get("format") or "dense")
        scheme = group.get("weights")
        if scheme is None:
            continue
        is_number = scheme.get("type", "int") == "int" or scheme.get("num_bits") == 8
        if found not in _FORMATS or not is_number:
            kind = f"{scheme.get('type')}{scheme.get('num_bits')}"
            raise _not_read(COMPRESSED_TENSORS, f" in the format {found} of {kind}")
        weights.append(scheme)
    return WeightQuantization(
        method=COMPRESSED_TENSORS,
        bits=_different(_bits(scheme.get("num_bits")) for scheme in weights),
        group_sizes=_different(
            filter(None, (_group_size(scheme.get("group_size")) for scheme in weights))
        ),
        blocks=_blocks([scheme.get("block_structure") for scheme in weights]),
    )


def _awq(config: Mapping[str, Any]) -> WeightQuantization:
    version = str(config.get("version", "gemm")).lower()
    if version != "gemm" or config.get("bits", config.get("w_bit", 4)) != 4:
        raise _not_read(AWQ, f" in the layout {version} with {config.get('bits')} bits")
    size = _group_size(config.get("group_size", config.get("q_group_size")))
    return WeightQuantization(method=AWQ, bits=(4,), group_sizes=(size,) if size else ())


def _gptq(config: Mapping[str, Any]) -> WeightQuantization:
    stored = str(config.get("checkpoint_format") or "gptq")
    if stored not in ("gptq", "gptq_v2") or config.get("is_marlin_format"):
        raise _not_read(GPTQ, f" in the layout {stored if stored != 'gptq' else 'marlin'}")
    size = _group_size(config.get("group_size"))
    return WeightQuantization(
        method=GPTQ,
        bits=(_bits(config.get("bits")),),
        group_sizes=(size,) if size else (),
        zero_offset=1 if stored == "gptq" else 0,
    )


def _bits(value: Any) -> int:
    return whole_number(value, "config.json: quantization_config: bits", 1, _MOST_BITS)


def _group_size(size: Any) -> int | None:
    """None for one factor for all inputs of an output."""
    if size is None or size == -1:
        return None
    return whole_number(size, "config.json: quantization_config: group_size", 1, _LARGEST_GROUP)


def _blocks(sizes: list[Any]) -> tuple[tuple[int, int], ...]:
    what = "config.json: quantization_config: block size"
    found = []
    for size in sizes:
        if size is None:
            continue
        numbers = [whole_number(number, what, 1, _LARGEST_GROUP) for number in size]
        if len(numbers) != 2:
            raise ModelError(f"{what} {shown(size)} is not made of two numbers.")
        found.append((numbers[0], numbers[1]))
    return tuple(dict.fromkeys(found))


def _different(values: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(values))


def _not_read(method: str, how: str = "") -> ModelError:
    return ModelError(
        f"Quantised checkpoints ({method}) are not supported{how}; {_READ} are. Use such a one, "
        "the unquantised model, or --engine vllm."
    )
