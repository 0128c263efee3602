"""Rotary position tables: plain, linearly scaled, Llama-3 scaled and YaRN frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.model_config import RopeScaling


class RotaryTable:
    """cos and sin of every position times `length`, looked up once per step for all layers."""

    def __init__(
        self,
        frequencies: Tensor,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
        length: float = 1.0,
    ) -> None:
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        cos, sin = angles.cos() * length, angles.sin() * length
        # The kernel adds cos * x + sin * (x with swapped halves): the minus goes into the table.
        self._cos = torch.cat((cos, cos), -1).unsqueeze(1).to(device, dtype)
        self._sin = torch.cat((-sin, sin), -1).unsqueeze(1).to(device, dtype)

    @property
    def nbytes(self) -> int:
        return self._cos.nbytes + self._sin.nbytes

    @property
    def angles(self) -> Tensor:
        """[positions, 2 x head_dim]: cosines, then sines whose first half is negated."""
        return torch.cat((self._cos, self._sin), -1).squeeze(1)

    def lookup(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each [T, 1, head_dim]."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Radians per position of each of the head_dim / 2 pairs, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (theta**exponents)
    if scaling is None:
        return frequencies
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    if scaling.rope_type == "yarn":
        return _yarn_frequencies(frequencies, head_dim, theta, scaling)
    return _llama3_frequencies(frequencies, scaling)


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Keep fast pairs, slow down slow ones by `factor`, blend between the two wavelengths."""
    wavelength = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelength
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / scaling.factor


def _yarn_frequencies(
    frequencies: Tensor, head_dim: int, theta: float, scaling: RopeScaling
) -> Tensor:
    """Keep the pairs that turn `beta_fast` times within the trained length, slow down those that
    turn less than `beta_slow` times, and blend linearly by pair between them.
    """
    trained = scaling.original_max_position_embeddings

    def pair_turning(times: float) -> float:
        return head_dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    pairs = torch.arange(head_dim // 2, dtype=torch.float32)
    slowed = ((pairs - low) / (high - low or 0.001)).clamp(0.0, 1.0)
    return slowed * frequencies / scaling.factor + (1.0 - slowed) * frequencies
