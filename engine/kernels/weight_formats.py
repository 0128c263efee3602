"""What `--quantization` means for the weights of a decoder. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

BF16, INT8, INT4 = "bf16", "int8", "int4"
FP8, FP8_BLOCKS = "fp8", "fp8_blocks"


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """Of the layers' linears and of the head; biases, norms and the embedding stay as they are."""

    layers: str = BF16
    head: str = BF16


def weight_formats(quantization: str) -> WeightFormats:
    """int4 keeps its head in int8, and fp8 as it is: of all weights, the head's lose most."""
    return {
        "none": WeightFormats(),
        "int8": WeightFormats(INT8, INT8),
        "int4": WeightFormats(INT4, INT8),
        "fp8": WeightFormats(FP8, BF16),
        "fp8_per_block": WeightFormats(FP8_BLOCKS, BF16),
    }[quantization]
