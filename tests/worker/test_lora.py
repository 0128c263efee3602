"""Adapters through scheduler and worker: batches of several, the prefix cache, loading, leaving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.args import EngineArgs
from engine.config import LoraConfig
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.errors import ModelError
from engine.lora_adapters import LoraRequest, read_adapter
from engine.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from engine.model_config import ModelConfig
from engine.models.lora import decoder_adapter, read_low_ranks
from engine.rank_layout import WHOLE
from engine.sampling_params import SamplingParams
from engine.worker.lora_slots import reserved_bytes
from tests.kernels.native_models import random_prompts, save_rounded
from tests.models.peft_adapters import save_adapter
from tests.models.tiny_models import save_tiny_model
from tests.worker.greedy import generated

NUM_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


@pytest.fixture(scope="module")
def oracles(folder: Path) -> list[Any]:
    """The base, then peft's models of two adapters in folders of their names."""
    base = save_rounded(folder)
    models = [base, *(save_adapter(base, folder / name, seed=n) for n, name in enumerate("ab"))]
    for model in models:
        model.generation_config.eos_token_id = None
    return models


def start(folder: Path, *names: str, dtype: str = "float32", **flags: Any) -> EngineCore:
    args = EngineArgs(
        dtype=dtype,
        kernels="native" if dtype == "bfloat16" else "reference",
        num_threads=1,
        enable_lora=True,
        lora_modules=tuple(f"{name}={folder / name}" for name in names),
        kv_cache_memory_bytes=1 << 24,
        max_num_seqs=16,
        **flags,
    )
    model = ModelConfig.from_folder(folder, "tiny")
    return EngineCore(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))


def adapter(folder: Path, number: int) -> LoraRequest | None:
    """The base's is None."""
    name = "-ab"[number]
    return LoraRequest(name, number, str(folder / name)) if number else None


def add(
    core: EngineCore,
    name: str,
    prompt: list[int],
    lora: LoraRequest | None,
    salt: str | None = None,
) -> None:
    core.add_request(
        EngineCoreRequest(name, prompt, GREEDY, arrival_time=0.0, lora=lora, cache_salt=salt)
    )


def run(core: EngineCore) -> dict[str, list[EngineCoreOutput]]:
    found: dict[str, list[EngineCoreOutput]] = {}
    while not core.is_idle:
        for output in core.step().outputs:
            found.setdefault(output.request_id, []).append(output)
    return found


def tokens(outputs: list[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def cached(outputs: list[EngineCoreOutput]) -> int:
    (stats,) = [output.prefill_stats for output in outputs if output.prefill_stats]
    return stats.num_cached_tokens


PROMPTS = random_prompts(9, 21, 40, 5, 33, 17)


@pytest.mark.parametrize("max_loras", [1, 2])
def test_all_in_one_batch_equal_peft_one_by_one(
    folder: Path, oracles: list[Any], max_loras: int
) -> None:
    core = start(folder, "a", "b", max_loras=max_loras)
    for number, prompt in enumerate(PROMPTS):
        add(core, str(number), prompt, adapter(folder, number % 3))
    found = run(core)
    core.shutdown()
    for number, prompt in enumerate(PROMPTS):
        wanted = _alone(oracles[number % 3], prompt)
        assert tokens(found[str(number)]) == wanted, number


def _alone(oracle: Any, prompt: list[int]) -> list[int]:
    return generated(oracle, [prompt], NUM_TOKENS)[0]


def test_no_more_adapters_run_at_once_than_may(folder: Path, oracles: list[Any]) -> None:
    core = start(folder, "a", "b", max_loras=1)
    for name, number in (("1", 1), ("2", 2), ("3", 1), ("4", 0)):
        add(core, name, PROMPTS[0], adapter(folder, number))
    core.step()
    assert [request.request_id for request in core.scheduler.running] == ["1", "3", "4"]
    assert set(run(core)) == {"1", "2", "3", "4"}
    core.shutdown()


def test_a_prefix_is_found_again_with_the_same_adapter_alone(
    folder: Path, oracles: list[Any]
) -> None:
    core = start(folder, "a", "b", max_loras=2)
    prompt = PROMPTS[2]
    hits = []
    for number, salt in ((1, None), (2, None), (0, None), (1, None), (1, "s"), (0, "\0lora1\0")):
        add(core, "r", prompt, adapter(folder, number), salt)
        hits.append(cached(run(core)["r"]))
    core.shutdown()
    assert hits == [0, 0, 0, 32, 0, 0]


def test_loading_and_unloading(folder: Path, oracles: list[Any]) -> None:
    core = start(folder)
    late = LoraRequest("a", 1, str(folder / "a"))
    assert core.load_adapter(late) is None
    add(core, "runs", PROMPTS[0], late)
    first = core.step().outputs
    core.unload_adapter(1)
    add(core, "late", PROMPTS[0], late)
    found = run(core)
    assert tokens([*first, *found["runs"]]) == _alone(oracles[1], PROMPTS[0])
    assert [output.finish_reason for output in found["late"]] == [FinishReason.ERROR]
    assert found["late"][0].error == "The LoRA adapter `a` has been unloaded."
    again = LoraRequest("a", 2, str(folder / "b"))
    add(core, "again", PROMPTS[0], again)  # as an engine that was started again gets it
    assert tokens(run(core)["again"]) == _alone(oracles[2], PROMPTS[0])
    worker: Any = core.executor._worker  # type: ignore[attr-defined]
    assert worker._loras._slots == {2: 0}
    core.shutdown()


def test_an_adapter_that_cannot_be_loaded_fails_its_request_alone(
    folder: Path, oracles: list[Any], tmp_path: Path
) -> None:
    core = start(folder, "a")
    add(core, "bad", PROMPTS[0], LoraRequest("x", 7, str(tmp_path / "x")))
    add(core, "good", PROMPTS[0], adapter(folder, 1))
    found = run(core)
    assert "No such adapter folder" in (found["bad"][0].error or "")
    assert len(tokens(found["good"])) == NUM_TOKENS
    core.shutdown()


def test_a_start_ends_with_the_reason(folder: Path, oracles: list[Any]) -> None:
    with pytest.raises(ModelError, match=r"LoRA adapter a: .* has rank 8 .*--max-lora-rank 8"):
        start(folder, "a", max_lora_rank=4)


def test_preempted_requests_keep_their_adapter(folder: Path, oracles: list[Any]) -> None:
    core = start(folder, "a", "b", max_loras=2, num_gpu_blocks_override=8, max_model_len=96)
    names, prompt = [str(number) for number in range(4)], PROMPTS[2][:27]
    for number, name in enumerate(names):
        add(core, name, prompt, adapter(folder, number % 3))
    found = run(core)
    core.shutdown()
    assert any(outputs[-1].num_preemptions for outputs in found.values())
    for number, name in enumerate(names):
        assert tokens(found[name]) == _alone(oracles[number % 3], prompt)


def test_stages_of_processes_load_and_unload_between_steps(
    folder: Path, oracles: list[Any]
) -> None:
    core = start(folder, "a", max_loras=2, pipeline_parallel_size=2)
    late = LoraRequest("b", 2, str(folder / "b"))
    try:
        add(core, "a", PROMPTS[0], adapter(folder, 1))
        add(core, "base", PROMPTS[1], None)
        found = [*core.step().outputs]
        assert core.load_adapter(late) is None  # while steps are under way
        add(core, "b", PROMPTS[2], late)
        found += core.step().outputs
        core.unload_adapter(1)
        found += [output for outputs in run(core).values() for output in outputs]
    finally:
        core.shutdown()
    for number, (name, prompt) in enumerate(zip(("base", "a", "b"), (1, 0, 2), strict=True)):
        own = [output for output in found if output.request_id == name]
        assert tokens(own) == _alone(oracles[number], PROMPTS[prompt])


def test_transformers_code_takes_adapters_too(tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path, "Olmo2")
    oracle = save_adapter(base, tmp_path / "a", seed=3, target_modules=["q_proj", "down_proj"])
    for model in (base, oracle):
        model.generation_config.eos_token_id = None
    core = start(tmp_path, "a")
    add(core, "base", PROMPTS[1], None)
    add(core, "a", PROMPTS[1], adapter(tmp_path, 1))
    found = run(core)
    core.shutdown()
    assert tokens(found["base"]) == _alone(base, PROMPTS[1])
    assert tokens(found["a"]) == _alone(oracle, PROMPTS[1])


@pytest.mark.parametrize("name", ["lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"])
def test_transformers_code_adapts_linears_of_all_tokens_alone(name: str, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path, "Olmoe", num_experts=4, num_experts_per_tok=2)
    outputs, inputs = model.get_submodule(name).weight.shape
    path = tmp_path / "a"
    save_adapter(model, path, seed=3, target_modules=["q_proj"])
    save_file(
        {
            f"base_model.model.{name}.lora_A.weight": torch.ones(8, inputs),
            f"base_model.model.{name}.lora_B.weight": torch.ones(outputs, 8),
        },
        path / "adapter_model.safetensors",
    )
    core = start(tmp_path)
    error = core.load_adapter(LoraRequest("a", 1, str(path)))
    core.shutdown()
    assert error is not None
    assert f"changes {name}, which is no linear" in error


def test_what_is_kept_free_for_adapters_is_what_they_take(folder: Path, oracles: list[Any]) -> None:
    model = ModelConfig.from_folder(folder, "tiny")
    config = LoraConfig(max_loras=1, max_lora_rank=8, max_cpu_loras=1)
    modules = read_adapter(folder / "a", 8)
    found = read_low_ranks(folder / "a", modules, torch.bfloat16, torch.device("cpu"))
    adapter = decoder_adapter(found, model, WHOLE)
    matrices = sum(low_rank.a.nbytes + low_rank.b.nbytes for low_rank in adapter.values())
    assert reserved_bytes(config, model, WHOLE) == config.num_reserved * matrices


def test_experts_take_no_adapters(tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path, "Mixtral", num_local_experts=3)
    for name in ("a", "b"):
        save_adapter(base, tmp_path / name, seed=3, target_modules=["o_proj"])
    linear = "model.layers.0.mlp.experts.0.gate_proj"
    matrices = {"A": torch.ones(8, 64), "B": torch.ones(96, 8)}
    save_file(
        {f"base_model.model.{linear}.lora_{side}.weight": m for side, m in matrices.items()},
        tmp_path / "b" / "adapter_model.safetensors",
    )
    core = start(tmp_path, "a")
    error = core.load_adapter(LoraRequest("b", 2, str(tmp_path / "b")))
    add(core, "a", PROMPTS[1], adapter(tmp_path, 1))
    found = run(core)
    core.shutdown()
    assert len(tokens(found["a"])) > 1
    assert error is not None
    assert "experts.0.gate_proj, which MixtralForCausalLM here cannot have adapted" in error


@pytest.mark.parametrize("level", [1, 2])
def test_adapters_are_there_after_a_sleep(folder: Path, oracles: list[Any], level: int) -> None:
    core = start(folder, "a", max_loras=2)
    assert core.load_adapter(LoraRequest("b", 2, str(folder / "b"))) is None
    core.prepare_sleep("abort")
    core.fall_asleep(level)
    assert "sleeps" in str(core.load_adapter(LoraRequest("c", 3, str(folder / "b"))))
    core.unload_adapter(2)  # asleep, it only takes a note of that
    core.wake_up()
    add(core, "own", PROMPTS[0], adapter(folder, 1))
    add(core, "gone", PROMPTS[0], adapter(folder, 2))
    found = run(core)
    core.shutdown()
    assert tokens(found["own"]) == _alone(oracles[1], PROMPTS[0])
    assert found["gone"][-1].finish_reason is FinishReason.ERROR
