"""Native int8 and int4 against the plain-torch twin, and bit for bit against themselves.

The twin rounds to the same integers and computes in float32. Within the network the two part where
a last digit turns an integer, so logits are close; one product of the same inputs is nearly exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.kernel_set import PackedLinear
from engine.kernels.native.model_step import NativeKernels, NativeModelStep
from engine.kernels.quantized_reference import (
    QuantizedReferenceKernels,
    group_size,
    quantized,
    rounded_inputs,
    rounded_weight,
)
from engine.kernels.reference import ReferenceKernels
from engine.kernels.weight_formats import INT4, INT8, WeightFormats
from engine.models.decoder_native import build_native_decoder
from engine.models.measured_inputs import measure_inputs
from engine.models.registry import load_weights, model_class
from engine.models.weights import DecoderWeights
from engine.worker.kv_cache import cache_spec
from tests.kernels.native_models import (
    GEMMA3,
    GPT_OSS,
    assert_same,
    group_windows,
    native_library,
    native_model,
    random_prompts,
    reference_model,
    relative_error,
    save_rounded,
)
from tests.kernels.native_models import VARIANTS as SIZES
from tests.kernels.paged_sequences import PagedSequences, draw_steps, in_chunks
from tests.worker.driver import engine_config

NAN = float("nan")
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "odd sizes": SIZES["odd sizes"],
    "groups of 32": {"hidden_size": 96, "intermediate_size": 160},
    "groups of 64": {"hidden_size": 128, "intermediate_size": 192, "head_dim": 64},
    "mistral": {"family": "Mistral", "sliding_window": 45},
    "qwen2": {"family": "Qwen2"},
    "qwen3": {"family": "Qwen3"},
    "gemma3": {**GEMMA3, "sliding_window": 24},
    "gpt-oss": {**GPT_OSS, "num_experts_per_tok": 4},
}

pytestmark = pytest.mark.usefixtures("native_set")


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_twin(variant: str, quantization: str, tmp_path: Path) -> None:
    save_rounded(tmp_path, **VARIANTS[variant])
    windows = group_windows(tmp_path)
    prompts = random_prompts(1, 37, 90, 64, 130)
    twin = reference_model(tmp_path, quantization=quantization)
    wanted = PagedSequences(twin, prompts, 16, windows=windows).run(in_chunks(prompts, 50))
    model = native_model(tmp_path, quantization=quantization)
    whole = PagedSequences(model, prompts, 16, NAN, windows).run(in_chunks(prompts, 256))
    plain = PagedSequences(native_model(tmp_path), prompts, 16, windows=windows)
    exact = torch.cat(plain.run(in_chunks(prompts, 256)))
    # What int4 changes is much more than what tells the two sets apart.
    changed = relative_error(torch.cat(wanted), exact)
    assert relative_error(torch.cat(whole), torch.cat(wanted)) < max(0.03, 0.3 * changed)
    chunked = PagedSequences(model, prompts, 16, NAN, windows).run(in_chunks(prompts, 13))
    assert_same(chunked, whole)
    (alone,) = PagedSequences(model, prompts[2:3], 16, NAN, windows).run([[40], *[[1]] * 50])
    assert torch.equal(alone, whole[2])


@pytest.fixture(
    scope="module",
    params=[(hidden, form) for hidden in (64, 77, 96, 192) for form in (INT8, INT4)],
    ids=lambda param: f"{param[1]} of {param[0]}",
)
def head_product(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[NativeModelStep, PackedLinear]:
    """A model, and what turns its hidden states into logits."""
    hidden, number_format = request.param
    folder = tmp_path_factory.mktemp("head")
    heads = 7 if hidden == 77 else 4
    save_rounded(folder, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=1)
    config = engine_config(folder, dtype="bfloat16")
    weights = load_weights(config.model, torch.bfloat16, torch.device("cpu"), lambda *state: None)
    formats = WeightFormats(INT8, number_format)
    twin = QuantizedReferenceKernels(formats).pack_head(weights.lm_head)
    kernels = NativeKernels(native_library(), 2, formats=formats)
    return build_native_decoder(config.model, weights, kernels, 256, cache_spec(config)), twin


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 16, 70, 130])
def test_one_product_is_nearly_exact(
    rows: int, head_product: tuple[NativeModelStep, PackedLinear]
) -> None:
    model, twin = head_product
    sequences = PagedSequences(model, random_prompts(rows), 16)
    batch = sequences.batch([(0, rows)])
    inputs = model.hidden_states(batch, sequences.cache)
    logits = model.forward(batch, sequences.cache)
    assert relative_error(logits, twin.run(inputs)) < 1e-6


@pytest.fixture(scope="module", params=["int8", "int4"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> NativeModelStep:
    folder = tmp_path_factory.mktemp("any")
    save_rounded(folder, hidden_size=66, num_attention_heads=6)
    return native_model(folder, quantization=request.param)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_schedule_gives_the_same_logits(model: NativeModelStep, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 80), min_size=1, max_size=6))
    prompts = random_prompts(*lengths)
    steps = draw_steps(data, lengths, 40)
    scheduled = PagedSequences(model, prompts, 16, fill=NAN).run(steps)
    for prompt, result in zip(prompts, scheduled, strict=True):
        (alone,) = PagedSequences(model, [prompt], 16).run([[len(prompt)]])
        assert torch.equal(result, alone)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_threads_do_not_change_the_result(
    num_threads: int, quantization: str, tmp_path: Path
) -> None:
    save_rounded(tmp_path)
    prompts = random_prompts(5, 129, 77)
    results = [
        PagedSequences(
            native_model(tmp_path, quantization=quantization, num_threads=threads), prompts, 16
        ).run([[5, 100, 1], [0, 28, 75], [0, 1, 1]])
        for threads in (2, num_threads)
    ]
    assert_same(*results)


def test_weight_bytes_shrink(tmp_path: Path) -> None:
    save_rounded(tmp_path, hidden_size=256, intermediate_size=384)
    sizes = {
        name: native_model(tmp_path, quantization=name).weight_bytes
        for name in ("none", "int8", "int4")
    }
    embedding = 199 * 256 * 2
    packed = {name: size - embedding for name, size in sizes.items()}
    assert packed["int8"] == pytest.approx(packed["none"] * 8.25 / 16, rel=0.03)
    assert packed["int4"] < packed["int8"]


@pytest.fixture(params=[64, 77, 96])
def weight(request: pytest.FixtureRequest) -> Tensor:
    """Rows of normal numbers, and some that are out of the ordinary."""
    rows = torch.randn(50, request.param, generator=torch.Generator().manual_seed(1))
    rows[3] = 0  # nothing to scale by
    rows[4] = 1e-35
    rows[5, 7] = 30.0
    rows[6] = 0.25
    return rows


def test_int8_weights_are_as_close_as_the_steps_allow(weight: Tensor) -> None:
    groups, errors = in_groups(weight, INT8)
    largest = groups.abs().amax(-1)
    # Factors are rounded to bf16, which counts at the far end of them.
    assert (errors.amax(-1) <= largest / 127 / 2 * 1.02 + largest * 2**-8 + 1e-30).all()
    assert not rounded_weight(weight, INT8)[3].any()


def test_int4_weights_are_nearer_than_equal_steps_over_the_range(weight: Tensor) -> None:
    groups, errors = in_groups(weight, INT4)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    steps = ((high - low) / 15).bfloat16().float()
    low = low.bfloat16().float()
    numbers = torch.where(steps > 0, (groups - low) / steps, 0.0).round().clamp(0, 15)
    equal_steps = (numbers * steps + low - groups).square().sum(-1)
    found = errors.square().sum(-1)
    assert (found <= equal_steps * (1 + 1e-6)).all()
    assert found.sum() < 0.9 * equal_steps.sum()
    assert not rounded_weight(weight, INT4)[3].any()


def test_int4_errors_count_by_importance(weight: Tensor) -> None:
    importance = torch.full(weight.shape[1:], 0.01, dtype=torch.bfloat16)
    importance[5::16] = 100.0
    plain, weighed = (
        (rounded_weight(weight, INT4, by) - weight).square() * importance.float()
        for by in (None, importance)
    )
    assert float(weighed.sum()) < 0.5 * float(plain.sum())


@pytest.mark.parametrize("hidden", [64, 77, 96])
def test_measured_inputs_give_the_same_numbers_as_in_the_twin(hidden: int, tmp_path: Path) -> None:
    heads = 7 if hidden == 77 else 4
    save_rounded(tmp_path, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=1)
    config = engine_config(tmp_path, dtype="bfloat16")
    spec, prompts = cache_spec(config), random_prompts(70)

    def weights(dtype: torch.dtype) -> DecoderWeights:
        return load_weights(config.model, dtype, torch.device("cpu"), lambda *state: None)

    inputs = measure_inputs(config.model, weights(torch.bfloat16), spec)
    formats = WeightFormats(INT4, INT8)
    twin = WeighedReference(formats, [tensor for layer in inputs for tensor in layer.values()])
    kernels = NativeKernels(native_library(), 2, formats=formats)
    native = build_native_decoder(
        config.model, weights(torch.bfloat16), kernels, 256, spec, inputs=inputs
    )
    plain = native_model(tmp_path, quantization="int4")
    wanted, found, other = (
        PagedSequences(model, prompts, 16).run([[70]])[0]
        for model in (
            model_class()(config.model, weights(torch.float32), twin, 256, spec),
            native,
            plain,
        )
    )
    assert relative_error(found, wanted) < 0.03
    assert relative_error(other, wanted) > 0.06  # so the measured inputs make a difference


class WeighedReference(QuantizedReferenceKernels):
    """The twin with what was measured of each linear's inputs, in packing order."""

    inputs: Iterator[Tensor]

    def __init__(self, formats: WeightFormats, inputs: list[Tensor]) -> None:
        super().__init__(formats)
        object.__setattr__(self, "inputs", iter(inputs))

    def _pack(self, weight: Tensor, bias: Tensor | None, number_format: str) -> PackedLinear:
        if number_format == INT4:
            weight = rounded_weight(weight, number_format, next(self.inputs))
            packed = ReferenceKernels.pack_linear(self, weight, bias)
            return PackedLinear(
                lambda x: packed.run(rounded_inputs(x.float(), 32)), packed.num_bytes, is_copy=True
            )
        return super()._pack(weight, bias, number_format)


def in_groups(weight: Tensor, number_format: str) -> tuple[Tensor, Tensor]:
    """[rows, groups, size] of the weights and of what rounding changes in them."""
    rounded, num_inputs = rounded_weight(weight, number_format), weight.shape[1]
    size = group_size(number_format, num_inputs)
    padded = (F.pad(x, (0, -num_inputs % size)) for x in (weight, (rounded - weight).abs()))
    groups, errors = (x.view(len(weight), -1, size) for x in padded)
    return groups, errors


def test_rounded_inputs_keep_the_largest_of_each_group() -> None:
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(2))
    x[1, :32] = 0
    rounded = rounded_inputs(x, 32)
    groups, kept = x.view(4, 3, 32), rounded.view(4, 3, 32)
    assert torch.allclose(groups.abs().amax(-1), kept.abs().amax(-1), rtol=1e-6)
    assert ((groups - kept).abs() <= groups.abs().amax(-1, keepdim=True) / 253).all()
    assert rounded_inputs(x[:0], 32).shape == (0, 96)  # a step that asks for no logits


def test_without_quantization_the_set_stays_as_it_is() -> None:
    kernels = ReferenceKernels()
    assert quantized(kernels, "none") is kernels
