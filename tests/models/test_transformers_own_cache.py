"""Decoders with a state, or whose attention cannot be replaced, over transformers' own cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.errors import ConfigError
from engine.messages import EngineCoreRequest
from engine.model_config import ModelConfig
from engine.models.transformers_own_cache import OwnCacheModel, difference_in_parts
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams
from engine.worker.worker import Worker
from tests.models.families_table import save_family

PROMPT = [(7 * i * i + i) % 120 + 3 for i in range(30)]

pytestmark = pytest.mark.usefixtures("one_thread")


def start(folder: Path, **flags: Any) -> EngineCore:
    args = EngineArgs(
        **{
            "dtype": "float32",
            "kv_cache_memory_bytes": 1 << 22,
            "max_model_len": 96,
            "num_threads": 1,
            **flags,
        }
    )
    model = ModelConfig.from_folder(folder, "tiny")
    return EngineCore(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))


def model_of(core: EngineCore) -> OwnCacheModel:
    worker = core.executor._require_worker()  # type: ignore[attr-defined]
    assert isinstance(worker, Worker)
    assert isinstance(worker._model, OwnCacheModel)
    return worker._model


def test_what_requests_keep_is_let_go_of_when_they_end(tmp_path: Path) -> None:
    save_family("jamba", tmp_path)
    core = start(tmp_path)
    kept = model_of(core)._caches
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    for number in range(3):
        core.add_request(EngineCoreRequest(str(number), PROMPT[number:], params, 0.0))
    core.step()
    assert len(kept) == 3
    assert core.abort_requests(["1"]) == 1
    core.step()
    assert len(kept) == 2
    while not core.is_idle:
        core.step()
    core.add_request(EngineCoreRequest("last", PROMPT, params, 0.0))
    core.step()
    assert len(kept) == 1
    core.shutdown()


def test_blocks_count_what_transformers_keeps(tmp_path: Path) -> None:
    oracle = save_family("jamba", tmp_path)
    core = start(tmp_path)
    with torch.inference_mode():
        output = oracle(input_ids=torch.tensor([PROMPT]), use_cache=True)
    cache = getattr(output, "cache", None) or output.past_key_values
    keys = [layer.keys for layer in cache.layers if getattr(layer, "keys", None) is not None]
    values = [layer.values for layer in cache.layers if getattr(layer, "keys", None) is not None]
    per_token = sum(t.nbytes for t in keys + values) // len(PROMPT)
    assert core.spec.bytes_per_block == 16 * per_token
    assert model_of(core).measure().state > 0
    assert not core.config.cache.enable_prefix_caching
    core.shutdown()


def test_pure_states_have_blocks_that_cost_next_to_nothing(tmp_path: Path) -> None:
    save_family("mamba2", tmp_path)
    core = start(tmp_path)
    kept = model_of(core).measure()
    assert (kept.per_token, kept.state > 0) == (0, True)
    assert core.spec.bytes_per_block == 16 * 2 * 4
    core.shutdown()


def test_vectors_of_a_model_with_states(tmp_path: Path) -> None:
    oracle = save_family("lfm2_moe", tmp_path)
    core = start(tmp_path, max_num_batched_tokens=16)
    pooling = PoolingParams(pooling_type="MEAN")
    core.add_request(EngineCoreRequest("v", PROMPT, SamplingParams(), 0.0, pooling=pooling))
    found = b""
    while not core.is_idle:
        for output in core.step().outputs:
            found = output.pooling_output or b""
    with torch.inference_mode():
        hidden = oracle.model(torch.tensor([PROMPT])).last_hidden_state[0].double().mean(0)
    wanted = (hidden / hidden.norm()).numpy()
    np.testing.assert_allclose(np.frombuffer(found, "<f4"), wanted, atol=1e-5)
    core.shutdown()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("kv_cache_dtype", "fp8"),
        ("speculative_config", '{"method": "ngram", "num_speculative_tokens": 2}'),
        ("enable_lora", True),
    ],
)
def test_flags_for_a_cache_of_ours_are_refused(
    flag: str, value: str | bool, tmp_path: Path
) -> None:
    save_family("bloom", tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be had: BloomForCausalLM keeps.*Leave it out"):
        start(tmp_path, **{flag: value})


class Forgetful(OwnCacheModel):
    """Begins anew with every part."""

    def _run(self, part: Any, row: int, tokens: torch.Tensor, **asked: Any) -> Any:
        self.forget(np.array([row]))
        return super()._run(part, row, tokens, **asked)


def test_a_model_that_comes_out_otherwise_in_parts_is_found_out(tmp_path: Path) -> None:
    model = save_family("jamba", tmp_path)
    assert difference_in_parts(OwnCacheModel("Jamba", model, reads_one_by_one=True), model) == ""
    reason = difference_in_parts(Forgetful("Jamba", model), model)
    assert re.search(r"in parts differ by \d.* from those in one piece", reason)
