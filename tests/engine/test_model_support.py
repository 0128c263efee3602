"""What is served: the plan's view of a config.json is that of the engine, family by family."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import transformers

from app.launch.engines import STOKER
from app.planning.builtin_shapes import BUILTIN_SHAPES
from app.planning.model_shapes import ModelShape
from app.planning.plan_request import PlanRequest
from app.planning.planned_cache import cache_spec
from app.planning.shape_reading import read_shape
from engine.kv_sizing import kv_cache_spec
from engine.model_config import ModelConfig
from engine.model_families import supported_architectures
from engine.model_support import (
    GGUF_ARCHITECTURES,
    TRANSFORMERS_DECODERS,
    find_gguf_support,
    find_support,
)
from engine.models.transformers_config import with_transformers_facts
from tests.models.decoder_families import decoder_families, tiny_config


def installed(architectures: Iterable[str]) -> list[str]:
    """Those that the installed transformers has; older ones lack the newest."""
    return [name for name in sorted(architectures) if hasattr(transformers, name)]


_LLAMA = dict(BUILTIN_SHAPES["llama-3.1-8b"].config)
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "head_dim": 16,
    "sliding_window": 32,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_FEW = ("Olmo2ForCausalLM", "Cohere2ForCausalLM", "GPTBigCodeForCausalLM", "GPT2LMHeadModel")


@pytest.mark.parametrize(
    ("changes", "implementation", "words"),
    [
        ({}, "stoker", None),
        ({"hidden_act": "gelu"}, "transformers", "Activation 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "stoker", None),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, "stoker", None),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4}}, "transformers", "'longrope'"),
        ({"architectures": ["Olmo2ForCausalLM"]}, "transformers", None),
        ({"architectures": ["Gemma2ForCausalLM"]}, "stoker", None),
        (
            {"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [0], **_EXPERTS},
            "transformers",
            "Layers without experts",
        ),
        (
            {"architectures": ["GptOssForCausalLM"], "swiglu_limit": 5.0, **_EXPERTS},
            "transformers",
            "swiglu_limit 5.0",
        ),
        (
            {"architectures": ["MixtralForCausalLM"], **_EXPERTS, "num_experts_per_tok": 5},
            None,
            "num_experts_per_tok 5 is not from 1 to the 4 experts",
        ),
        ({"architectures": ["Lfm2ForCausalLM"]}, "transformers", None),
        ({"architectures": ["DoryForCausalLM"]}, None, "with a cache it gives other logits"),
        ({"architectures": ["RwkvForCausalLM"]}, None, "none of the decoders that serve"),
        ({"architectures": ["FooForCausalLM"]}, None, "FooForCausalLM"),
        ({"quantization_config": {"quant_method": "awq"}}, "stoker", None),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, None, "bitsandbytes"),
        ({"intermediate_size": [64, 96]}, None, "not a whole number"),
        ({"architectures": []}, None, "none named"),
    ],
)
def test_who_serves_a_config(
    changes: dict[str, Any], implementation: str | None, words: str | None
) -> None:
    found = find_support({**_LLAMA, **changes})

    assert found.implementation == implementation
    assert (words or "") in (found.obstacle or "")


def test_positions_that_depend_on_the_batch_are_served_up_to_where_they_do_not() -> None:
    phi = {
        **BUILTIN_SHAPES["phi-4"].config,
        "max_position_embeddings": 131_072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope"},
    }

    assert find_support(phi).max_model_len == 4096
    assert find_support({**phi, "rope_scaling": None}).max_model_len is None


@pytest.mark.parametrize("name", BUILTIN_SHAPES)
def test_built_in_shapes_say_how_they_are_served(name: str) -> None:
    shape = read_shape(BUILTIN_SHAPES[name].config, name)
    is_own = shape.architecture in supported_architectures()

    assert (shape.support.implementation == "stoker") is is_own
    assert shape.support.implementation or shape.support.obstacle


def test_gguf_families_are_those_that_are_converted() -> None:
    from engine.models.gguf_config import _FAMILIES

    assert set(GGUF_ARCHITECTURES) == set(_FAMILIES)
    assert find_gguf_support("llama", has_experts=False).implementation == "stoker"
    assert "phi3" in (find_gguf_support("phi3", has_experts=False).obstacle or "")
    assert "with experts" in (find_gguf_support("llama", has_experts=True).obstacle or "")


@pytest.mark.parametrize("architecture", _FEW)
def test_plan_and_engine_see_the_same_cache(architecture: str, tmp_path: Path) -> None:
    _require_same_cache(architecture, tmp_path)


WIDER_PAGES = frozenset(
    (
        *("AXK1ForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
        *("Glm4MoeLiteForCausalLM", "MiniCPM3ForCausalLM", "YoutuForCausalLM"),
        *("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForCausalLM"),
        "Gemma3nForCausalLM",
    )
)
"""Whose keys and values are shared, unlike from layer to layer, or unfolded before a page."""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", installed(TRANSFORMERS_DECODERS - WIDER_PAGES))
def test_plan_and_engine_see_the_same_cache_of_every_decoder(
    architecture: str, tmp_path: Path
) -> None:
    _require_same_cache(architecture, tmp_path)


def _require_same_cache(architecture: str, folder: Path) -> None:
    """Over the config.json that transformers writes for the family."""
    config_class = getattr(transformers, architecture).config_class
    known = config_class().to_dict()
    changes: dict[str, Any] = {k: v for k, v in _SMALL.items() if known.get(k) is not None}
    if kinds := known.get("layer_types"):
        changes["layer_types"] = list(kinds)[:4]
    config = config_class(**changes)
    config.architectures = [architecture]
    config.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())

    engine = ModelConfig.from_raw(raw, {}, folder, "tiny", "transformers")
    engine = with_transformers_facts(engine, 64)
    shape: ModelShape = read_shape(raw, "tiny")

    assert shape.support.implementation is not None
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (
        engine.num_hidden_layers,
        engine.num_key_value_heads,
        engine.head_dim,
    )
    assert [_effective(window, shape) for window in shape.layer_windows] == list(
        engine.layer_windows
    )


def _effective(window: int | None, shape: ModelShape) -> int | None:
    return None if not window or window >= shape.max_model_len else window


_PARTS_OF_OTHERS = {"Emu3ForCausalLM", "MllamaForCausalLM"}  # no tiny model of their own


@pytest.mark.slow
@pytest.mark.parametrize("architecture", installed(TRANSFORMERS_DECODERS - _PARTS_OF_OTHERS))
def test_plan_counts_the_pages_of_our_engine(architecture: str, tmp_path: Path) -> None:
    """As wide as the widest layer's, also where what is stored is unfolded first."""
    model_type = "gemma4_text" if "ForConditional" in architecture else None
    model_type = model_type or next(
        name for name in decoder_families() if tiny_config(name).architectures == [architecture]
    )
    tiny_config(model_type, dtype="bfloat16").save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    engine = ModelConfig.from_raw(raw, {}, tmp_path, "tiny", "transformers")
    engine = with_transformers_facts(engine, 64)
    real = kv_cache_spec(engine, block_size=16, cache_dtype="auto", in_flight_tokens=2048)
    shape = read_shape(raw, "tiny")
    planned = cache_spec(shape, PlanRequest(gpu=None, engine=STOKER), 2048, range(shape.num_layers))

    assert planned.bytes_per_block == real.bytes_per_block
    assert planned.blocks_per_request(500) == real.blocks_per_request(500)
