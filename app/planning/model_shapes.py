"""What decides a model's memory: layers, heads, windows, experts.

`app.planning.shape_reading` makes shapes of files and of those that `builtin_shapes` knows by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.planning.layer_caches import LayerCache, LayerState
from engine.model_support import Support

RawConfig = Mapping[str, Any]
UNKNOWN_SUPPORT = Support("stoker")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """MLA: keys and values are one compressed vector of `kv_lora_rank` + `rope_dim` values."""

    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_lora_rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Mixture of experts; the first `first_dense_layers` layers have a plain feed-forward part."""

    number: int
    per_token: int
    size: int  # values in the hidden layer of one expert
    shared_size: int = 0
    has_shared_gate: bool = False
    has_bias: bool = False
    has_router_bias: bool = False
    first_dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """A SigLIP encoder with a projection into the decoder (Gemma 3)."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    image_size: int
    patch_size: int
    tokens_per_image: int

    @property
    def num_patches(self) -> int:
        """How many pieces an image is cut into."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One decoder. `layer_windows` holds each layer's sliding window, None for full attention.

    `layer_caches` is what each layer keeps; without, keys and values of `num_kv_heads` each.

    `quantization` is the checkpoint's method, None for plain numbers; `declared_kv_dtype` is the
    cache format that the checkpoint itself asks for, `support` how our own engine serves it.
    """

    name: str
    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    dtype: str
    tie_word_embeddings: bool
    layer_windows: tuple[int | None, ...]
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    has_sinks: bool = False
    norms_per_layer: int = 2
    latent: LatentAttention | None = None
    experts: Experts | None = None
    vision: VisionTower | None = None
    has_unknown_tower: bool = False  # sees or hears through a part that only headers can size
    quantization: str | None = None
    packed_bits: int | None = None  # of a weight in packed linears, each with its group's factors
    packed_group: int | None = None
    declared_kv_dtype: str | None = None
    support: Support = UNKNOWN_SUPPORT
    is_plain: bool = False  # read as decoders are in general: only files tell the weights
    layer_caches: tuple[LayerCache, ...] = ()

    def __post_init__(self) -> None:
        if not self.layer_caches:
            object.__setattr__(
                self, "layer_caches", tuple(map(self._plain_cache, self.layer_windows))
            )

    def _plain_cache(self, window: int | None) -> LayerCache:
        if (latent := self.latent) is not None:
            return LayerCache(1, latent.kv_lora_rank + latent.rope_dim, 0, window, is_latent=True)
        return LayerCache(self.num_kv_heads, self.head_dim, self.head_dim, window)

    @property
    def states(self) -> tuple[LayerState, ...]:
        """Those of the layers that keep one."""
        return tuple(cache.state for cache in self.layer_caches if cache.state is not None)


@dataclass(frozen=True, slots=True)
class RecordedSize:
    """Parameters of a model whose weights no formula here counts, and how many of them are
    experts' or a tower's for images and sound.
    """

    parameters: int
    experts: int = 0
    tower: int = 0


@dataclass(frozen=True, slots=True)
class BuiltinShape:
    """`hub_id` is where the weights lie, for command lines to paste."""

    hub_id: str
    config: RawConfig
    recorded: RecordedSize | None = None
