"""What each layer of a decoder keeps of a request: keys and values, one compressed vector, a state.

Read from config.json by the words that transformers' families use; nothing is guessed: a kind of
layer that is not known is refused by name. Sizes are in values, not bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.model_files.bounds import whole_number

RawConfig = Mapping[str, Any]

_FULL, _SLIDING, _CHUNKED, _LINEAR = "full", "sliding", "chunked", "linear"
_BOTH, _CONVOLUTION, _NOTHING = "both", "convolution", "nothing"
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("full_attention", "attention", "indexed_attention", "*"), _FULL),
    "sliding_attention": _SLIDING,
    "chunked_attention": _CHUNKED,
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "M"), _LINEAR),
    **dict.fromkeys(("conv", "short_conv"), _CONVOLUTION),
    **dict.fromkeys(("moe", "mlp", "E", "-"), _NOTHING),
    "hybrid": _BOTH,
}
_INNER = (  # of Mamba 2: heads and the size of one
    ("mamba_num_heads", "mamba_head_dim"),
    ("mamba_n_heads", "mamba_d_head"),
    ("n_mamba_heads", "mamba_headdim"),
)
_STATE_SIZES = ("mamba_d_state", "ssm_state_size", "state_size")
_KERNELS = ("mamba_d_conv", "conv_kernel")
_GROUPS = ("mamba_n_groups", "mamba_ngroups", "n_groups")
_EXPANSIONS = ("mamba_expand", "expand")
_MOST = 1 << 24  # of heads, widths and sizes: far above every model


class UnknownLayerError(ValueError):
    """A kind of layer whose cache nobody here can count; the message names it."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """What does not grow with the request: the last inputs of a convolution of `width` over
    `channels`, and `recurrent` values of a recurrence, in 4 bytes each where `is_float32`.
    """

    channels: int
    width: int
    recurrent: int = 0
    is_float32: bool = False

    @property
    def num_values(self) -> int:
        """Values of one request; a convolution keeps the inputs before its newest."""
        return self.channels * (self.width - 1) + self.recurrent


@dataclass(frozen=True, slots=True)
class LayerCache:
    """`key_dim` and `value_dim` of each of `num_kv_heads` for a token, no heads for none.

    With `is_latent` there is one compressed vector of `key_dim` that ranks do not divide (MLA);
    `index_dim` are the keys of an indexer beside it. `window` is in tokens, None for all.
    """

    num_kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    is_latent: bool = False
    index_dim: int = 0
    state: LayerState | None = None

    @property
    def values_per_token(self) -> int:
        """Values that the layer keeps of one token."""
        return self.num_kv_heads * (self.key_dim + self.value_dim) + self.index_dim

    @property
    def keeps_something(self) -> bool:
        """Whether anything of a request stays here."""
        return self.values_per_token > 0 or self.state is not None


def layer_caches(text: RawConfig, windows: Sequence[int | None]) -> tuple[LayerCache, ...]:
    """One cache for each layer of the text decoder `text`, whose layers have these `windows`.

    UnknownLayerError for a kind of layer that is not known; what KeyError and TypeError say is
    damage.
    """
    kinds = _layer_kinds(text)
    shared = _given(text, "num_kv_shared_layers") or 0  # the last ones read what others keep
    own = len(kinds) - shared
    return tuple(
        _one_layer(text, number, kind, windows[number])
        if number < own
        else LayerCache(window=windows[number])
        for number, kind in enumerate(kinds)
    )


def _layer_kinds(text: RawConfig) -> tuple[str, ...]:
    layers = _first(text, "num_hidden_layers")
    named = text.get("layer_types") or text.get("layers_block_type")
    named = named or text.get("hybrid_override_pattern")
    if named:
        found = tuple(_kind(str(name)) for name in named)
        if len(found) < layers:
            raise UnknownLayerError(f"{len(found)} kinds of layers for {layers} layers")
        return found[:layers]
    return tuple(_unnamed_kinds(text, layers))


def _kind(name: str) -> str:
    if name not in _KINDS:
        raise UnknownLayerError(name)
    return _KINDS[name]


def _unnamed_kinds(text: RawConfig, layers: int) -> list[str]:
    """By the rules of families whose checkpoints name no kinds."""
    numbers = range(layers)
    if period := _given(text, "attn_layer_period"):  # Jamba
        offset = _first(text, "attn_layer_offset")
        return [_FULL if n % period == offset else _LINEAR for n in numbers]
    if "attn_layer_indices" in text:  # Bamba
        chosen = text["attn_layer_indices"] or ()
        return [_FULL if n in chosen else _LINEAR for n in numbers]
    if (linear := text.get("linear_attn_config")) is not None:  # Kimi, which counts from 1
        return [_FULL if n + 1 in linear["full_attn_layers"] else _LINEAR for n in numbers]
    if (listed := text.get("attn_type_list")) is not None:  # MiniMax
        return [_FULL if kind else _LINEAR for kind in listed]
    if text.get("linear_num_value_heads") is not None:  # Qwen3-Next
        every = _given(text, "full_attention_interval") or 4
        return [_LINEAR if (n + 1) % every else _FULL for n in numbers]
    if (chosen := text.get("full_attn_idxs")) is not None:  # LFM2
        return [_FULL if n in chosen else _CONVOLUTION for n in numbers]
    if text.get("mamba_d_ssm") is not None:  # Falcon-H1
        return [_BOTH] * layers
    if group := _given(text, "layer_group_size"):  # Ling
        return [_LINEAR if (n + 1) % group else _FULL for n in numbers]
    if text.get("attention_chunk_size") is not None:  # Llama 4
        every = _given(text, "no_rope_layer_interval") or 4
        return [_CHUNKED if (n + 1) % every else _FULL for n in numbers]
    if text.get("state_size") is not None:  # Mamba
        return [_LINEAR] * layers
    return [_FULL] * layers


def _one_layer(text: RawConfig, number: int, kind: str, window: int | None) -> LayerCache:
    if kind == _NOTHING:
        return LayerCache()
    settings = {**text, **_of_layer(text, number)}
    if kind == _CONVOLUTION:
        width = _first(settings, "conv_L_cache")
        return LayerCache(state=LayerState(_first(settings, "hidden_size"), width))
    state = _state(settings) if kind in (_LINEAR, _BOTH) else None
    if kind == _LINEAR:
        return LayerCache(state=state)
    if kind == _CHUNKED:
        window = _first(settings, "attention_chunk_size")
    return _attention(settings, number, window, state)


def _attention(
    settings: RawConfig, number: int, window: int | None, state: LayerState | None
) -> LayerCache:
    if settings.get("kv_lora_rank"):
        copies = 2 if settings.get("expert_ffn_hidden_size") else 1  # two in a layer of LongCat
        latent = _first(settings, "kv_lora_rank") + _first(settings, "qk_rope_head_dim")
        index = _index_dim(settings, number)
        return LayerCache(1, copies * latent, 0, window, is_latent=True, index_dim=index)
    heads, head = _kv_heads(settings), _head_dim(settings)
    value = _given(settings, "v_head_dim") or head
    if window is None and settings.get("global_head_dim") is not None:  # Gemma 4
        head = value = _first(settings, "global_head_dim")  # else those of per_layer_config
        if settings.get("attention_k_eq_v") and settings.get("num_global_key_value_heads"):
            heads = _first(settings, "num_global_key_value_heads")
    is_mimo = str(settings.get("model_type", "")).startswith("mimo")
    if window is not None and (is_mimo or settings.get("swa_num_key_value_heads") is not None):
        heads = _given(settings, "swa_num_key_value_heads") or 2 * heads
        head = _given(settings, "swa_head_dim") or head
        value = _given(settings, "swa_v_head_dim") or value
    return LayerCache(heads, head, value, window, state=state)


def _of_layer(text: RawConfig, number: int) -> Mapping[str, Any]:
    """What transformers writes apart for a layer that differs."""
    for key, settings in (text.get("per_layer_config") or {}).items():
        if int(key) == number:
            found: Mapping[str, Any] = settings
            return found
    return {}


def _index_dim(settings: RawConfig, number: int) -> int:
    """Keys of the indexer of sparse attention; some layers use that of the layer before."""
    kinds = settings.get("indexer_types")
    if kinds and kinds[number] != "full":
        return 0
    return _given(settings, "index_head_dim") or 0


def _kv_heads(settings: RawConfig) -> int:
    if settings.get("new_decoder_architecture"):  # Falcon
        return _first(settings, "num_kv_heads", "num_attention_heads")
    if settings.get("multi_query"):
        return 1
    return _first(settings, "num_key_value_heads", "num_attention_heads")


def _head_dim(settings: RawConfig) -> int:
    for name in ("attention_head_dim", "kv_channels", "head_dim"):
        if settings.get(name) is not None and not (
            name == "kv_channels" and settings.get("attention_hidden_size")
        ):
            return _first(settings, name)
    return _first(settings, "hidden_size") // _first(settings, "num_attention_heads")


def _state(settings: RawConfig) -> LayerState:
    found = _plain_state(settings)
    names = (settings.get("mamba_ssm_cache_dtype"), settings.get("mamba_ssm_dtype"))
    return replace(found, is_float32=found.is_float32 or "float32" in names)


def _plain_state(settings: RawConfig) -> LayerState:
    if settings.get("linear_num_value_heads") is not None:
        return _gated_delta(settings)
    if settings.get("linear_num_heads") is not None or settings.get("linear_attn_config"):
        return _kimi_delta(settings)
    if any(settings.get(name) is not None for name in _STATE_SIZES):
        return _mamba(settings)
    if "linear_attn_alpha_factor" in settings:  # MiniMax: lightning attention
        head = _head_dim(settings)
        return LayerState(0, 1, _first(settings, "num_attention_heads") * head * head)
    raise UnknownLayerError("linear attention of a kind that is not known")


def _gated_delta(settings: RawConfig) -> LayerState:
    keys = _first(settings, "linear_num_key_heads") * _first(settings, "linear_key_head_dim")
    heads, value = (
        _first(settings, "linear_num_value_heads"),
        _first(settings, "linear_value_head_dim"),
    )
    recurrent = heads * _first(settings, "linear_key_head_dim") * value
    return LayerState(
        2 * keys + heads * value, _first(settings, "linear_conv_kernel_dim"), recurrent
    )


def _kimi_delta(settings: RawConfig) -> LayerState:
    apart = settings.get("linear_attn_config") or {}
    heads = _given(apart, "num_heads") or _first(settings, "linear_num_heads")
    head = _given(apart, "head_dim") or _first(settings, "linear_head_dim")
    width = _given(apart, "short_conv_kernel_size") or _first(settings, "linear_conv_kernel_dim")
    return LayerState(3 * heads * head, width, heads * head * head, is_float32=True)


def _mamba(settings: RawConfig) -> LayerState:
    """Mamba 2 divides into groups, which go through the convolution too; the first one did not."""
    size, width = _first(settings, *_STATE_SIZES), _first(settings, *_KERNELS)
    inner = _mamba_inner(settings)
    groups = [_first(settings, name) for name in _GROUPS if settings.get(name) is not None]
    return LayerState(inner + (2 * groups[0] * size if groups else 0), width, inner * size)


def _mamba_inner(settings: RawConfig) -> int:
    if settings.get("mamba_d_ssm") is not None:
        return _first(settings, "mamba_d_ssm")
    for heads, head in _INNER:
        if settings.get(heads) is not None and isinstance(settings.get(head), int):
            return _first(settings, heads) * _first(settings, head)
    is_first_mamba = settings.get("expand") is not None and settings.get("n_groups") is None
    if is_first_mamba and settings.get("intermediate_size") is not None:
        return _first(settings, "intermediate_size")
    return _first(settings, *_EXPANSIONS) * _first(settings, "hidden_size")


def _given(settings: RawConfig, name: str) -> int | None:
    return None if settings.get(name) is None else _first(settings, name)


def _first(settings: RawConfig, *names: str) -> int:
    """The value of the first key that is there; KeyError names the usual one."""
    for name in names:
        if settings.get(name) is not None:
            return whole_number(settings[name], name, 0, _MOST)
    raise KeyError(names[0])
