"""Shapes known by name: their parameters are those that transformers builds of the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from app.planning.builtin_shapes import BUILTIN_SHAPES
from app.planning.gpu_catalogue import find_gpu
from app.planning.layer_caches import LayerState
from app.planning.model_shapes import BuiltinShape, ModelShape
from app.planning.plan import MemoryPlan, make_plan
from app.planning.plan_models import find_planned_model
from app.planning.plan_request import PlanRequest
from app.planning.shape_reading import read_shape

_NOT_OF_A_MODEL = ("architectures", "torch_dtype", "quantization_config", "model_type")
_FEW = ("qwen2.5-coder-7b", "gemma-4-e2b", "gemma-4-26b-a4b", "qwen3-next-80b-a3b", "deepseek-v3")


@pytest.mark.parametrize("name", _FEW)
def test_parameters_are_those_of_the_model(name: str) -> None:
    _require_parameters(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BUILTIN_SHAPES))
def test_parameters_of_every_shape_are_those_of_its_model(name: str) -> None:
    _require_parameters(name)


def _require_parameters(name: str) -> None:
    builtin = BUILTIN_SHAPES[name]
    model = _without_memory(builtin)
    weights = find_planned_model(name).weights
    towers = sum(part.num_values for part in weights.parts if part.place == "tower")
    experts = sum(p.numel() for key, p in model.named_parameters() if ".experts." in key)
    planned = sum(part.num_values for part in weights.parts if part.is_expert)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert weights.parameters is not None
    assert weights.parameters - towers == pytest.approx(parameters, rel=1e-6)
    assert planned == pytest.approx(experts, rel=0.01)


def _without_memory(builtin: BuiltinShape) -> Any:
    """The text decoder on the meta device."""
    raw = dict(builtin.config.get("text_config") or builtin.config)
    architecture = raw["architectures"][0].replace("ConditionalGeneration", "CausalLM")
    model_class = getattr(transformers, architecture)
    if "hybrid_override_pattern" in raw:  # whose length is the number of layers
        raw.pop("num_hidden_layers")
    config = model_class.config_class(
        **{key: value for key, value in raw.items() if key not in _NOT_OF_A_MODEL}
    )
    with torch.device("meta"):
        return model_class(config)


def shape_of(name: str) -> ModelShape:
    return read_shape(BUILTIN_SHAPES[name].config, name)


def planned(name: str, gpu: str = "h200", **flags: Any) -> MemoryPlan:
    model = find_planned_model(name)
    return make_plan(model.shape, model.weights, PlanRequest(gpu=find_gpu(gpu), **flags))


def test_layers_that_share_a_cache_keep_none_of_their_own() -> None:
    caches = shape_of("gemma-4-e2b").layer_caches
    own = [cache for cache in caches if cache.values_per_token]

    assert [len(caches), len(own)] == [35, 15]
    assert [(c.num_kv_heads, c.key_dim, c.window) for c in own[3:5]] == [
        (1, 256, 512),
        (1, 512, None),
    ]
    wide = [cache for cache in shape_of("gemma-4-31b").layer_caches if cache.window is None]
    assert {(cache.num_kv_heads, cache.key_dim) for cache in wide} == {(4, 512)}


def test_small_pages_hold_more_tokens_of_a_block() -> None:
    spec = planned("gemma-4-e2b", max_num_batched_tokens=2048).tightest.spec

    assert [(len(group.layers), group.sliding_window) for group in spec.groups] == [
        (3, None),
        *[(3, 512)] * 4,
    ]
    assert spec.bytes_per_block == 3 * 16 * 2 * 512 * 2
    full, sliding = (spec.blocks_of_group(group, 131_072) for group in spec.groups[:2])
    assert full == 131_072 // 16
    assert sliding == -(-(511 + 2 * 2048) // 32) + 1  # its pages are half as large


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("qwen3-next-80b-a3b", 544), ("qwen3.6-35b-a3b", 1056), ("granite-4.0-h-tiny", 400)],
)
def test_a_block_of_attention_is_as_large_as_a_state(name: str, tokens: int) -> None:
    """The block sizes that vLLM says in its log for these models."""
    ranks = 2 if name.startswith("qwen3-next") else 1
    spec = planned(name, tensor_parallel_size=ranks).tightest.spec
    caches = shape_of(name).layer_caches
    states = sum(cache.state is not None for cache in caches)

    assert spec.block_size == tokens
    assert spec.blocks_per_request(1) == len(spec.groups)
    assert spec.blocks_per_request(tokens + 1) == len(spec.groups) + 1
    assert sum(len(group.layers) for group in spec.groups) == len(caches)
    assert states > len(caches) // 2


def test_the_state_of_qwen3_next() -> None:
    states = set(shape_of("qwen3-next-80b-a3b").states)

    assert states == {LayerState(8192, 4, 32 * 128 * 128)}


@pytest.mark.parametrize("engine", ["vllm", "stoker", "llama.cpp"])
def test_states_lie_in_blocks_or_beside_them(engine: str) -> None:
    """One request's states are what is left over of the memory elsewhere."""
    plan = planned("lfm2-1.2b", "h100", engine=engine, max_num_seqs=8)
    other = plan.requested_bytes - plan.tightest.weights_bytes - plan.tightest.available_bytes
    guessed = sum(guess.num_bytes for guess in plan.assumptions)
    values = sum(state.num_values for state in plan.shape.states)

    slots = {"vllm": 0, "stoker": 8 * 2, "llama.cpp": 1 * 4}[engine]
    assert other - guessed == slots * values
