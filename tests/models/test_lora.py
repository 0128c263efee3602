"""LoRA adapters in the kernel sets against peft, each row with its own adapter or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels.low_rank import AdaptedStep
from engine.lora_adapters import read_adapter, require_fitting
from engine.model_config import ModelConfig
from engine.models.lora import decoder_adapter, read_low_ranks
from engine.rank_layout import WHOLE
from tests.kernels.native_models import (
    GEMMA3,
    MIXTRAL,
    group_windows,
    native_model,
    random_prompts,
    reference_model,
    relative_error,
    save_rounded,
)
from tests.kernels.paged_sequences import PagedSequences, in_chunks
from tests.models.peft_adapters import save_adapter

PROMPTS = random_prompts(7, 33, 20, 1, 48)
SLOTS = [0, 1, -1, 1, 0]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"family": "Llama"},
    "llama with biases": {"family": "Llama", "attention_bias": True, "mlp_bias": True},
    "odd sizes": {
        "family": "Llama",
        "hidden_size": 77,
        "intermediate_size": 101,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
    },
    "gemma 3": GEMMA3,
}
ADAPTERS: list[dict[str, Any]] = [
    {"r": 8},
    {"r": 5, "lora_alpha": 7, "use_rslora": True, "target_modules": ["v_proj", "down_proj"]},
]

pytestmark = pytest.mark.usefixtures("one_thread")


class Adapted:
    """A model with two adapters on disk, and what peft says alone with each or none."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.base = save_rounded(folder, **settings)
        self.folders = [folder / name for name in ("first", "second")]
        self.oracles = [
            save_adapter(self.base, where, seed=seed, **adapter)
            for seed, (where, adapter) in enumerate(zip(self.folders, ADAPTERS, strict=True))
        ]
        self.config = ModelConfig.from_folder(folder, "tiny")

    def load_into(self, model: AdaptedStep, dtype: torch.dtype) -> None:
        for slot, where in enumerate(self.folders):
            found = read_low_ranks(where, read_adapter(where, 16), dtype, torch.device("cpu"))
            model.load_adapter(slot, decoder_adapter(found, self.config, WHOLE))

    def wanted(self) -> list[Tensor]:
        with torch.inference_mode():
            return [
                (self.base if slot < 0 else self.oracles[slot])(torch.tensor([prompt])).logits[0]
                for prompt, slot in zip(PROMPTS, SLOTS, strict=True)
            ]

    def run(self, model: AdaptedStep, steps: list[list[int]]) -> list[Tensor]:
        windows = group_windows(self.folder)
        return PagedSequences(model, PROMPTS, 16, windows=windows, adapters=SLOTS).run(steps)


@pytest.fixture(scope="module", params=FAMILIES)
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapted"), FAMILIES[request.param])


STEPS = in_chunks(PROMPTS, 17)


def test_two_adapters_and_the_base_in_one_batch_equal_peft(adapted: Adapted) -> None:
    model: Any = reference_model(adapted.folder)
    adapted.load_into(model, torch.float32)
    for found, wanted in zip(adapted.run(model, STEPS), adapted.wanted(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_the_native_kernels_too(adapted: Adapted, quantization: str) -> None:
    model: Any = native_model(adapted.folder, quantization=quantization)
    adapted.load_into(model, torch.bfloat16)
    for found, wanted in zip(adapted.run(model, STEPS), adapted.wanted(), strict=True):
        assert relative_error(found, wanted) < (0.03 if quantization == "none" else 0.12)
    plain = PagedSequences(model, PROMPTS, 16, windows=group_windows(adapted.folder)).run(STEPS)
    assert torch.equal(plain[2], adapted.run(model, STEPS)[2])  # the row of the base, to the bit
    adapted.load_into(model, torch.bfloat16)  # in the place of the old ones
    assert torch.equal(adapted.run(model, STEPS)[1], found_again(adapted, model))


def found_again(adapted: Adapted, model: AdaptedStep) -> Tensor:
    return adapted.run(model, in_chunks(PROMPTS, 5))[1]


def test_a_slot_without_an_adapter_is_refused(adapted: Adapted) -> None:
    model: Any = native_model(adapted.folder)
    adapted.load_into(model, torch.bfloat16)
    model.remove_adapter(1)
    with pytest.raises(IndexError, match="adapter in a slot that is empty"):
        adapted.run(model, STEPS)


def test_attention_beside_experts_takes_adapters(tmp_path: Path) -> None:
    linears = ["q_proj", "k_proj", "v_proj", "o_proj"]
    base = save_rounded(tmp_path, **MIXTRAL)
    oracle = save_adapter(base, tmp_path / "first", seed=3, target_modules=linears)
    model: Any = native_model(tmp_path)
    config = ModelConfig.from_folder(tmp_path, "tiny")
    modules = read_adapter(tmp_path / "first", 8)
    require_fitting(modules, config, tmp_path)
    found = read_low_ranks(tmp_path / "first", modules, torch.bfloat16, torch.device("cpu"))
    model.load_adapter(0, decoder_adapter(found, config, WHOLE))
    sequences = PagedSequences(model, PROMPTS[1:3], 16, adapters=[0, -1])
    for rows, prompt, alone in zip(
        sequences.run([[33, 20]]), PROMPTS[1:3], (oracle, base), strict=True
    ):
        with torch.inference_mode():
            wanted = alone(torch.tensor([prompt])).logits[0]
        errors = (rows - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        assert errors.median() < 0.03  # of a tie between experts bf16 may take the other one
