"""Our paged attention as an attention function of transformers.

transformers looks attention functions up by name in one table per process; what one of ours needs
(the step and its caches) hangs on the attention modules of its own model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.kernel_set import (
    PLAIN_SCORES,
    AttentionPlan,
    KernelSet,
    ScoreRule,
)
from engine.model_config import incompatible
from engine.models.transformers_config import effective_window

ATTENTION_NAME = "stoker_paged"
"""Has no mask function beside it, so transformers makes no masks for it."""

_STATE = "stoker_paged_attention"
_HARMLESS = frozenset(
    (
        "cache_position",
        "deterministic",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "s_aux",
        "sliding_window",
        "softcap",
        "use_cache",
    )
)
"""Arguments that change nothing here, or that are looked at by name."""


@dataclass(frozen=True, slots=True)
class LayerContext:
    """Where one layer's keys and values lie in this step."""

    cache: Tensor
    plan: AttentionPlan


@dataclass(slots=True)
class PagedAttention:
    """The attention of all layers of one model.

    `windows` are the sliding windows that the cache is laid out for, `num_positions` what no
    request is longer than, and `sources` the layer whose keys and values each one reads. `layers`
    are set before each step; `num_calls` counts the attention calls of one.
    """

    architecture: str
    kernels: KernelSet
    dtype: torch.dtype
    windows: tuple[int | None, ...]
    num_positions: int
    sources: tuple[int, ...]
    layers: dict[int, LayerContext] = field(default_factory=dict)
    num_calls: int = 0

    def attach(self, model: nn.Module) -> None:
        """Serve every module of `model` that knows which layer it is in."""
        for module in model.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                setattr(module, _STATE, self)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        rule: ScoreRule = PLAIN_SCORES,
    ) -> Tensor:
        """[1, heads, T, head_dim] each -> [1, T, q heads, head_dim of the values].

        Stores keys and values, unless the layer reads those of another one. What a layer has less
        of than the cache is zeros there, which change no score and no sum.
        """
        context = self.layers[layer]
        self.num_calls += 1
        num_heads, value_dim = query.shape[1], value.shape[-1]
        kv_heads, head_dim = context.cache.shape[3:]
        per_head = num_heads // key.shape[1]
        parts = (
            _filled(query, kv_heads * per_head, head_dim),
            _filled(key, kv_heads, head_dim),
            _filled(value, kv_heads, head_dim),
        )
        qkv = torch.cat(parts, 1)[0].transpose(0, 1).to(self.dtype)
        all_heads = parts[0].shape[1]
        if self.sources[layer] == layer:
            self.kernels.store_kv(qkv[:, all_heads:], context.cache, context.plan)
        out = self.kernels.attention(qkv, context.cache, context.plan, scale, rule)
        out = out.view(1, len(qkv), all_heads, head_dim)[:, :, :num_heads, :value_dim]
        return out.to(query.dtype)

    def require_plain(self, module: nn.Module, key: Tensor, value: Tensor, asked: Any) -> None:
        """Raise ModelError unless causal attention over this layer's window is all that is asked.

        `asked` are the keyword arguments of the call.
        """
        if getattr(module, "is_causal", True) is False or asked.get("is_causal") is False:
            raise incompatible(self.architecture, "its attention is not causal")
        extra = sorted(
            name
            for name, given in asked.items()
            if name not in _HARMLESS and given is not None and given is not False
        )
        if extra:
            raise incompatible(
                self.architecture,
                f"its attention takes {', '.join(extra)}, which ours does not have",
            )
        window = effective_window(asked.get("sliding_window"), self.num_positions)
        wanted = self.windows[module.layer_idx]  # type: ignore[index]
        if window != wanted:
            raise incompatible(
                self.architecture,
                f"the attention of layer {module.layer_idx} has the sliding window {window}, and "
                f"its configuration says {wanted}",
            )
        heads, head_dim = self.layers[module.layer_idx].cache.shape[3:]  # type: ignore[index]
        widest = max(key.shape[3], value.shape[3])
        if key.shape[1] != value.shape[1] or key.shape[1] > heads or widest > head_dim:
            raise incompatible(
                self.architecture,
                f"layer {module.layer_idx} has {key.shape[1]} key heads of {widest}, and "
                f"its configuration says {heads} of {head_dim}",
            )


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **asked: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls; no attention weights come back."""
    state = getattr(module, _STATE, None)
    kind = type(module).__name__
    if not isinstance(state, PagedAttention):
        raise incompatible(kind, "its attention does not say which layer it is in")
    if attention_mask is not None:
        raise incompatible(state.architecture, "it brings an attention mask of its own making")
    state.require_plain(module, key, value, asked)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    layer: Any = module.layer_idx
    return state.attend(layer, query, key, value, scale, _rule(asked)), None


def _rule(asked: dict[str, Any]) -> ScoreRule:
    softcap, sinks = asked.get("softcap"), asked.get("s_aux")
    if softcap is None and sinks is None:
        return PLAIN_SCORES
    return ScoreRule(None if softcap is None else float(softcap), sinks)


def _filled(heads: Tensor, num_heads: int, head_dim: int) -> Tensor:
    """[1, num_heads, T, head_dim] with zeros for what is not there."""
    missing = (0, head_dim - heads.shape[-1], 0, 0, 0, num_heads - heads.shape[1])
    return F.pad(heads, missing) if any(missing) else heads


def register_paged_attention() -> None:
    """Enter the function into transformers' table; doing it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention)
