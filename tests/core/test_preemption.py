"""The default model under a cache far too small for its load: not one token is different."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
from tokenizers import Tokenizer

from engine.core.engine_core import EngineCore
from engine.env import cpu_flags
from tests.core.test_engine_core import request
from tests.default_model import default_model_folder
from tests.worker.driver import engine_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = (
    *("a lighthouse", "a river", "a robot", "a garden", "a teacher", "a storm", "a market"),
    *("a violin", "the desert", "a train", "an island", "a mirror", "a clock", "the forest"),
    *("a baker", "a comet"),
)
NUM_TOKENS = 100


def test_sixteen_long_requests_get_the_same_text_from_a_tiny_cache() -> None:
    folder = default_model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [
        tokenizer.encode(
            f"<|im_start|>user\nTell a long story about {topic}.<|im_end|>\n<|im_start|>assistant\n"
        ).ids
        for topic in TOPICS
    ]
    # bfloat16 where the native kernels run it: their result does not depend on the batch.
    is_native = "avx512_bf16" in cpu_flags() and shutil.which("g++") is not None
    dtype = "bfloat16" if is_native else "float32"
    config = engine_config(folder, dtype=dtype, max_model_len=256)
    texts, preemptions = [], []
    for num_blocks in (500, 40):
        cache = dataclasses.replace(config.cache, num_gpu_blocks_override=num_blocks)
        core = EngineCore(dataclasses.replace(config, cache=cache))
        found: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        count = 0
        for topic, prompt in zip(TOPICS, prompts, strict=True):
            core.add_request(request(topic, prompt, NUM_TOKENS))
        while not core.is_idle:
            message = core.step()
            assert message.scheduler_stats is not None
            count += message.scheduler_stats.num_preemptions_delta
            for output in message.outputs:
                found[output.request_id] += output.new_token_ids
        core.shutdown()
        texts.append(found)
        preemptions.append(count)
    assert preemptions[0] == 0
    assert preemptions[1] >= 8
    assert texts[1] == texts[0]
    assert all(len(tokens) == NUM_TOKENS for tokens in texts[0].values())
