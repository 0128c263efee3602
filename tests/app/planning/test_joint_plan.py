"""Several servers on one device: what is shared out fits, and so does what is printed."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from app.errors import StokerError, UsageError
from app.launch.engines import STOKER, VLLM
from app.planning.builtin_shapes import BUILTIN_SHAPES
from app.planning.gpu_catalogue import PlannedGpu, find_gpu, known_gpus
from app.planning.joint_plan import JointPlan, JointStart, share_out
from app.planning.memory_estimates import GivenGib
from app.planning.plan import make_plan, process_bytes
from app.planning.plan_models import find_planned_model
from app.planning.plan_request import PlanRequest
from engine.kv_sizing import requested_memory
from engine.machine.sizes import GIB
from engine.model_store.catalogue import find_builtin

_MODELS = {name: find_planned_model(name) for name in BUILTIN_SHAPES}
_BY_COMMAND = {model.command_name: model for model in _MODELS.values()}
_SMALL = ("smollm2-135m", "gemma-3-270m", "qwen3-0.6b", "llama-3.2-1b", "gemma-3-1b", "qwen3-4b")
_GPUS = tuple(known_gpus())
_FLAGS = {
    "--max-model-len": ("max_model_len", int),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--kv-cache-memory-bytes": ("kv_memory_bytes", int),
    "--max-num-seqs": ("max_num_seqs", int),
    "--quantization": ("quantization", str),
}


def start(name: str, **asked: Any) -> JointStart:
    request = {"gpu": find_gpu("rtx4090"), **asked}
    has_share = "gpu_memory_utilization" in asked
    return JointStart(_MODELS[name], PlanRequest(**request), has_share)


def on_cpu(name: str, free: int, **asked: Any) -> JointStart:
    return start(name, gpu=None, engine=STOKER, free_ram_bytes=free, **asked)


@st.composite
def joint_starts(draw: st.DrawFn) -> list[JointStart]:
    gpu = draw(st.sampled_from((None, *_GPUS)))
    names = st.sampled_from(_SMALL) | st.sampled_from(sorted(_MODELS))
    starts = []
    for name in draw(st.lists(names, min_size=1, max_size=3)):
        model = _MODELS[name]
        share = draw(st.none() | st.none() | st.sampled_from((0.2, 0.45, 0.9)))
        request = PlanRequest(
            gpu=gpu,
            engine=STOKER if gpu is None else draw(st.sampled_from((VLLM, VLLM, STOKER))),
            free_ram_bytes=0,
            max_model_len=draw(
                st.none() | st.just(-1) | st.integers(1, min(40_000, model.shape.max_model_len))
            ),
            kv_cache_dtype=draw(st.sampled_from(("auto", "auto", "fp8"))),
            max_num_seqs=draw(st.none() | st.integers(1, 300)),
            kv_memory_bytes=draw(st.none() | st.none() | st.integers(1 << 20, 20 * GIB)),
            vllm_version=draw(st.sampled_from((None, None, (0, 11, 0), (0, 30, 0)))),
            enforce_eager=draw(st.booleans()),
        )
        if share is not None:
            request = dataclasses.replace(request, gpu_memory_utilization=share)
        starts.append(JointStart(model, request, share is not None))
    free = draw(st.integers(GIB, 512 * GIB))
    return [
        dataclasses.replace(one, request=dataclasses.replace(one.request, free_ram_bytes=free))
        for one in starts
    ]


@settings(max_examples=80, deadline=None)
@given(starts=joint_starts())
def test_what_fits_together_fits_one_by_one_and_again_as_printed(starts: list[JointStart]) -> None:
    try:
        joint = share_out(starts)
    except StokerError:  # flags that cannot work with this model, refused by name
        reject()
    if joint.shortfall is not None:
        _check_advice(joint, starts)
        return
    assert joint.advice == ()
    assert joint.left_bytes >= 0
    for member in joint.members:
        assert member.plan.shortfall is None
    _check_starts_in_turn(joint)
    _check_commands(joint, starts)


def _check_starts_in_turn(joint: JointPlan) -> None:
    """As vLLM and our engine look at it: each start finds free what its flags ask for."""
    free = joint.total_bytes
    for member in joint.members:
        request = member.plan.request
        if request.gpu is None:
            assert request.kv_memory_bytes is not None
            again = dataclasses.replace(request, free_ram_bytes=free)
            shape, weights = member.start.model.shape, member.start.model.weights
            assert make_plan(shape, weights, again).shortfall is None
        else:
            assert free >= requested_memory(
                request.gpu.memory_bytes, request.gpu_memory_utilization
            )
        free -= member.held_bytes


def _check_commands(joint: JointPlan, starts: list[JointStart]) -> None:
    read = []
    for member, asked in zip(joint.members, starts, strict=True):
        assert member.command is not None
        if member.command.command is None:
            assert member.command.note
            return
        read.append(_as_typed(member.command.command, asked, member.port))
    again = share_out(read)
    assert again.shortfall is None, [one.command for one in joint.members]
    for one in read:
        assert make_plan(one.model.shape, one.model.weights, one.request).shortfall is None


def _as_typed(command: str, asked: JointStart, port: int) -> JointStart:
    """What a command says, on the same device; nothing that was not typed is known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs=3)
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--engine", default=STOKER)
    parser.add_argument("--port", type=int)
    parser.add_argument("--enforce-eager", action="store_true")
    for flag, (name, kind) in _FLAGS.items():
        parser.add_argument(flag, dest=name, type=kind, default=argparse.SUPPRESS)
    found = vars(parser.parse_intermixed_args(shlex.split(command)))
    program, verb, model = found.pop("words")
    assert (program, verb, found.pop("detach")) == ("stoker", "serve", True)
    assert found.pop("port") == port
    named = _BY_COMMAND.get(model) or _MODELS[model]
    assert named is asked.model
    assert model == asked.model.command_name or find_builtin(model) is not None
    request = PlanRequest(
        gpu=asked.request.gpu,
        free_ram_bytes=asked.request.free_ram_bytes,
        vllm_version=asked.request.vllm_version,
        **found,
    )
    return JointStart(named, request, "gpu_memory_utilization" in found)


def _check_advice(joint: JointPlan, starts: list[JointStart]) -> None:
    assert joint.advice
    for advice in joint.advice:
        if not advice.startswith("for "):
            assert len(joint.advice) == 1  # words for where no flag helps
            continue
        whom, _, flags = advice.removeprefix("for ").partition(": ")
        words = flags.split()
        changes = {
            _FLAGS[flag][0]: _FLAGS[flag][1](value)
            for flag, value in zip(words[::2], words[1::2], strict=True)
        }
        hits = [n for n, one in enumerate(starts) if whom in ("all", one.model.shape.name)]
        tries = [hits] if whom == "all" else [[number] for number in hits]
        assert any(_fits_with(starts, numbers, changes) for numbers in tries), advice


def _fits_with(starts: list[JointStart], numbers: list[int], changes: dict[str, Any]) -> bool:
    changed = list(starts)
    for number in numbers:
        request = dataclasses.replace(starts[number].request, **changes)
        changed[number] = dataclasses.replace(starts[number], request=request)
    return share_out(changed).shortfall is None


def test_what_is_left_gives_all_equally_many_requests() -> None:
    measured = GivenGib(0.3, 0.5, 0.2)
    joint = share_out(
        [
            start("qwen3-4b", max_model_len=8192, given=measured),
            start("qwen3-0.6b", max_model_len=2048, given=measured),
        ]
    )
    first, second = (member.plan.capacity.max_concurrency for member in joint.members)
    shares = [member.plan.request.gpu_memory_utilization for member in joint.members]

    assert joint.fits_at_worst
    assert second == pytest.approx(first, rel=0.15)
    assert sum(shares) > 0.85
    assert [member.port for member in joint.members] == [8000, 8001]


def test_no_cache_grows_beyond_what_its_requests_can_use() -> None:
    joint = share_out([start("smollm2-135m", max_model_len=1024, max_num_seqs=1)] * 2)

    for member in joint.members:
        assert member.plan.capacity.max_concurrency < 40  # one hundredth of the card is that much
    assert joint.left_bytes > 15 * GIB


def test_a_given_share_stays_and_the_other_gets_the_rest() -> None:
    given_share = start("qwen3-0.6b", gpu_memory_utilization=0.45)
    joint = share_out([given_share, start("gemma-3-1b")])
    first, second = joint.members

    assert first.plan.request.gpu_memory_utilization == 0.45
    assert 0.3 < second.plan.request.gpu_memory_utilization <= 0.5


def test_a_cache_of_given_size_still_needs_a_share_that_vllm_finds_free() -> None:
    joint = share_out([start("qwen3-0.6b", kv_memory_bytes=5 * GIB), start("gemma-3-1b")])
    first = joint.members[0]

    assert first.plan.tightest.available_bytes == 5 * GIB
    assert 0.3 < first.plan.request.gpu_memory_utilization < 0.5
    assert first.command is not None
    assert "--kv-cache-memory-bytes 5368709120" in str(first.command.command)


def test_on_a_cpu_each_gets_the_size_of_its_cache() -> None:
    joint = share_out([on_cpu("smollm2-135m", 6 * GIB), on_cpu("gemma-3-270m", 6 * GIB)])

    assert joint.shortfall is None
    assert joint.left_bytes >= 0.07 * 6 * GIB
    for member in joint.members:
        assert f"--kv-cache-memory-bytes {member.plan.tightest.available_bytes}" in str(
            member.command
        )


@pytest.mark.parametrize("free_gib", [20, 512])
def test_on_a_cpu_no_cache_is_larger_than_the_engine_would_make_it(free_gib: int) -> None:
    joint = share_out([on_cpu("smollm2-135m", free_gib * GIB)] * 2)

    assert {member.plan.tightest.available_bytes for member in joint.members} == {4 * GIB}


def test_two_that_are_too_large_say_what_they_need() -> None:
    joint = share_out([start("qwen3-8b"), start("llama-3.1-8b")])

    assert joint.shortfall is not None
    assert joint.shortfall.startswith("Together they need at least 5")
    assert [member.command for member in joint.members] == [None, None]


def test_states_of_hybrids_are_held_beside_their_caches() -> None:
    asked = {"max_model_len": 2048, "max_num_seqs": 64}
    joint = share_out([on_cpu("lfm2-1.2b", 32 * GIB, **asked)] * 2)

    assert joint.shortfall is None
    for member in joint.members:
        stage = member.plan.tightest
        assert stage.states_bytes > 0
        fixed = stage.weights_bytes + stage.states_bytes + process_bytes(member.plan.request)
        assert member.held_bytes == fixed + stage.available_bytes


def test_several_servers_have_ports_of_their_own() -> None:
    one = start("qwen3-0.6b", max_model_len=2048)
    with pytest.raises(UsageError, match="one port"):
        share_out([dataclasses.replace(one, port=9000)] * 2)
    joint = share_out([one, dataclasses.replace(one, port=8000), one])

    assert [member.port for member in joint.members] == [8001, 8000, 8002]


def test_a_model_on_several_devices_is_planned_by_itself() -> None:
    with pytest.raises(UsageError, match="on one device"):
        share_out([start("qwen3-8b", tensor_parallel_size=2), start("qwen3-0.6b")])


def test_a_card_whose_memory_is_not_certain_is_not_given_away_to_the_last() -> None:
    exact = PlannedGpu("24GiB", 24 * GIB)
    loose = dataclasses.replace(exact, memory_tolerance=0.1)
    starts = [start("qwen3-0.6b", gpu=exact), start("gemma-3-1b", gpu=exact)]
    careful = [
        dataclasses.replace(one, request=dataclasses.replace(one.request, gpu=loose))
        for one in starts
    ]

    assert share_out(careful).left_bytes > share_out(starts).left_bytes + GIB
