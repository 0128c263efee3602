"""What `stoker plan` advises holds: each printed change and command is planned again and fits."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from app.errors import StokerError, UsageError
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.planning.builtin_shapes import BUILTIN_SHAPES
from app.planning.gpu_catalogue import known_gpus
from app.planning.lora_weights import LoraSlots
from app.planning.plan import MemoryPlan, kv_room, make_plan, process_bytes
from app.planning.plan_answers import Answers, answer
from app.planning.plan_fixes import quantised_forms
from app.planning.plan_models import PlannedModel, find_planned_model
from app.planning.plan_request import PlanRequest
from engine.args import EngineArgs
from engine.config import CPU_QUANTIZATIONS, GPU_QUANTIZATIONS
from engine.env import HostDevice
from engine.machine.sizes import GIB
from engine.model_config import ModelConfig
from engine.model_store.catalogue import find_builtin
from engine.speculative_config import parse_speculative_config

_MODELS = {name: find_planned_model(name) for name in BUILTIN_SHAPES}
_NAMES = {model.command_name: name for name, model in _MODELS.items()}
_GPUS = tuple(known_gpus())

_VLLM_FLAGS = {
    "--max-model-len": ("max_model_len", int),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--kv-cache-memory-bytes": ("kv_memory_bytes", int),
    "--max-num-seqs": ("max_num_seqs", int),
    "--max-num-batched-tokens": ("max_num_batched_tokens", int),
    "--block-size": ("block_size", int),
    "--tensor-parallel-size": ("tensor_parallel_size", int),
    "--pipeline-parallel-size": ("pipeline_parallel_size", int),
    "--data-parallel-size": ("data_parallel_size", int),
    "--quantization": ("quantization", str),
}


@st.composite
def starts(draw: st.DrawFn) -> tuple[PlannedModel, PlanRequest]:
    """A model and flags, most of which can go together."""
    model = _MODELS[draw(st.sampled_from(sorted(_MODELS)))]
    gpu = draw(st.sampled_from((None, *_GPUS)))
    engine = STOKER if gpu is None else draw(st.sampled_from((VLLM, VLLM, STOKER)))
    formats = {VLLM: ("fp8",), STOKER: CPU_QUANTIZATIONS if gpu is None else GPU_QUANTIZATIONS}[
        engine
    ]
    is_plain = model.shape.quantization is None
    is_vllm = engine == VLLM
    tokens = draw(st.none() | st.integers(1, 40_000))
    return model, PlanRequest(
        gpu=gpu,
        engine=engine,
        free_ram_bytes=draw(st.integers(GIB // 4, 512 * GIB)),
        tensor_parallel_size=draw(st.sampled_from((1, 1, 2, 4, 8))) if is_vllm else 1,
        pipeline_parallel_size=draw(st.sampled_from((1, 1, 1, 2, 3))) if is_vllm else 1,
        max_model_len=draw(
            st.none() | st.just(-1) | st.integers(1, min(40_000, model.shape.max_model_len))
        ),
        kv_cache_dtype=draw(st.sampled_from(("auto", "auto", "fp8"))),
        quantization=draw(st.sampled_from((None, None, *(formats if is_plain else ())))),
        gpu_memory_utilization=draw(st.sampled_from((0.92, 0.9, 0.3, 0.97))),
        max_num_seqs=draw(st.none() | st.integers(1, min(2000, tokens or 2000))),
        max_num_batched_tokens=tokens,
        block_size=draw(st.sampled_from((None, None, 16, 32, 64))),
        enforce_eager=draw(st.booleans()),
        kv_memory_bytes=draw(st.none() | st.none() | st.integers(1, 200 * GIB)),
        lora=draw(st.none() | st.builds(LoraSlots, st.integers(1, 8), st.sampled_from((8, 64)))),
        vllm_version=draw(st.sampled_from((None, None, (0, 11, 0), (0, 19, 0), (0, 30, 0)))),
    )


@settings(max_examples=300, deadline=None)
@given(start=starts())
def test_everything_that_is_advised_fits_and_keeps_the_users_flags(
    start: tuple[PlannedModel, PlanRequest],
) -> None:
    model, request = start
    try:
        plan = make_plan(model.shape, model.weights, request)
    except StokerError:  # flags that cannot work with this model, refused by name
        reject()
    answers = answer(plan, model, (2048,))

    _check_advice(plan, model, answers)
    _check_commands(plan, model, answers)


def _check_advice(plan: MemoryPlan, model: PlannedModel, answers: Answers) -> None:
    if plan.shortfall is None:
        assert answers.advice == ()
        return
    assert answers.advice
    for advice in answers.advice:
        if not advice.startswith(("--", "no --")):
            assert len(answers.advice) == 1  # words for where no flag helps
            continue
        changed = dataclasses.replace(plan.request, **_changes(advice))
        assert make_plan(model.shape, model.weights, changed).shortfall is None, advice


def _changes(flags: str) -> dict[str, Any]:
    if flags == "no --kv-cache-memory-bytes":
        return {"kv_memory_bytes": None}
    words = flags.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return {_VLLM_FLAGS[flag][0]: _VLLM_FLAGS[flag][1](value) for flag, value in pairs}


def _check_commands(plan: MemoryPlan, model: PlannedModel, answers: Answers) -> None:
    for start in answers.commands:
        if start.command is None:
            assert start.note
            continue
        words = shlex.split(start.command)
        again = {VLLM: _vllm_plan, STOKER: _own_plan, LLAMA_CPP: _llama_plan}[start.engine]
        assert again(words, plan, model).shortfall is None, start.command
        if start.engine != LLAMA_CPP:
            _check_flags_kept(words, plan.request, start.engine)


def _vllm_plan(words: list[str], plan: MemoryPlan, model: PlannedModel) -> MemoryPlan:
    """As who pastes it would start it: nothing but what the command says, on the same GPU."""
    assert words[:2] == ["vllm", "serve"]
    assert _MODELS[_NAMES[words[2]]] is model
    parser = argparse.ArgumentParser()
    for flag, (field, kind) in _VLLM_FLAGS.items():
        parser.add_argument(flag, dest=field, type=kind, default=argparse.SUPPRESS)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-loras", type=int, default=1)
    parser.add_argument("--max-lora-rank", type=int, default=16)
    found = vars(parser.parse_args(words[3:]))
    slots = LoraSlots(found.pop("max_loras"), found.pop("max_lora_rank"))
    has_lora = found.pop("enable_lora")
    version = plan.request.vllm_version
    if version == (0, 11, 0):
        found.setdefault("gpu_memory_utilization", 0.90)
    request = PlanRequest(
        gpu=plan.request.gpu, vllm_version=version, lora=slots if has_lora else None, **found
    )
    return make_plan(model.shape, model.weights, request)


def _own_plan(words: list[str], plan: MemoryPlan, model: PlannedModel) -> MemoryPlan:
    assert words[:2] == ["stoker", "serve"]
    assert find_builtin(words[2]) is not None or words[2] == model.command_name
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    args = EngineArgs.from_cli(parser.parse_args(words[3:]))
    _require_served(model, plan, args)
    request = PlanRequest(
        gpu=plan.request.gpu,
        engine=STOKER,
        free_ram_bytes=plan.request.free_ram_bytes,
        tensor_parallel_size=args.tensor_parallel_size,
        pipeline_parallel_size=args.pipeline_parallel_size,
        data_parallel_size=args.data_parallel_size,
        max_model_len=args.max_model_len,
        kv_cache_dtype=args.kv_cache_dtype,
        quantization=None if args.quantization == "none" else args.quantization,
        gpu_memory_utilization=args.gpu_memory_utilization,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        block_size=args.block_size,
        enforce_eager=args.enforce_eager,
        kv_memory_bytes=args.kv_cache_memory_bytes,
        lora=LoraSlots(args.max_loras, args.max_lora_rank) if args.enable_lora else None,
    )
    return make_plan(model.shape, model.weights, request)


def _require_served(model: PlannedModel, plan: MemoryPlan, args: EngineArgs) -> None:
    """As the engine checks model and flags when it starts."""
    gpu = plan.request.gpu
    host = HostDevice("cpu", "cpu", None)
    if gpu is not None:
        assert gpu.platform == "cuda"
        host = HostDevice("cuda", gpu.name, gpu.memory_bytes)
    raw = dict(BUILTIN_SHAPES[_NAMES[model.command_name]].config)
    config = ModelConfig.from_raw(raw, {}, Path(), "name")
    args.create_engine_config(config, host)


def _llama_plan(words: list[str], plan: MemoryPlan, model: PlannedModel) -> MemoryPlan:
    from app.planning.start_commands import _as_gguf

    assert words[:2] == ["llama-server", "--model"]
    assert ("--n-gpu-layers" in words) is (plan.request.gpu is not None)
    length = int(words[words.index("--ctx-size") + 1])
    request = PlanRequest(
        gpu=plan.request.gpu,
        engine=LLAMA_CPP,
        free_ram_bytes=plan.request.free_ram_bytes,
        max_model_len=length,
    )
    return make_plan(model.shape, _as_gguf(model).weights, request)


def _check_flags_kept(words: list[str], request: PlanRequest, engine: str) -> None:
    """All but what a change replaced; the one change is the first advice."""
    wanted = {
        "--max-num-batched-tokens": request.max_num_batched_tokens,
        "--block-size": request.block_size,
    }
    for flag, value in wanted.items():
        if value is not None:
            assert words[words.index(flag) + 1] == str(value)
    assert ("--enforce-eager" in words) is request.enforce_eager
    if request.max_num_seqs is not None:
        assert "--max-num-seqs" in words
    if engine == VLLM and request.lora is not None:
        assert "--enable-lora" in words
    if request.quantization is not None:
        assert words[words.index("--quantization") + 1] == request.quantization


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_a_cache_larger_than_the_device_is_no_matter_of_length(device: str) -> None:
    model = _MODELS["llama-3.1-8b"]
    gpu = next(gpu for gpu in _GPUS if gpu.name == "rtx4090") if device == "gpu" else None
    request = PlanRequest(
        gpu=gpu,
        engine=VLLM if gpu else STOKER,
        free_ram_bytes=64 * GIB,
        kv_memory_bytes=900 * GIB,
        max_model_len=4096,
    )
    plan = make_plan(model.shape, model.weights, request)
    answers = answer(plan, model, ())

    assert plan.shortfall is not None
    assert "--kv-cache-memory-bytes asks for 900.0 GiB" in plan.shortfall
    assert answers.advice[0].startswith("--kv-cache-memory-bytes ")
    assert not any("--max-model-len" in advice for advice in answers.advice)
    assert answers.longest_model_len == 0


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("lfm2-1.2b", {"kv_cache_dtype": "fp8"}, "--kv-cache-dtype cannot be had"),
        ("lfm2-1.2b", {"num_speculative_tokens": 4}, "cannot be wound back"),
        ("phi-4", {"quantization": "int8"}, "--quantization cannot be had"),
        ("phi-4", {"tensor_parallel_size": 2}, "splits only what its own code runs"),
        (
            "llama-3.1-8b",
            {"num_speculative_tokens": 4, "tensor_parallel_size": 2},
            "on one rank only",
        ),
        ("embeddinggemma-300m", {"max_num_batched_tokens": 512}, "in one step"),
        ("embeddinggemma-300m", {"lora": LoraSlots(1, 8)}, "the model is an encoder"),
    ],
)
def test_what_our_engine_refuses_is_no_plan_that_fits(
    name: str, changes: dict[str, Any], words: str
) -> None:
    model = _MODELS[name]
    request = PlanRequest(gpu=None, engine=STOKER, free_ram_bytes=512 * GIB, max_model_len=1024)
    assert make_plan(model.shape, model.weights, request).shortfall is None

    with pytest.raises(UsageError, match=words):
        make_plan(model.shape, model.weights, dataclasses.replace(request, **changes))


def test_no_change_is_advised_that_our_engine_refuses_for_the_model() -> None:
    for name, formats in (("lfm2-1.2b", set()), ("phi-4", {"--kv-cache-dtype fp8"})):
        model = _MODELS[name]
        request = PlanRequest(gpu=None, engine=STOKER, free_ram_bytes=GIB)
        plan = make_plan(model.shape, model.weights, request)

        assert {flags for flags, _ in quantised_forms(plan)} == formats


@pytest.mark.parametrize(("asked", "number"), [(4, 4), (64, 32)])
def test_guessed_tokens_are_part_of_our_engines_command(asked: int, number: int) -> None:
    model = _MODELS["llama-3.1-8b"]
    gpu = next(gpu for gpu in _GPUS if gpu.name == "h100")
    request = PlanRequest(gpu=gpu, engine=STOKER, num_speculative_tokens=asked)
    plan = make_plan(model.shape, model.weights, request)
    command = next(c for c in answer(plan, model, ()).commands if c.engine == STOKER).command

    assert command is not None
    words = shlex.split(command)
    found = parse_speculative_config(words[words.index("--speculative-config") + 1])
    assert found is not None
    assert found.num_speculative_tokens == number
    assert _own_plan(words, plan, model).shortfall is None


@pytest.mark.parametrize(("budget", "sees"), [(255, False), (256, True)])
def test_a_step_without_room_for_an_image_is_started_for_text_alone(
    budget: int, sees: bool
) -> None:
    model = _MODELS["gemma-3-4b"]
    gpu = next(gpu for gpu in _GPUS if gpu.name == "h100")
    request = PlanRequest(gpu=gpu, engine=STOKER, max_num_batched_tokens=budget)
    plan = make_plan(model.shape, model.weights, request)
    start = next(c for c in answer(plan, model, ()).commands if c.engine == STOKER)

    assert start.command is not None
    assert ("--limit-mm-per-prompt" in start.command) is not sees
    assert (start.note is None) is sees
    assert _own_plan(shlex.split(start.command), plan, model).shortfall is None


def test_states_beside_the_blocks_leave_less_room_and_fewer_requests_help() -> None:
    model = _MODELS["granite-4.0-h-tiny"]
    request = PlanRequest(
        gpu=None, engine=STOKER, free_ram_bytes=20 * GIB, max_model_len=1024, max_num_seqs=1
    )
    few = make_plan(model.shape, model.weights, request)
    many = make_plan(model.shape, model.weights, dataclasses.replace(request, max_num_seqs=256))

    assert few.shortfall is None
    assert many.tightest.states_bytes == 256 * few.tightest.states_bytes > 0
    lost = 255 * few.tightest.states_bytes
    assert kv_room(many) == max(0, kv_room(few) - lost)
    assert many.shortfall is not None
    assert any(advice.startswith("--max-num-seqs ") for advice in answer(many, model, ()).advice)


@pytest.mark.parametrize("copies", [1, 2])
def test_the_shortfall_of_a_cpu_is_what_is_missing(copies: int) -> None:
    model = _MODELS["qwen3-8b"]
    request = PlanRequest(
        gpu=None, engine=STOKER, free_ram_bytes=8 * GIB, data_parallel_size=copies
    )
    plan = make_plan(model.shape, model.weights, request)

    missing = copies * (plan.tightest.weights_bytes + process_bytes(request)) - 8 * GIB
    assert missing > GIB
    assert f"exceed the memory by {round(missing / GIB, 2)} GiB" in (plan.shortfall or "")
    assert answer(plan, model, ()).longest_model_len == 0


@pytest.mark.parametrize(
    ("changes", "are_recorded"),
    [
        ({}, True),
        ({"enforce_eager": True}, False),
        ({"tensor_parallel_size": 2}, False),
        ({"lora": LoraSlots(1, 8)}, False),
        ({"engine": LLAMA_CPP}, False),
    ],
)
def test_our_engine_records_graphs_of_its_own_code_on_one_rank(
    changes: dict[str, Any], are_recorded: bool
) -> None:
    gpu = next(gpu for gpu in _GPUS if gpu.name == "h100")
    request = dataclasses.replace(PlanRequest(gpu=gpu, engine=STOKER), **changes)
    own, other = _MODELS["qwen3-8b"], _MODELS["phi-4"]
    plan = make_plan(own.shape, own.weights, request)

    assert bool(plan.graphs.captures) is are_recorded
    assert (plan.assumptions[2].num_bytes > 0) is are_recorded
    if not changes:
        theirs = make_plan(other.shape, other.weights, request)
        assert theirs.graphs.captures == ()
