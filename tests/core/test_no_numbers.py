"""Logits that are NaN end the request that has them, or the start; nobody else notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.core.engine_core import EngineCore
from engine.errors import CorruptModelError
from engine.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from tests.core.conftest import engine_config
from tests.tiny_model import write_tiny_llama
from tests.worker.kernel_choices import CHOICES, KernelChoice

# Rounding to integers hides what was no number, so the logits of the others are some.
pytestmark = pytest.mark.parametrize(
    "choice",
    [entry for entry in CHOICES if entry.kernels != "native" or entry.quantization == "none"],
    indirect=True,
    ids=str,
)

POISON = 7
GOOD, BAD = [5, 6, 8, 9] * 5, [5, 6, 8, POISON] * 5


def spoiled(folder: Path, name: str, row: int | None = None) -> Path:
    """A model in which a weight, or one row of it, is NaN."""
    write_tiny_llama(folder, hidden_size=128, tie_word_embeddings=False)
    weights = load_file(folder / "model.safetensors")
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"].copy())
    weights[name][slice(None) if row is None else row] = np.nan
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token makes everything behind it NaN."""
    return spoiled(tmp_path_factory.mktemp("poison"), "model.embed_tokens.weight", POISON)


@pytest.fixture
def core(folder: Path, choice: KernelChoice) -> Iterator[EngineCore]:
    made = EngineCore(engine_config(folder, max_model_len=128, **choice.flags))
    yield made
    made.shutdown()


def add(core: EngineCore, name: str, prompt: list[int], **fields: Any) -> None:
    pooling = fields.pop("pooling", None)
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 6, **fields})
    core.add_request(EngineCoreRequest(name, prompt, params, 0.0, pooling=pooling))


def run(core: EngineCore) -> dict[str, list[EngineCoreOutput]]:
    outputs: dict[str, list[EngineCoreOutput]] = {}
    while not core.is_idle:
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def tokens(outputs: list[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 1.0, "seed": 3, "top_k": 5, "top_p": 0.5, "min_p": 0.1},
        {"logprobs": 2, "prompt_logprobs": 2},
        {"repetition_penalty": 1.2, "logit_bias": ((4, 1.0),)},
        {"structured_outputs": StructuredOutputsParams(regex="[a-z]+")},
    ],
    ids=lambda fields: "-".join(fields) or "greedy",
)
def test_only_the_request_without_numbers_ends(core: EngineCore, fields: dict[str, Any]) -> None:
    add(core, "alone", GOOD, **fields)
    expected = tokens(run(core)["alone"])
    core.reset_prefix_cache()
    for name, prompt in (("bad", BAD), ("good", GOOD), ("bad too", BAD)):
        add(core, name, prompt, **fields)
    outputs = run(core)
    assert tokens(outputs["good"]) == expected
    assert outputs["good"][-1].finish_reason is not FinishReason.ERROR
    for name in ("bad", "bad too"):
        (output,) = outputs[name]
        assert (output.finish_reason, output.new_token_ids) == (FinishReason.ERROR, [])
        assert output.error is not None
        assert "NaN" in output.error
    # Of the poisoned prompts nothing is left to be found.
    pool = core.scheduler.kv_cache_manager.block_pool
    assert pool.num_cached_blocks <= len(GOOD + expected) // 16


def test_a_vector_without_numbers_is_an_error(core: EngineCore) -> None:
    add(core, "bad", BAD, pooling=PoolingParams())
    add(core, "good", GOOD, pooling=PoolingParams())
    outputs = run(core)
    assert outputs["bad"][0].finish_reason is FinishReason.ERROR
    assert outputs["bad"][0].pooling_output is None
    assert outputs["good"][0].pooling_output


def test_a_model_that_has_no_numbers_does_not_start(tmp_path: Path, choice: KernelChoice) -> None:
    folder = spoiled(tmp_path, "model.norm.weight")
    with pytest.raises(CorruptModelError, match="NaN"):
        EngineCore(engine_config(folder, max_model_len=128, **choice.flags))
