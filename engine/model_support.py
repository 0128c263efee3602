"""What this engine serves, whose code runs it, and up to which length: the facts that a plan asks.

Everything that is refused before weights are read is refused here too, by the same code. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.model_config import ModelConfig, incompatible
from engine.model_families import OWN_CACHE_DECODERS, text_architecture, text_part

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
"""Families of GGUF files that are converted; without experts."""

TRANSFORMERS_DECODERS: frozenset[str] = frozenset(
    {
        "AXK1ForCausalLM",
        "AfmoeForCausalLM",
        "Apertus1p5TextForCausalLM",
        "ApertusForCausalLM",
        "ArceeForCausalLM",
        "AriaTextForCausalLM",
        "BeamForCausalLM",
        "BioGptForCausalLM",
        "BitNetForCausalLM",
        "CodeGenForCausalLM",
        "Cohere2ForCausalLM",
        "Cohere2MoeForCausalLM",
        "CohereForCausalLM",
        "CwmForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Dots1ForCausalLM",
        "Emu3ForCausalLM",
        "Ernie4_5ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneMoeForCausalLM",
        "FlexOlmoForCausalLM",
        "FlintForCausalLM",
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
        "GPTJForCausalLM",
        "GPTNeoXForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3nForCausalLM",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForCausalLM",
        "GemmaForCausalLM",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmForCausalLM",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "GraniteSWAForCausalLM",
        "HYV3ForCausalLM",
        "HeliumForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "HunYuanMoEV1ForCausalLM",
        "HyperCLOVAXForCausalLM",
        "Jais2ForCausalLM",
        "Kolibri1ForCausalLM",
        "LagunaForCausalLM",
        "LlamaForCausalLM",
        "MellumForCausalLM",
        "MiniCPM3ForCausalLM",
        "MiniMaxM2ForCausalLM",
        "MiniMaxM3VLForCausalLM",
        "Ministral3ForCausalLM",
        "MinistralForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "MllamaForCausalLM",
        "ModernBertDecoderForCausalLM",
        "NanoChatForCausalLM",
        "NemotronForCausalLM",
        "OPTForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "OlmoForCausalLM",
        "OlmoeForCausalLM",
        "PersimmonForCausalLM",
        "Phi3ForCausalLM",
        "PhiForCausalLM",
        "PhimoeForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "SeedOssForCausalLM",
        "SmolLM3ForCausalLM",
        "SolarOpenForCausalLM",
        "StableLmForCausalLM",
        "Starcoder2ForCausalLM",
        "VaultGemmaForCausalLM",
        "YoutuForCausalLM",
    }
)
"""Decoders that transformers' code serves with the tokens it gives alone: all were tried."""


@dataclass(frozen=True, slots=True)
class Support:
    """`implementation` is stoker or transformers, None where `obstacle` says what is in the way.

    `max_model_len` is the longest that is served where that is less than the model's own length.
    `keeps_own_cache`: requests are kept in transformers' cache, not in blocks.
    """

    implementation: str | None
    obstacle: str | None = None
    max_model_len: int | None = None
    keeps_own_cache: bool = False
    is_encoder: bool = False


def find_support(raw: Mapping[str, Any]) -> Support:
    """How `--model-impl auto` serves the model of this config.json."""
    try:
        config = ModelConfig.from_raw(dict(raw), {}, Path(), "")
        if config.implementation == "transformers" and not config.is_encoder:
            named = text_architecture(config.architecture, text_part(raw))
            _require_known_decoder(named)
    except ModelError as error:
        return Support(None, str(error).rstrip("."))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return Support(None, "its config.json is incomplete or damaged")
    limit = _fixed_positions(raw) if config.implementation == "transformers" else None
    return Support(
        config.implementation,
        config.own_obstacle,
        limit,
        keeps_own_cache=config.keeps_own_cache,
        is_encoder=config.is_encoder,
    )


def find_gguf_support(architecture: str, *, has_experts: bool) -> Support:
    """How a GGUF file of this family is served."""
    if architecture in GGUF_ARCHITECTURES and not has_experts:
        return Support("stoker")
    kind = f"{architecture} with experts" if has_experts else architecture
    return Support(None, f"GGUF files of the family {kind} are not converted")


def _require_known_decoder(architecture: str) -> None:
    if architecture not in TRANSFORMERS_DECODERS | OWN_CACHE_DECODERS:
        raise incompatible(architecture, "it is none of the decoders that serve there")


def _fixed_positions(raw: Mapping[str, Any]) -> int | None:
    """Beyond them a `longrope` turns each token as far as the longest request of the batch asks."""
    text = text_part(raw)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) not in ("longrope", "su"):
        return None
    limit = text.get("original_max_position_embeddings") or rope.get(
        "original_max_position_embeddings"
    )
    return None if limit is None else int(limit)
