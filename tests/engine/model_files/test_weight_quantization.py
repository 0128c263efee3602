"""What is read of a config.json's quantization_config, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import CorruptModelError, ModelError
from engine.model_files.weight_quantization import read_quantization

W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}


def read(**config: Any) -> Any:
    return read_quantization({"quantization_config": config})


def compressed(weights: dict[str, Any], **config: Any) -> Any:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return read(**{**packed, "config_groups": groups, **config})


def test_plain_weights() -> None:
    assert read_quantization({}) is None
    assert read_quantization({"quantization_config": None}) is None


def test_the_description_is_for_people() -> None:
    assert compressed(W4).description == "compressed-tensors, 4 bits, groups of 128"
    blocks = read(quant_method="fp8", weight_block_size=[128, 128])
    assert blocks.description == "fp8, 8 bits, blocks of 128 x 128"
    assert read(quant_method="gptq", bits=4, group_size=-1).description == "gptq, 4 bits"
    nvidia = read(quant_method="modelopt", quant_algo="FP8")
    assert nvidia.description == "modelopt, 8 bits"


def test_only_the_first_layout_of_gptq_lacks_one_in_its_zero_points() -> None:
    assert read(quant_method="gptq", bits=4, group_size=64).zero_offset == 1
    newer = read(quant_method="gptq", bits=4, group_size=64, checkpoint_format="gptq_v2")
    assert newer.zero_offset == 0


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "mxfp4"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"},
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"},
        {},
    ],
)
def test_other_formats_are_refused_with_those_that_are_read(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"are not supported.*; .*AWQ .*GPTQ.*--engine vllm"):
        read(**config, other=1)


def test_other_formats_of_compressed_tensors_are_refused() -> None:
    with pytest.raises(ModelError, match=r"in the format nvfp4-pack-quantized of float4"):
        compressed({"num_bits": 4, "type": "float"}, format="nvfp4-pack-quantized")
    with pytest.raises(ModelError, match=r"\(compressed-tensors\) .* with sparse weights"):
        compressed(W4, sparsity_config={"format": "sparse-24-bitmask"})
    with pytest.raises(ModelError, match=r"not supported with rotated weights"):
        compressed(W4, transform_config={"config_groups": {"u": {}}})


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": "four", "group_size": 128},
        {"quant_method": "gptq", "bits": 4, "group_size": 0},
        {"quant_method": "gptq", "bits": 16, "group_size": 128},
        {"quant_method": "fp8", "weight_block_size": [128, 0]},
    ],
)
def test_values_that_no_format_has_are_damage(config: dict[str, Any]) -> None:
    with pytest.raises(CorruptModelError, match="quantization_config"):
        read(**config)
