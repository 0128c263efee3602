"""The native set over an fp8 cache, in every build: what it writes and what it reads.

Bytes are those that the plain-torch twin writes for the same numbers; attention over the same bytes
is the twin's; and every arrangement gives the same bits. Unused slots hold NaN.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.core.engine_core import EngineCore
from engine.kernels.kernel_set import KVCache, ModelStep
from engine.kernels.native.instruction_sets import INSTRUCTION_SETS, VARIABLE
from engine.kernels.native.model_step import NativeModelStep
from tests.core.conftest import engine_config
from tests.core.core_runs import prompts as engine_prompts
from tests.core.core_runs import run
from tests.kernels.native_models import (
    GEMMA3,
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
from tests.kernels.paged_sequences import PagedSequences, Spans, draw_steps, in_chunks
from tests.tiny_model import write_tiny_llama
from tests.worker.kernel_choices import KernelChoice

BUILDS = [isa.name for isa in INSTRUCTION_SETS if os.environ.get(VARIABLE, isa.name) == isa.name]
NAN_BITS = 0x7F
MAX = 448.0
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {  # with their block sizes
    "heads of 32": (16, {}),
    "heads of 64": (48, SIZES["heads of 64"]),
    "heads of 96": (32, {**SIZES["heads of 96"], "attention_bias": True}),
    "heads of 128": (16, {**SIZES["heads of 128"], "num_attention_heads": 2}),
    "no groups": (16, SIZES["no groups"]),
    "groups of five": (16, {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 80}),
    "groups of eight": (32, SIZES["one kv head"]),
    "many query heads": (16, SIZES["many query heads"]),
    "window": (16, {"family": "Mistral", "sliding_window": 45}),
    "window of one": (16, {"family": "Mistral", "sliding_window": 1}),
    "gemma3": (16, {**GEMMA3, "sliding_window": 24}),
}


@pytest.fixture(params=BUILDS, autouse=True)
def _build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, request.param)
    native_library()


def sequences(model: ModelStep, prompts: list[list[int]], *shape: Any) -> PagedSequences:
    result = PagedSequences(model, prompts, *shape)
    for page in result.cache:
        page.fill_(NAN_BITS)
    return result


def as_in_twin(page: Tensor, block_size: int) -> Tensor:
    """A native page in the layout of the plain-torch set, which wants zeros in unused slots."""
    page = torch.where(page == NAN_BITS, 0, page)
    blocks, heads = page.shape[:2]
    keys = page[:, :, 0].view(blocks, heads, -1, block_size, 2).permute(0, 3, 1, 2, 4).flatten(3)
    values = page[:, :, 1].view(blocks, heads, block_size, -1).transpose(1, 2)
    return torch.stack((keys, values), 1)


def numbers_of_bf16() -> Tensor:
    """All of them, and none beside."""
    return torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16)[:, None]


def numbers_near_the_middle() -> Tensor:
    """Of two neighbours of fp8, and what makes them larger or smaller than bf16 could tell."""
    known = torch.arange(NAN_BITS, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = torch.cat((known[1:] + known[:-1], known[1:] * 2)) / 2
    torch.manual_seed(0)
    chosen = middles[torch.randint(len(middles), (1 << 16,))]
    chosen *= torch.randint(2, chosen.shape) * 2 - 1
    powers = torch.randint(9, 15, chosen.shape).float().neg().exp2()
    return torch.stack((chosen, chosen * powers * torch.randint(-1, 2, chosen.shape)), 1)


@pytest.mark.parametrize(
    "numbers",
    [numbers_of_bf16(), numbers_near_the_middle()],
    ids=["all of bf16", "near the middle"],
)
def test_the_bytes_are_those_of_the_twin(numbers: Tensor, tmp_path: Path) -> None:
    """Inputs of the layer are all 1, so keys (at position 0) and values are sums of weights."""
    model = save_rounded(
        tmp_path,
        hidden_size=64,
        vocab_size=32,
        num_hidden_layers=1,
        rms_norm_eps=0.0,
        attention_bias=True,
        num_attention_heads=64,
        num_key_value_heads=64,
        head_dim=512,
    )
    (layer,) = model.model.layers
    model.model.embed_tokens.weight.data.fill_(1.0)
    layer.input_layernorm.weight.data.fill_(1.0)
    products = (layer.self_attn.k_proj, layer.self_attn.v_proj)
    for product, half in zip(products, numbers.chunk(2), strict=True):
        product.weight.data.zero_()
        product.weight.data[:, : half.shape[1] - 1] = half[:, 1:]
        product.bias.data.copy_(half[:, 0])
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    native, twin = (build(tmp_path, cache_dtype="fp8") for build in (native_model, reference_model))
    batch = PagedSequences(native, [[1]], 16).batch([(0, 1)])
    caches = [model.create_kv_cache(2) for model in (native, twin)]
    for step, cache in zip((native, twin), caches, strict=True):
        step.forward(batch, cache)
    block = batch.block_table[0, 0, 0]
    found = as_in_twin(caches[0][0], 16)[block, :, 0].flatten()
    wanted = caches[1][0][block, :, 0].flatten()
    assert torch.equal(found, wanted)
    exact = numbers.float().sum(1).clamp(-MAX, MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(found[1 << 15 :], exact[1 << 15 :])  # the values; keys are rotated by 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_arrangement_reads_what_the_twin_reads(variant: str, tmp_path: Path) -> None:
    size, changes = VARIANTS[variant]
    save_rounded(tmp_path, **changes)
    windows, prompts = group_windows(tmp_path), random_prompts(2, 37, 150, 131, 64)
    model = native_model(tmp_path, block_size=size, cache_dtype="fp8")
    twin = reference_model(tmp_path, block_size=size, cache_dtype="fp8")
    shape = (size, 0.0, windows)
    ours = sequences(model, prompts, *shape)
    ours.step([(0, len(prompt) - 1) for prompt in prompts])
    theirs = PagedSequences(twin, prompts, *shape)
    theirs.cache[:] = [as_in_twin(page, size) for page in ours.cache]
    last: Spans = [(len(prompt) - 1, len(prompt)) for prompt in prompts]
    found, wanted = ours.step(last), theirs.step(last)
    # The last token's own key and value may round differently: its input does.
    assert relative_error(torch.cat(found), torch.cat(wanted)) < 0.03
    whole = sequences(model, prompts, *shape).run(in_chunks(prompts, 256))
    assert_same([rows[-1:] for rows in whole], found)
    assert_same(sequences(model, prompts, *shape).run(in_chunks(prompts, 13)), whole)
    (alone,) = sequences(model, prompts[2:3], *shape).run([[150]])
    assert torch.equal(alone, whole[2])


@settings(
    deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_schedule_gives_the_same_logits(
    folder: Path, model: NativeModelStep, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=5))
    prompts, windows = random_prompts(*lengths), group_windows(folder)
    scheduled = sequences(model, prompts, 16, 0.0, windows).run(draw_steps(data, lengths, 60))
    for prompt, result in zip(prompts, scheduled, strict=True):
        (alone,) = sequences(model, [prompt], 16, 0.0, windows).run([[len(prompt)]])
        assert torch.equal(result, alone)


def test_preemption_and_chunks_change_no_token(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", hidden_size=128)
    flags = {**KernelChoice("native", "bfloat16").flags, "max_model_len": 128}
    flags["kv_cache_dtype"] = "fp8"
    tight = {"num_gpu_blocks_override": 13, "max_num_batched_tokens": 9}
    wanted = run(EngineCore(engine_config(folder, **flags)), engine_prompts())
    found = run(EngineCore(engine_config(folder, **tight, **flags)), engine_prompts())
    assert (wanted.num_preemptions, found.num_preemptions > 0) == (0, True)
    assert found.texts == wanted.texts
    assert len({tuple(tokens) for tokens in wanted.texts.values()}) == 6


def test_threads_share_a_long_context(folder: Path, model: NativeModelStep) -> None:
    """Several threads split it at tile borders, one thread does not."""
    windows, prompts = group_windows(folder), random_prompts(1403)
    steps = [[1000], [400], [1], [1], [1]]
    single = native_model(folder, num_threads=1, num_positions=2048, cache_dtype="fp8")
    wanted = sequences(single, prompts, 16, 0.0, windows).run([[1403]])
    assert_same(sequences(model, prompts, 16, 0.0, windows).run(steps), wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fp8")
    changes = {**GEMMA3, "num_hidden_layers": 3, "layer_types": GEMMA3["layer_types"][:3]}
    save_rounded(target, **{**changes, "sliding_window": 70, "max_position_embeddings": 2048})
    return target


@pytest.fixture
def model(folder: Path) -> NativeModelStep:
    return native_model(folder, num_positions=2048, cache_dtype="fp8")


def test_half_the_bytes(model: NativeModelStep, folder: Path) -> None:
    def num_bytes(cache: KVCache) -> int:
        return sum(page.nbytes for page in cache)

    plain = native_model(folder, num_positions=2048).create_kv_cache(7)
    assert 2 * num_bytes(model.create_kv_cache(7)) == num_bytes(plain)
