"""Quantised checkpoints against the same weights in float32, run by transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import ParallelConfig
from engine.errors import CorruptModelError
from engine.kernels.kernel_set import ModelStep, create_kernel_set
from engine.model_config import ModelConfig
from engine.models.quantized_tensors import unpacked
from engine.models.registry import load_weights
from engine.models.transformers_config import with_transformers_facts
from engine.models.transformers_fallback import TransformersModel, load_transformers_model
from engine.models.weights import DecoderWeights
from engine.rank_layout import WHOLE, RankPlace, rank_places
from engine.worker.kv_cache import cache_spec
from tests.kernels.native_models import (
    group_windows,
    native_model,
    random_prompts,
    reference_model,
    relative_error,
)
from tests.kernels.paged_sequences import PagedSequences
from tests.models.quantized_checkpoints import (
    Checkpoint,
    add_to_config,
    save_awq,
    save_compressed,
    save_fp8_blocks,
    save_gptq,
    save_mxfp4,
    save_split,
    words,
)
from tests.models.tiny_models import save_seeing_gemma
from tests.worker.driver import engine_config

_DYNAMIC = {"num_bits": 8, "strategy": "token", "dynamic": True}
Make = Callable[[Path], Checkpoint]

FORMATS: dict[str, Make] = {
    "int8 w8a8": lambda folder: save_compressed(
        folder,
        num_bits=8,
        type="int",
        strategy="channel",
        inputs={**_DYNAMIC, "type": "int"},
    ),
    "int8 w8a8, asymmetric": lambda folder: save_compressed(
        folder,
        num_bits=8,
        type="int",
        strategy="channel",
        symmetric=False,
        inputs={**_DYNAMIC, "type": "int"},
    ),
    "fp8 dynamic": lambda folder: save_compressed(
        folder,
        num_bits=8,
        type="float",
        strategy="channel",
        inputs={**_DYNAMIC, "type": "float"},
    ),
    "fp8 static": lambda folder: save_compressed(
        folder,
        num_bits=8,
        type="float",
        strategy="tensor",
        inputs={"num_bits": 8, "type": "float", "strategy": "tensor"},
    ),
    "fp8 blocks of compressed-tensors": lambda folder: save_compressed(
        folder, num_bits=8, type="float", strategy="block", block_structure=[64, 32]
    ),
    "w4a16": lambda folder: save_compressed(
        folder, num_bits=4, type="int", strategy="group", group_size=32
    ),
    "w4a16, asymmetric": lambda folder: save_compressed(
        folder, num_bits=4, type="int", strategy="group", group_size=64, symmetric=False
    ),
    "w4a16 by channel": lambda folder: save_compressed(
        folder, num_bits=4, type="int", strategy="channel", symmetric=False
    ),
    "w8a16": lambda folder: save_compressed(
        folder, num_bits=8, type="int", strategy="group", group_size=64
    ),
    "w3a16": lambda folder: save_compressed(
        folder, num_bits=3, type="int", strategy="group", group_size=32
    ),
    "fp8 blocks": save_fp8_blocks,
    "awq": save_awq,
    "gptq": save_gptq,
    "gptq, asymmetric": lambda folder: save_gptq(folder, symmetric=False),
    "gptq, desc_act": lambda folder: save_gptq(folder, desc_act=True, symmetric=False),
    "gptq, 8 bits": lambda folder: save_gptq(folder, bits=8),
    "gptq, 3 bits": lambda folder: save_gptq(folder, bits=3, symmetric=False),
    "gptq v2": lambda folder: save_gptq(folder, v2=True, symmetric=False),
}


NUM_TOKENS = 12
PROMPTS = random_prompts(5, 40)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=FORMATS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return FORMATS[request.param](tmp_path_factory.mktemp("quantised"))


def continued(oracle: Any) -> list[list[int]]:
    """The prompts with transformers' greedy continuation behind them."""
    oracle.generation_config.eos_token_id = None
    settings = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "pad_token_id": 0}
    texts = [torch.tensor([prompt]) for prompt in PROMPTS]
    return [
        oracle.generate(text, attention_mask=torch.ones_like(text), **settings)[0].tolist()
        for text in texts
    ]


def greedy(model: ModelStep, texts: list[list[int]]) -> list[list[int]]:
    """What the model would write at each place of the continuations."""
    lengths = [len(text) for text in texts]
    logits = PagedSequences(model, texts, 16).run([lengths])
    return [rows[-NUM_TOKENS - 1 : -1].argmax(-1).tolist() for rows in logits]


def test_each_format_gives_the_tokens_of_its_dequantised_weights(checkpoint: Checkpoint) -> None:
    texts = continued(checkpoint.oracle)
    wanted = [text[-NUM_TOKENS:] for text in texts]
    assert greedy(reference_model(checkpoint.folder), texts) == wanted


def test_the_native_kernels_get_the_same_weights(checkpoint: Checkpoint) -> None:
    (text,) = continued(checkpoint.oracle)[:1]
    with torch.inference_mode():
        wanted = checkpoint.oracle(torch.tensor([text])).logits[0]
    (found,) = PagedSequences(native_model(checkpoint.folder), [text], 16).run([[len(text)]])
    assert relative_error(found, wanted) < 0.03  # bf16 throughout


def test_mxfp4_experts_give_the_logits_of_their_dequantised_weights(tmp_path: Path) -> None:
    checkpoint = save_mxfp4(tmp_path)
    (prompt,) = random_prompts(40)
    with torch.inference_mode():
        wanted = checkpoint.oracle(torch.tensor([prompt])).logits[0]
    windows = group_windows(tmp_path)
    for model, most in ((reference_model(tmp_path), 1e-4), (native_model(tmp_path), 0.03)):
        (found,) = PagedSequences(model, [prompt], 16, windows=windows).run([[40]])
        assert relative_error(found, wanted) < most
    config = ModelConfig.from_folder(tmp_path, "tiny")
    whole = load(config, WHOLE).layers[1]
    part = load(config, rank_places(ParallelConfig(tensor_parallel_size=2))[1]).layers[1]
    assert torch.equal(part.down.weight, whole.down.weight.chunk(2, 2)[1])
    gates, ups = (half.chunk(2, 1)[1] for half in whole.gate_up.weight.chunk(2, 1))
    assert torch.equal(part.gate_up.weight, torch.cat((gates, ups), 1))


def test_mxfp4_blocks_without_their_scales_are_refused(tmp_path: Path) -> None:
    save_mxfp4(tmp_path)
    tensors = {k: v for path in tmp_path.glob("*.safetensors") for k, v in load_file(path).items()}
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_split(tmp_path, tensors)
    with pytest.raises(CorruptModelError, match="the checkpoint lacks its _scales"):
        load(ModelConfig.from_folder(tmp_path, "tiny"), WHOLE)


def test_a_rank_gets_its_part(tmp_path: Path) -> None:
    folder = FORMATS["gptq, desc_act"](tmp_path).folder
    config = ModelConfig.from_folder(folder, "tiny")
    whole = load(config, WHOLE)
    for rank, place in enumerate(rank_places(ParallelConfig(tensor_parallel_size=2))):
        part = load(config, place)
        for layer, plain in zip(part.layers, whole.layers, strict=True):
            queries = plain.qkv.weight[rank * 64 : rank * 64 + 64]
            assert torch.equal(layer.qkv.weight[:64], queries)
            assert torch.equal(layer.down.weight, plain.down.weight.chunk(2, 1)[rank])


def load(config: ModelConfig, place: RankPlace) -> DecoderWeights:
    return load_weights(config, torch.float32, torch.device("cpu"), lambda *state: None, place)


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> TransformersModel:
    config = ModelConfig.from_folder(folder, "tiny", "transformers")
    model = with_transformers_facts(config, 256)
    return load_transformers_model(
        model,
        create_kernel_set("reference"),
        cache_spec(dataclasses.replace(engine_config(folder), model=model)),
        torch.device("cpu"),
        dtype,
        lambda *state: None,
    )


def test_transformers_code_runs_them_too(tmp_path: Path) -> None:
    checkpoint = save_compressed(
        tmp_path, family="Olmo2", num_bits=4, type="int", strategy="group", group_size=32
    )
    assert engine_config(tmp_path).model.implementation == "transformers"
    texts = continued(checkpoint.oracle)
    found = greedy(transformers_model(tmp_path), texts)
    assert found == [text[-NUM_TOKENS:] for text in texts]


def test_transformers_code_runs_the_text_part_of_one_with_a_tower(tmp_path: Path) -> None:
    plain, small = tmp_path / "plain", tmp_path / "small"
    for folder in (plain, small):
        save_seeing_gemma(folder, head_dim=16, sliding_window=9)
    plain_tensors = load_file(plain / "model.safetensors")
    tensors = dict(plain_tensors)
    for name in [name for name in tensors if name.endswith("mlp.down_proj.weight")]:
        numbers = (tensors[name] * 256).to(torch.float8_e4m3fn)
        tensors |= {name: numbers, f"{name}_scale": torch.tensor([1 / 256])}
        plain_tensors[name] = numbers.float() / 256
    assert len(tensors) > len(plain_tensors)
    save_file(plain_tensors, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, small / "model.safetensors", metadata={"format": "pt"})
    add_to_config(small, {"quant_method": "fp8"})
    logits = [
        PagedSequences(transformers_model(folder, torch.bfloat16), PROMPTS, 16).run([[5, 40]])
        for folder in (plain, small)
    ]
    for found, wanted in zip(*logits, strict=True):
        assert torch.equal(found, wanted)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    folder = FORMATS["awq"](tmp_path).folder
    name = "model.layers.1.self_attn.q_proj.qzeros"
    tensors = {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}
    save_split(folder, {**tensors, name: tensors[name][:, :-1]})
    with pytest.raises(CorruptModelError, match=r"q_proj.weight .*qzeros has the shape"):
        load(ModelConfig.from_folder(folder, "tiny"), WHOLE)
    save_split(folder, {**tensors, name: tensors[name].long()})
    with pytest.raises(CorruptModelError, match=r"qzeros holds torch.int64"):
        load(ModelConfig.from_folder(folder, "tiny"), WHOLE)
    del tensors[name]
    save_split(folder, tensors)
    with pytest.raises(CorruptModelError, match=r"the checkpoint lacks its qzeros"):
        load(ModelConfig.from_folder(folder, "tiny"), WHOLE)


def test_groups_of_another_size_than_the_config_says(tmp_path: Path) -> None:
    folder = FORMATS["w4a16"](tmp_path).folder
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"group_size": 32', '"group_size": 48'))
    with pytest.raises(CorruptModelError, match=r"inputs have factors for \d groups"):
        load(ModelConfig.from_folder(folder, "tiny"), WHOLE)


@pytest.mark.parametrize("bits", range(1, 9))
def test_unpacked_undoes_any_number_of_bits(bits: int) -> None:
    numbers = torch.randint(0, 1 << bits, (3, 77), generator=torch.Generator().manual_seed(bits))
    assert unpacked(words(numbers, bits), bits, 77).tolist() == numbers.tolist()
