"""Tiny quantised checkpoints, each with its reference: the same model with plain weights.

compressed-tensors and transformers write and read their own formats. AWQ's and GPTQ's libraries
need a GPU, so those tensors are packed here, one number at a time, as the formats describe them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.tiny_models import save_tiny_model

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "head_dim": 32,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True)
class Checkpoint:
    """A quantised model's folder, and transformers' model of what its weights stand for."""

    folder: Path
    oracle: Any


Numbers = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
"""From a linear's weight: its tensors by their last names, and the weight they stand for."""


def save_compressed(
    folder: Path, *, family: str = "Llama", inputs: dict[str, Any] | None = None, **weights: Any
) -> Checkpoint:
    """With compressed-tensors, whose own decompression makes the reference."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )

    model = save_tiny_model(folder, family, **SIZES)
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**weights),
        input_activations=QuantizationArgs(**inputs) if inputs else None,
    )
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            _calibrate(module)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    compressor.decompress_model(model)
    return Checkpoint(folder, _plain(folder, model.state_dict()))


def _calibrate(module: Any) -> None:
    """Factors from the smallest and largest weight of what shares one; any for the inputs."""
    from compressed_tensors.quantization.utils import calculate_qparams

    weight, args = module.weight.detach(), module.quantization_scheme.weights
    shape = module.weight_scale.shape
    if args.strategy == "block":
        height, width = args.block_structure
        blocks = weight.unfold(0, height, height).unfold(1, width, width).flatten(2)
    elif module.weight_scale.numel() == 1:
        blocks = weight.reshape(1, -1)
    else:
        blocks = weight.reshape(*shape, -1)
    scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
    module.weight_scale.data = scale.reshape(shape).to(module.weight_scale.dtype)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data = zero.reshape(shape).to(module.weight_zero_point.dtype)
    if hasattr(module, "input_scale"):
        module.input_scale.data.fill_(0.01)


def save_fp8_blocks(folder: Path) -> Checkpoint:
    """As DeepSeek and Qwen store them; the reference is transformers' own dequantisation."""
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    def numbers(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        height, width = weight.shape
        blocks = weight.view(height // 32, 32, width // 64, 64)
        factors = blocks.abs().amax((1, 3)) / 448
        small = (blocks / factors[:, None, :, None]).view(height, width).to(torch.float8_e4m3fn)
        return {"weight": small, "weight_scale_inv": factors}, weight

    config = {"quant_method": "fp8", "weight_block_size": [32, 64], "activation_scheme": "dynamic"}
    _save_by_hand(folder, numbers, config)
    plain = FineGrainedFP8Config(weight_block_size=(32, 64), dequantize=True)
    oracle = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=plain, dtype=torch.float32
    )
    return Checkpoint(folder, oracle)


def save_awq(folder: Path, group_size: int = 32) -> Checkpoint:
    def numbers(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        small, zeros, factors = rounded(weight, group_size, 4, symmetric=False)
        plain = _multiplied(small, zeros, factors, torch.arange(weight.shape[1]) // group_size)
        # Eight outputs to a word: 0, 2, 4, 6, 1, 3, 5, 7 from its lowest bits on.
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        return {
            "qweight": words(_reordered(small.t(), order), 4),
            "qzeros": words(_reordered(zeros.t(), order), 4),
            "scales": factors.t().half(),
        }, plain

    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm"}
    return _save_by_hand(folder, numbers, {**config, "zero_point": True})


def save_gptq(
    folder: Path, *, bits: int = 4, symmetric: bool = True, desc_act: bool = False, v2: bool = False
) -> Checkpoint:
    size = 32

    def numbers(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        inputs = weight.shape[1]
        groups = torch.arange(inputs) // size
        if desc_act:
            groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(1))]
        together = groups.argsort(stable=True)
        small, zeros, factors = rounded(weight[:, together], size, bits, symmetric=symmetric)
        small = small[:, together.argsort()]
        stored = zeros if v2 else (zeros - 1) % (1 << bits)
        return {
            "qweight": words(small, bits).t().contiguous(),
            "qzeros": words(stored.t(), bits),
            "scales": factors.t().half(),
            "g_idx": groups.int(),
        }, _multiplied(small, zeros, factors, groups)

    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": desc_act}
    stored_as = "gptq_v2" if v2 else "gptq"
    return _save_by_hand(
        folder, numbers, {**config, "sym": symmetric, "checkpoint_format": stored_as}
    )


def save_mxfp4(folder: Path) -> Checkpoint:
    """As gpt-oss stores its experts; the reference is transformers' own dequantisation."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = save_tiny_model(
        folder, "GptOss", head_dim=32, num_local_experts=3, num_experts_per_tok=2, sliding_window=11
    )
    random = torch.Generator().manual_seed(3)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    plain = dict(model.state_dict())
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        groups = experts, outputs, inputs // 32
        blocks = torch.randint(0, 256, (*groups, 16), dtype=torch.uint8, generator=random)
        scales = torch.randint(120, 126, groups, dtype=torch.uint8, generator=random)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_split(folder, tensors)
    add_to_config(folder, {"quant_method": "mxfp4"})
    model.load_state_dict(plain)
    return Checkpoint(folder, model)


def rounded(
    weight: Tensor, size: int, bits: int, *, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers [out, in], zero points and half-precision factors [out, groups]."""
    groups = weight.view(len(weight), -1, size)
    most = (1 << bits) - 1
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if symmetric:
        high = groups.abs().amax(-1)
        low = -high
    factors = ((high - low) / most).half().float()
    middle = torch.full_like(low, (most + 1) // 2)
    zeros = middle if symmetric else (-low / factors).round().clamp(0, most)
    small = (groups / factors[..., None]).round().add_(zeros[..., None]).clamp_(0, most)
    return small.flatten(1).long(), zeros.long(), factors


def words(numbers: Tensor, bits: int) -> Tensor:
    """int32 [rows, columns x bits / 32] of small numbers, the first in the lowest bits."""
    found = []
    for row in numbers.tolist():
        whole = sum(number << (bits * place) for place, number in enumerate(row))
        count = -(-len(row) * bits // 32)
        found.append([(whole >> (32 * place)) & 0xFFFFFFFF for place in range(count)])
    return torch.tensor(found, dtype=torch.int64).to(torch.int32)


def _reordered(numbers: Tensor, order: list[int]) -> Tensor:
    return numbers.reshape(len(numbers), -1, 8)[:, :, order].flatten(1)


def _multiplied(small: Tensor, zeros: Tensor, factors: Tensor, groups: Tensor) -> Tensor:
    return (small - zeros[:, groups]) * factors[:, groups]


def _save_by_hand(folder: Path, numbers: Numbers, config: dict[str, Any]) -> Checkpoint:
    """Replaces each linear of a layer by its quantised tensors, in two shards."""
    save_tiny_model(folder, "Llama", **SIZES)
    path = folder / "model.safetensors"
    tensors, plain = {}, {}
    for name, tensor in load_file(path).items():
        plain[name] = tensor
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        parts, plain[name] = numbers(tensor)
        tensors |= {f"{name.removesuffix('weight')}{kind}": part for kind, part in parts.items()}
    path.unlink()
    save_split(folder, tensors)
    add_to_config(folder, config)
    return Checkpoint(folder, _plain(folder, plain))


def save_split(folder: Path, tensors: dict[str, Tensor]) -> None:
    """In two shards that tear the parts of a linear apart."""
    shards = {"model-1.safetensors": {}, "model-2.safetensors": {}}  # type: dict[str, dict[str, Tensor]]
    for number, (name, tensor) in enumerate(sorted(tensors.items())):
        shards[f"model-{1 + number % 2}.safetensors"][name] = tensor.contiguous()
    for file, parts in shards.items():
        save_file(parts, folder / file, metadata={"format": "pt"})
    index = {name: file for file, parts in shards.items() for name in parts}
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


def add_to_config(folder: Path, quantization: dict[str, Any]) -> None:
    """As `quantization_config`."""
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "quantization_config": quantization}))


def _plain(folder: Path, weights: dict[str, Tensor]) -> Any:
    """transformers' float32 model with these weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    missing = model.load_state_dict(
        {name: weights[name].float() for name in model.state_dict()}, strict=True
    )
    assert not missing.missing_keys
    model.train(False)
    return model
