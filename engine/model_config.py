"""ModelConfig: what config.json says about a decoder, checked and typed. No weights, no torch.

Reads a local folder only; finding, downloading and converting models is `engine.models.resolve`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError, ModelError, ModelNotFoundError
from engine.model_families import (
    NOT_CARRIED,
    ExpertLayers,
    VisionConfig,
    encoder_positions,
    family_fields,
    is_encoder,
    is_supported,
    keeps_own_cache,
    kv_sources,
    require_own_code,
    supported_architectures,
    text_architecture,
    text_part,
    with_any_layers,
    with_default_sizes,
    with_family_defaults,
    with_head,
)
from engine.model_files.config_values import check_decoder, read_config
from engine.model_files.json_objects import read_optional_json
from engine.model_files.sentence_files import SentenceFiles, read_sentence_files
from engine.model_files.weight_quantization import WeightQuantization, read_quantization

_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
_OLD_NAMES = {  # words of older families, for decoders that transformers runs
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Frequency scaling: as in Llama 3 (`rope_type` llama3), YaRN (`yarn`) or plain (`linear`).

    `length` is what YaRN multiplies cosines and sines with.
    """

    rope_type: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncates: bool = True
    length: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of one decoder. `path` is the folder with config.json and safetensors files.

    `served_name` is the name clients use; `dtype` is the checkpoint's own number format. The fields
    with a default are what a plain Llama does not have: see `engine.model_families`.
    `layer_windows` holds each layer's sliding window in tokens, None for full attention;
    `local_rope_theta` is the rotary base of layers that have one. Of layers with experts
    `intermediate_size` and `mlp_bias` are those of each. Norm weights are stored less
    `norm_offset`. An encoder keeps no KV and, like a decoder without its head, generates no text:
    `sentence` says how its vectors are made. `kv_lora_rank` and `qk_rope_head_dim` describe an MLA
    cache, which is only planned with. Where `implementation` is `transformers`, the shape is a
    first reading that EngineCore completes.
    """

    path: str
    served_name: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    attention_bias: bool  # of queries, keys and values
    mlp_bias: bool
    dtype: str
    eos_token_ids: tuple[int, ...]
    layer_windows: tuple[int | None, ...] = ()
    kv_sources: tuple[int, ...] = ()  # the layer whose keys and values each layer reads
    attention_output_bias: bool = False
    hidden_act: str = "silu"
    qk_norm: bool = False
    has_sandwich_norms: bool = False  # attention and feed-forward outputs are normed as well
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    query_scale: float | None = None  # None: head_dim ** -0.5
    local_rope_theta: float | None = None
    score_cap: float | None = None  # attention scores, then logits, are pressed softly below it
    logit_cap: float | None = None
    has_sinks: bool = False  # each head has a score for a key that is not there
    experts: ExpertLayers | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int = 0
    implementation: str = "stoker"  # whose code runs the decoder: stoker or transformers
    own_obstacle: str | None = None  # why ours does not, for a family of ours
    quantization: WeightQuantization | None = None  # of the checkpoint's linears
    keeps_own_cache: bool = False  # in transformers' cache, not in blocks of ours
    is_encoder: bool = False  # every token sees all others
    has_head: bool = True
    vision: VisionConfig | None = None  # of a tower that our decoder can take images from
    sentence: SentenceFiles = field(default_factory=SentenceFiles)

    def __post_init__(self) -> None:
        if not self.layer_windows:
            object.__setattr__(self, "layer_windows", (None,) * self.num_hidden_layers)
        if not self.kv_sources:
            object.__setattr__(self, "kv_sources", tuple(range(self.num_hidden_layers)))

    @classmethod
    def from_folder(cls, folder: Path, served_name: str, model_impl: str = "auto") -> ModelConfig:
        """Read `folder`/config.json (and generation_config.json's EOS ids).

        `model_impl` is `stoker`, `transformers`, or `auto`: ours where there is one.

        Raises ModelNotFoundError, CorruptModelError (unreadable JSON, missing keys) or ModelError
        (architecture not supported, remote code wanted).
        """
        config_path = folder / "config.json"
        if not folder.is_dir():
            raise ModelNotFoundError(f"No such model folder: {folder}.")
        if not config_path.is_file():
            raise ModelNotFoundError(f"{folder} holds no config.json; it is not a model folder.")
        raw = read_config(config_path)
        generation = read_optional_json(folder / "generation_config.json")
        try:
            config = cls.from_raw(raw, generation, folder, served_name, model_impl)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise CorruptModelError(
                f"{config_path} is incomplete or damaged: {error!r}."
            ) from error
        sentence = read_sentence_files(folder)
        longest = sentence.max_seq_length or config.max_position_embeddings
        return dataclasses.replace(
            config,
            sentence=sentence,
            max_position_embeddings=min(longest, config.max_position_embeddings),
        )

    @property
    def embedding_size(self) -> int:
        """How many numbers the vector of a text has."""
        dense = self.sentence.dense
        return dense[-1].out_features if dense else self.hidden_size

    @classmethod
    def from_raw(
        cls,
        raw: dict[str, Any],
        generation: dict[str, Any],
        folder: Path,
        served_name: str,
        model_impl: str = "auto",
    ) -> ModelConfig:
        """The same of what config.json and generation_config.json hold; reads no file.

        With `auto`, a checkpoint of a family of ours that our code does not run as it is goes to
        transformers' code, and `own_obstacle` says why. What KeyError, TypeError and
        their like say is damage.
        """
        raw = text_part(raw)
        named = str((raw.get("architectures") or [""])[0])
        if is_encoder(named, raw):
            return cls._encoder(raw, folder, served_name, named, model_impl)
        text = text_architecture(named, raw)
        if is_supported(text) and text != named and model_impl != "transformers":
            raw = {**with_default_sizes(text, raw), "architectures": [text]}
            return cls._decoder(raw, generation, folder, served_name, model_impl)
        if (architecture := with_head(named)) == named:
            return cls._decoder(raw, generation, folder, served_name, model_impl)
        raw |= {"architectures": [architecture], "tie_word_embeddings": True}  # the only table
        config = cls._decoder(raw, generation, folder, served_name, model_impl)
        return dataclasses.replace(config, has_head=False)

    @classmethod
    def _encoder(
        cls, raw: dict[str, Any], folder: Path, served_name: str, architecture: str, model_impl: str
    ) -> ModelConfig:
        """A float32 one unless it says otherwise: so these were trained, and so they are run."""
        if model_impl == "stoker":
            raise ModelError(
                f"{architecture} is an encoder, which transformers' code runs; leave --model-impl "
                "stoker out."
            )
        plain = plain_decoder(architecture, raw)
        plain["max_position_embeddings"] = encoder_positions(plain)
        config = cls._from_raw(plain, {}, folder, served_name, architecture, is_own=False)
        dtype = config.dtype if raw.get("dtype") or raw.get("torch_dtype") else "float32"
        return dataclasses.replace(
            config, implementation="transformers", is_encoder=True, has_head=False, dtype=dtype
        )

    @classmethod
    def _decoder(
        cls,
        raw: dict[str, Any],
        generation: dict[str, Any],
        folder: Path,
        served_name: str,
        model_impl: str,
    ) -> ModelConfig:
        architectures = raw.get("architectures") or []
        architecture = str(architectures[0]) if architectures else "(none named)"
        is_ours = is_supported(architecture)
        if not architectures or (model_impl == "stoker" and not is_ours):
            raise ModelError(
                f"Model architecture {architecture} is not supported; this engine runs "
                f"{', '.join(supported_architectures())}. Code from a model repository is never "
                "run."
            )
        obstacle = None
        if is_ours and model_impl != "transformers":
            try:
                return cls._from_raw(raw, generation, folder, served_name, architecture)
            except CorruptModelError:
                raise
            except ModelError as error:
                if model_impl == "stoker":
                    raise
                obstacle = str(error)
        plain = plain_decoder(architecture, raw)
        config = cls._from_raw(plain, generation, folder, served_name, architecture, is_own=False)
        return dataclasses.replace(
            config,
            implementation="transformers",
            own_obstacle=obstacle,
            keeps_own_cache=keeps_own_cache(architecture, raw),
        )

    @classmethod
    def _from_raw(
        cls,
        raw: dict[str, Any],
        generation: dict[str, Any],
        folder: Path,
        served_name: str,
        architecture: str,
        is_own: bool = True,
    ) -> ModelConfig:
        raw = with_family_defaults(architecture, raw)
        if is_own:
            require_own_code(architecture, raw)
        check_decoder(raw, str(folder / "config.json"))
        activation = raw.get("hidden_act") or raw.get("hidden_activation") or "silu"
        if activation not in _ACTIVATIONS:
            known = " and ".join(_ACTIVATIONS)
            raise ModelError(f"Activation {activation!r} is not supported; {known} are.")
        rope = _full_rope(raw)
        theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
        fields = {
            **decoder_numbers(raw),
            "hidden_act": activation,
            "mlp_bias": bool(raw.get("mlp_bias", False)),
            "attention_bias": False,
            **family_fields(architecture, raw),
        }
        return cls(
            path=str(folder),
            served_name=served_name,
            architecture=architecture,
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float(theta),
            rope_scaling=rope_scaling(rope, int(raw["max_position_embeddings"])),
            **checkpoint_traits(raw),
            eos_token_ids=_eos_ids(generation.get("eos_token_id", raw.get("eos_token_id"))),
            kv_lora_rank=raw.get("kv_lora_rank"),
            qk_rope_head_dim=int(raw.get("qk_rope_head_dim") or 0),
            quantization=read_quantization(raw),
            kv_sources=kv_sources(raw),
            **fields,
        )


def decoder_numbers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes that every decoder has, by the names of ModelConfig; KeyError for a missing one."""
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    return {
        "vocab_size": int(raw["vocab_size"]),
        "hidden_size": hidden,
        "intermediate_size": int(raw["intermediate_size"]),
        "num_hidden_layers": int(raw["num_hidden_layers"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(raw.get("num_key_value_heads") or heads),
        "head_dim": int(raw.get("head_dim") or hidden // heads),
        "max_position_embeddings": _positions(raw),
    }


def _positions(raw: Mapping[str, Any]) -> int:
    """How many tokens a text may have: YaRN reaches `factor` times as far as the training did.

    As vLLM's `_get_and_verify_max_len`, but never below what the file names.
    """
    named, rope = int(raw["max_position_embeddings"]), _full_rope(raw)
    trained = rope.get("original_max_position_embeddings")
    if rope.get("rope_type", rope.get("type")) != "yarn" or not trained:
        return named
    return max(named, int(trained * float(rope["factor"])))


def _full_rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary settings of the layers with full attention.

    transformers 5 writes rope_parameters; before, rope_theta and rope_scaling stood apart.
    """
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    found: Mapping[str, Any] = rope.get("full_attention") or rope
    return found


def checkpoint_traits(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Number format and shared embedding table, which a config.json may leave out."""
    return {
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "dtype": str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16"),
    }


def incompatible(architecture: str, reason: str) -> ModelError:
    """The one error for decoders that transformers has code for and that cannot be served."""
    return ModelError(
        f"The Transformers implementation of {architecture} is not compatible with Stoker: "
        f"{reason}."
    )


def plain_decoder(architecture: str, raw: dict[str, Any]) -> dict[str, Any]:
    """`raw` in today's words and without what only our own code has to know.

    Raises ModelError for what is no decoder made of attention layers.
    """
    if architecture in NOT_CARRIED:
        raise incompatible(architecture, NOT_CARRIED[architecture])
    if raw.get("is_encoder_decoder"):
        raise incompatible(architecture, "it reads through an encoder, and only decoders work")
    raw = {key: value for key, value in raw.items() if value is not None}
    for name, old_names in _OLD_NAMES.items():
        given = [raw[old] for old in (name, *old_names) if old in raw]
        raw |= {name: given[0]} if given else {}
    if keeps_own_cache(architecture, raw):
        raw = with_any_layers(raw)
    missing = [name for name in ("vocab_size", *_OLD_NAMES) if name not in raw]
    if missing:
        raise incompatible(
            architecture,
            f"its config.json has no {missing[0]}, as decoders have that are attention layers all "
            "through",
        )
    if isinstance(widths := raw.get("intermediate_size"), list):
        raw["intermediate_size"] = max(widths, default=0)  # of no use to the cache
    for name in ("num_key_value_heads", "head_dim", *_OLD_NAMES):
        if isinstance(raw.get(name), list):
            raise incompatible(architecture, f"its {name} differs from layer to layer")
    unused = {"hidden_act": "silu", "rope_parameters": None, "rope_scaling": None}
    known = {**raw, "max_position_embeddings": _positions(raw)}
    return {"intermediate_size": 4 * int(raw["hidden_size"]), **known, **unused}


def rope_scaling(rope: Mapping[str, Any], max_positions: int) -> RopeScaling | None:
    """How `rope` (rope_parameters or rope_scaling) changes the frequencies; ModelError for a way
    that our own code does not have.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    # The three places of mrope are one for text; up to the trained length, where this engine ends,
    # dynamic changes nothing.
    if kind in ("default", "mrope", "dynamic"):
        return None
    if kind not in ("llama3", "linear", "yarn"):
        raise ModelError(
            f"Rope scaling {kind!r} is not supported; default, linear, dynamic, llama3 and yarn "
            "are."
        )
    return RopeScaling(
        rope_type=kind,
        factor=float(rope["factor"]),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_max_position_embeddings=int(
            rope.get("original_max_position_embeddings") or max_positions
        ),
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        truncates=rope.get("truncate", True) is not False,
        length=_yarn_length(rope) if kind == "yarn" else 1.0,
    )


def _yarn_length(rope: Mapping[str, Any]) -> float:
    """`attention_factor`, or what the factor gives where the file names none."""
    factor = float(rope["factor"])

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return grown(float(rope["mscale"])) / grown(float(rope["mscale_all_dim"]))
    return grown(1.0)


def _eos_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, int):
        return (value,)
    if isinstance(value, list):
        return tuple(int(item) for item in value)
    raise TypeError(f"eos_token_id is {value!r}")
