"""SmolLM2 (9 heads, 3 KV heads) on three ranks: the greedy tokens of one process."""

from __future__ import annotations

import pytest

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.model_config import ModelConfig
from tests.default_model import default_model_folder
from tests.worker.greedy import engine_tokens, real_prompts

pytestmark = pytest.mark.slow


def test_three_ranks_give_the_tokens_of_one_process() -> None:
    """In float32; chunked prompts beside decodes."""
    folder = default_model_folder()
    model = ModelConfig.from_folder(folder, folder.name)
    prompts = [prompt for prompt in real_prompts(folder) if len(prompt) < 40][:2]
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
            found.append(engine_tokens(core, prompts, 3))
        finally:
            core.shutdown()
    assert found[1] == found[0]
