"""What a config.json may say; whatever it says, a reader ends with an answer or one error."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import StokerError
from app.planning.builtin_shapes import BUILTIN_SHAPES
from app.planning.plan_models import find_planned_model
from app.planning.shape_reading import read_shape
from engine.errors import CorruptModelError
from engine.model_config import ModelConfig
from engine.model_families import text_part
from engine.model_files.config_values import check_decoder, checked_config, parse_config
from engine.model_files.json_objects import LIMIT_BYTES, parse_json
from tests.engine.model_files.refusals import refusal_of

GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "num_hidden_layers": 6,
        "hidden_size": 64,
        "intermediate_size": 128,
        "vocab_size": 100,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "eos_token_id": [1, 106],
}
CONFIGS = [GEMMA, *(dict(shape.config) for shape in BUILTIN_SHAPES.values())]


@pytest.mark.parametrize("name", BUILTIN_SHAPES)
def test_every_shape_that_is_known_passes(name: str) -> None:
    check_decoder(text_part(checked_config(dict(BUILTIN_SHAPES[name].config), name)), name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000; it can be from 1 to"),
        ({"num_hidden_layers": 10**4000}, "num_hidden_layers is a number of 13288 bits"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0; it can be from 1"),
        ({"max_position_embeddings": -1}, "max_position_embeddings is -1"),
        ({"hidden_size": "64"}, "hidden_size is '64', not a whole number"),
        ({"hidden_size": True}, "hidden_size is True, not a whole number"),
        ({"hidden_size": [64] * 999}, r"hidden_size is \[64, 64, .*\.\.\., not a whole number"),
        ({"architectures": [1]}, "one of architectures is 1, not a word"),
        ({"architectures": ["\x1b]52;c;aGk=\x07A\nB"]}, r"is '\\x1b\]52;c;aGk=\\x07A\\nB', not a"),
        ({"torch_dtype": "\nready"}, r"torch_dtype is '\\nready', not a word"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM', not a list"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear', not an object"),
        ({"rope_scaling": {"factor": 0}}, "rope_scaling.factor is 0"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "is no multiple of"),
        ({"num_attention_heads": 65, "hidden_size": 64, "head_dim": None}, "do not fit"),
        ({"layer_types": ["x"]}, "layer_types names 1 layers, num_hidden_layers is 32"),
        ({"layer_types": [{}] * 32}, r"one of layer_types is \{\}, not a word"),
        ({"quantization_config": ["awq"]}, "quantization_config is .*, not an object"),
        ({"text_config": [1]}, "text_config is .*, not an object"),
        ({"vision_config": {"patch_size": 0}}, "vision_config: patch_size is 0"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', not a whole number"),
    ],
)
def test_impossible_values_are_named(changes: dict[str, Any], message: str) -> None:
    raw = {**BUILTIN_SHAPES["llama-3.1-8b"].config, "num_hidden_layers": 32, **changes}
    with pytest.raises(CorruptModelError, match=message):
        check_decoder(text_part(checked_config(raw, "config.json")), "config.json")


def test_layers_that_predict_further_tokens_may_be_named() -> None:
    raw = {"num_hidden_layers": 2, "num_nextn_predict_layers": 1, "layer_types": ["a"] * 3}

    check_decoder(checked_config(raw, "config.json"), "config.json")


def test_other_models_than_decoders_are_refused_as_what_they_are() -> None:
    raw = {"architectures": ["XLNetLMHeadModel"], "intermediate_size": [64, 64]}
    with pytest.raises(StokerError, match="is a XLNetLMHeadModel, whose memory"):
        read_shape(checked_config(raw, "config.json"), "xlnet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 200_000, "nested too deep"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b"[]", "holds list, not an object"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b" " * (LIMIT_BYTES + 1), "more than 25,000,000 bytes"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_what_is_no_object_is_one_error(text: bytes, message: str) -> None:
    with pytest.raises(CorruptModelError, match=message):
        parse_json(text, "config.json")


NUMBERS = (0, 1, -1, 7, 2**31, 10**9, 10**40, 0.5, 1e308, float("nan"), float("inf"))
WORDS = ("", "x", "linear", "fp8", "bfloat16", "\x1b[31m\n")
SCALARS: st.SearchStrategy[Any] = st.sampled_from([None, True, False, *NUMBERS, *WORDS])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A real configuration with up to three values replaced, at any depth."""
    raw: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(CONFIGS))))
    for _ in range(draw(st.integers(1, 3))):
        place = raw
        inner = sorted(key for key, value in place.items() if isinstance(value, dict))
        if name := draw(st.sampled_from(["", *inner])):
            place = place[name]
        extra = ["rope_scaling", "rope_parameters", "layer_types", "sliding_window", "head_dim"]
        key = draw(st.sampled_from([*sorted(place), *extra]))
        place[key] = draw(ANYTHING)
    return raw


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_a_mutated_configuration_is_read_or_refused(raw: dict[str, Any]) -> None:
    def read() -> object:
        return read_shape(parse_config(json.dumps(raw).encode(), "config.json"), "mutated")

    refusal = refusal_of(read)
    assert refusal is None or len(str(refusal)) < 2000


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(mutated())
def test_plan_and_engine_end_with_an_answer_or_one_error(
    tmp_path: Path, raw: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")

    def read(model_impl: str) -> object:
        return ModelConfig.from_folder(tmp_path, "m", model_impl)

    for model_impl in ("auto", "transformers"):
        refusal_of(functools.partial(read, model_impl))
    refusal = refusal_of(lambda: find_planned_model(str(tmp_path)))
    assert refusal is None or getattr(refusal, "exit_code", None) == 2
