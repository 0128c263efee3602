"""SmolLM2 (9 heads, 3 KV heads) on three ranks: the greedy tokens of one process."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.messages import EngineCoreRequest
from engine.model_config import ModelConfig
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from tests.core.core_runs import Answer, answers_of, request
from tests.default_model import default_model_folder
from tests.worker.greedy import real_prompts

pytestmark = pytest.mark.slow

_DATE = StructuredOutputsParams(regex="[0-9]{2}-[a-z]{3}")


def test_three_ranks_give_the_tokens_of_one_process() -> None:
    """In float32; chunked prompts beside decodes, log probabilities, and a grammar."""
    folder = default_model_folder()
    model = ModelConfig.from_folder(folder, folder.name)
    prompts = [prompt for prompt in real_prompts(folder) if len(prompt) < 40][:2]
    asked = [
        *(request(f"prompt {number}", prompt, 3) for number, prompt in enumerate(prompts)),
        with_params("logprobs", prompts[0], SamplingParams(max_tokens=2, logprobs=3, seed=1)),
        with_params("grammar", prompts[1], SamplingParams(temperature=0.0, max_tokens=7,
                                                          structured_outputs=_DATE)),
    ]  # fmt: skip
    found = []
    for ranks in (1, 3):
        args = EngineArgs(
            dtype="float32",
            kernels="reference",
            max_model_len=256,
            max_num_batched_tokens=32,
            kv_cache_memory_bytes=64 << 20,
            tensor_parallel_size=ranks,
        )
        core = EngineCore(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))
        try:
            found.append(answers_of(core, asked))
        finally:
            core.shutdown()
    alone, split = found
    for name, answer in alone.items():
        assert split[name].tokens == answer.tokens, name
    assert scores(split["logprobs"]) == pytest.approx(scores(alone["logprobs"]), abs=1e-3)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = tokenizer.decode(split["grammar"].tokens)
    assert len(text) == 6, text
    assert text[:2].isdigit()
    assert text[2] == "-"


def with_params(name: str, prompt: list[int], params: SamplingParams) -> EngineCoreRequest:
    return EngineCoreRequest(name, prompt, params, arrival_time=0.0)


def scores(answer: Answer) -> list[float]:
    return [score for entry in answer.logprobs for score in entry.logprobs]
