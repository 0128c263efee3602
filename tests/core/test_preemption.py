"""The default model under a cache far too small for its load: not one token is different.

On the native kernels, for the sake of time; test_engine_core.py has tiny models on all.
"""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from engine.core.engine_core import EngineCore
from tests.core.conftest import engine_config
from tests.core.core_runs import assert_same_texts, request, run
from tests.default_model import default_model_folder
from tests.worker.kernel_choices import NATIVE, NATIVE_INT8, KernelChoice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = (
    *("a lighthouse", "a river", "a robot", "a garden", "a teacher", "a storm", "a market"),
    *("a violin", "the desert", "a train", "an island", "a mirror", "a clock", "the forest"),
    *("a baker", "a comet"),
)
NUM_TOKENS = 100


@pytest.mark.parametrize("choice", [NATIVE, NATIVE_INT8], indirect=True, ids=str)
def test_sixteen_long_requests_get_the_same_text_from_a_tiny_cache(choice: KernelChoice) -> None:
    folder = default_model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    requests = [
        request(
            topic,
            tokenizer.encode(
                f"<|im_start|>user\nTell a long story about {topic}.<|im_end|>\n"
                "<|im_start|>assistant\n"
            ).ids,
            NUM_TOKENS,
        )
        for topic in TOPICS
    ]
    flags = {"max_model_len": 256, "kv_cache_memory_bytes": 1 << 30, **choice.flags}
    roomy, tight = (
        EngineCore(engine_config(folder, num_gpu_blocks_override=count, **flags))
        for count in (500, 40)
    )
    wanted, found = run(roomy, requests), run(tight, requests)
    assert wanted.num_preemptions == 0
    assert found.num_preemptions >= 8
    assert_same_texts(choice, found.texts, wanted.texts, requests, roomy)
    assert all(len(tokens) == NUM_TOKENS for tokens in wanted.texts.values())
