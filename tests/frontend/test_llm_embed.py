"""LLM.embed on a tiny model: every process real."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from engine.errors import RequestError
from engine.frontend.llm import LLM
from engine.frontend.offline_inputs import Prompt
from engine.sampling_params import SamplingParams
from tests.tiny_model import write_tiny_llama

pytestmark = pytest.mark.timeout(120)


def test_vectors_of_texts_and_token_ids_beside_generation(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    options = {"dtype": "float32", "kv_cache_memory_bytes": "8M", "max_model_len": 64}
    with LLM(str(folder), pooler_config='{"pooling_type": "MEAN"}', **options) as llm:
        (text,), (ids,) = llm.embed("ab"), llm.embed([1, 2, 3])
        mixed: list[Prompt] = ["ab", {"prompt_token_ids": [1, 2, 3]}]
        both = llm.embed(mixed)
        (short,) = llm.embed("ab", dimensions=8)
        assert len(llm.generate("ab", SamplingParams(max_tokens=3))) == 1
        for wrong, words in (("", "prompt 0 is empty"), ([1] * 65, "maximum context length is 64")):
            with pytest.raises(RequestError, match=words):
                llm.embed(wrong)
        with pytest.raises(RequestError, match=r"dimensions must be in \[1, 32\]"):
            llm.embed("ab", dimensions=33)
    assert ids.prompt_token_ids == [1, 2, 3]
    assert [found.prompt_token_ids for found in both] == [text.prompt_token_ids, [1, 2, 3]]
    assert [len(found.outputs.embedding) for found in (text, ids, short)] == [32, 32, 8]
    norm = math.hypot(*text.outputs.embedding[:8])
    cut = [value / norm for value in text.outputs.embedding[:8]]
    assert short.outputs.embedding == pytest.approx(cut, abs=1e-6)
    for found in (text, ids, short):
        assert math.hypot(*found.outputs.embedding) == pytest.approx(1, abs=1e-6)
