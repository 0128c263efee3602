"""Steps that are planned before the last one's tokens are known, on a device that records."""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import Tensor

import tests.interpreted_triton  # noqa: F401  (before any kernel)
from engine.config import DeviceConfig
from engine.core.engine_core import EngineCore
from engine.kernels import selection
from engine.kernels.kernel_set import KVCache
from engine.kernels.step_batch import StepBatch
from engine.kernels.triton.kernels import TritonKernels
from engine.kernels.triton.targets import INTERPRETED
from engine.messages import EngineCoreRequest
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from engine.sched.scheduler_output import ModelRunnerOutput, SchedulerOutput
from engine.worker import worker
from engine.worker.cuda_graphs import GraphedDecoder
from tests.core.conftest import engine_config
from tests.core.core_runs import Answer, answers_of, run
from tests.fakes.graph_device import RecordingDevice
from tests.waiting import wait_for

DIGITS = StructuredOutputsParams(regex="[0-9]{3}")
GRAPHS: dict[str, Any] = {"cudagraph_capture_sizes": (2, 8)}
EAGER: dict[str, Any] = {"enforce_eager": True}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> RecordingDevice:
    """Takes the place of a GPU: this machine's CPU, which can record."""
    found = RecordingDevice()

    def kernels(asked: DeviceConfig) -> TritonKernels:
        return TritonKernels(INTERPRETED, found.launch)

    monkeypatch.setattr(selection, "_triton_kernels", kernels)
    monkeypatch.setattr(worker, "_graph_device", lambda asked: found)
    return found


def core_of(folder: Path, kernels: str = "triton", **flags: Any) -> EngineCore:
    return EngineCore(engine_config(folder, kernels=kernels, num_threads=1, **flags))


def add_with_grammars(core: EngineCore, requests: list[EngineCoreRequest]) -> None:
    """Until all of them can run: a grammar is compiled beside the steps."""
    for request in requests:
        core.add_request(request)
    known = core.scheduler.requests.values()
    wait_for(lambda: all(one.grammar is None or one.grammar.is_ready for one in known))


def tokens_of(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {name: answer.tokens for name, answer in answers.items()}


def asked(request_id: str, prompt: list[int], **params: Any) -> EngineCoreRequest:
    settings = SamplingParams(**{"temperature": 0.0, "max_tokens": 4, **params})
    return EngineCoreRequest(request_id, prompt, settings, arrival_time=0.0)


def mixed_requests() -> list[EngineCoreRequest]:
    """Greedy, drawn, and such as want to know the tokens before; different lengths."""
    return [
        asked("plain", [5, 6, 7, 8, 9]),
        asked("drawn", [40, 41], temperature=0.9, top_k=30, top_p=0.9, seed=4, max_tokens=5),
        asked("biased", [1, 2, 3], logit_bias=((17, 2.0),), max_tokens=3),
        asked("penalised", [9, 9, 9, 4], repetition_penalty=1.5, max_tokens=3),
        asked("reported", [12, 13], logprobs=2, max_tokens=2),
        asked("forbidden", [7, 7, 2], bad_words_token_ids=((5,), (9, 11)), max_tokens=5),
        asked("digits", [30, 31], structured_outputs=DIGITS, max_tokens=8),
    ]


CHOSEN_LATE: dict[str, dict[str, Any]] = {
    "edits": {
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.7,
        "bad_words_token_ids": ((5,), (9, 11)),
        "logit_bias": ((17, 2.0),),
    },
    "logprobs": {"logprobs": 3},
    "grammar": {"structured_outputs": StructuredOutputsParams(regex="[0-9]{40}")},
}


def test_steps_tell_what_was_replayed(tiny_folder: Path, device: RecordingDevice) -> None:
    core = core_of(tiny_folder, **GRAPHS)
    core.add_request(asked("a", [5, 6, 7], max_tokens=3))
    core.add_request(asked("b", [8, 9, 4], max_tokens=1))
    told = []
    while not core.is_idle:
        stats = core.step().scheduler_stats
        assert stats is not None
        told += [stats.graphs] if stats.graphs is not None else []
    # Six tokens of prompts, padded to eight; then two decodes, padded to the smallest graph of two.
    assert sum(one.num_steps for one in told) == 3
    assert [sum(one.replayed[mode] for one in told) for mode in ("PIECEWISE", "FULL")] == [1, 2]
    assert sum(one.num_graph_tokens for one in told) == 8 + 2 + 2
    assert sum(one.num_padding_tokens for one in told) == 2 + 1 + 1


@pytest.mark.parametrize("flags", [GRAPHS, EAGER], ids=["graphs", "eager"])
def test_a_step_is_planned_before_the_last_one_is_waited_for(
    flags: dict[str, Any], tiny_folder: Path, device: RecordingDevice
) -> None:
    core = core_of(tiny_folder, **flags)
    plan = core.scheduler.schedule

    def seen() -> SchedulerOutput:
        device.traffic.append("plan")
        return plan()

    core.scheduler.schedule = seen  # type: ignore[method-assign]
    device.traffic.clear()
    texts = run(core, [asked("a", [5, 6, 7], max_tokens=4)]).texts
    assert len(texts["a"]) == 4
    launch = ["plan", "upload", "download"]
    # Four steps; each but the first is launched before the tokens of the one before are waited for.
    # Once the last token is under way nothing is left to plan.
    assert device.traffic == [
        *launch,
        *(*launch, "wait"),
        *(*launch, "wait"),
        *(*launch, "wait"),
        *("plan", "wait"),
    ]


@pytest.mark.parametrize("flags", [GRAPHS, EAGER], ids=["graphs", "eager"])
def test_tokens_are_those_of_steps_that_wait(
    flags: dict[str, Any], tiny_folder: Path, device: RecordingDevice
) -> None:
    """Also of requests whose tokens are chosen late, beside those that need not wait."""
    wanted = run(core_of(tiny_folder, "reference"), mixed_requests()).texts
    assert run(core_of(tiny_folder, **flags), mixed_requests()).texts == wanted
    assert "download" in device.traffic


@pytest.mark.parametrize("kind", CHOSEN_LATE)
def test_what_the_choice_waits_for_the_step_does_not(
    kind: str, tiny_folder: Path, device: RecordingDevice
) -> None:
    """The step is launched before the last one's tokens are waited for; then they are chosen. The
    request gets one in every step, and so does who runs beside it.
    """
    params = CHOSEN_LATE[kind]
    requests = [asked("late", [5, 6, 7], **params), asked("plain", [8, 9])]
    wanted = answers_of(core_of(tiny_folder, "reference"), requests)
    core = core_of(tiny_folder, **EAGER)
    launch = core.executor.execute_model

    def seen(scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        device.traffic.append("launch")
        return launch(scheduler_output)

    core.executor.execute_model = seen  # type: ignore[method-assign]
    add_with_grammars(core, requests)
    device.traffic.clear()
    found = answers_of(core, [])
    assert tokens_of(found) == tokens_of(wanted)
    chosen = [word for word in device.traffic if word != "upload"]
    assert chosen == [
        *("launch", "download"),
        *("launch", "wait", "download") * 3,
        "wait",
    ]
    if kind == "logprobs":
        pairs = zip(found["late"].logprobs, wanted["late"].logprobs, strict=True)
        assert all(ours.token_ids == theirs.token_ids for ours, theirs in pairs)


def test_logits_live_until_tokens_are_chosen_from_them(
    tiny_folder: Path, device: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's are hundreds of MB, and only one step's were measured."""
    made: list[weakref.ref[Tensor]] = []
    most: list[int] = []
    start = GraphedDecoder.start

    def seen(self: GraphedDecoder, batch: StepBatch, kv_cache: KVCache) -> Tensor:
        most.append(sum(one() is not None for one in made))
        logits = start(self, batch, kv_cache)
        made.append(weakref.ref(logits))
        return logits

    monkeypatch.setattr(GraphedDecoder, "start", seen)
    core = core_of(tiny_folder, **EAGER)
    run(core, mixed_requests())
    assert len(made) > 3
    assert set(most) == {0}
    assert all(one() is None for one in made)  # an idle or sleeping engine holds none


def test_prompts_that_are_reported_or_pooled_wait_and_change_nobodys_tokens(
    tiny_folder: Path, device: RecordingDevice
) -> None:
    pooled = asked("pooled", [4, 5, 6, 7], max_tokens=1)
    requests = [
        asked("penalised", [9, 9, 9, 4], repetition_penalty=1.5, max_tokens=5),
        asked("prompt", [12, 13, 14, 15], prompt_logprobs=2, max_tokens=3),
        msgspec.structs.replace(pooled, pooling=PoolingParams(pooling_type="MEAN")),
    ]
    wanted = answers_of(core_of(tiny_folder, "reference"), requests)
    found = answers_of(core_of(tiny_folder, **EAGER), requests)
    assert tokens_of(found) == tokens_of(wanted)
    assert found["prompt"].all_prompt_logprobs() == pytest.approx(
        wanted["prompt"].all_prompt_logprobs(), abs=1e-4
    )
    assert len(found["pooled"].vector) == len(wanted["pooled"].vector) > 0


def test_kept_requests_survive_a_sleep_in_the_middle_of_two_steps(
    tiny_folder: Path, device: RecordingDevice
) -> None:
    request = asked("a", [5, 6, 7], **CHOSEN_LATE["grammar"], max_tokens=6)
    wanted = answers_of(core_of(tiny_folder, "reference"), [request])["a"].tokens
    core = core_of(tiny_folder, **EAGER)
    add_with_grammars(core, [request])
    found = [token for _ in range(3) for one in core.step().outputs for token in one.new_token_ids]
    core.prepare_sleep("keep")
    found += [token for one in core.fall_asleep(1) for token in one.new_token_ids]
    core.wake_up()
    found += answers_of(core, [])["a"].tokens
    assert found == wanted


def test_the_flag_has_every_step_waited_for(tiny_folder: Path, device: RecordingDevice) -> None:
    requests = [asked("a", [5, 6, 7], max_tokens=2)]
    wanted = run(core_of(tiny_folder, "reference"), requests).texts
    waiting = core_of(tiny_folder, async_scheduling=False, **EAGER)
    assert run(waiting, requests).texts == wanted
    assert "download" not in device.traffic


def test_an_end_that_was_not_foreseen_drops_the_step_behind_it(
    tiny_folder: Path, device: RecordingDevice
) -> None:
    """The stop token is known when the next step is under way already; its row is used again."""
    tokens = run(core_of(tiny_folder, "reference"), [asked("a", [5, 6, 7])]).texts["a"]
    stop = tokens[1]
    ends = tokens[: tokens.index(stop) + 1]
    core = core_of(tiny_folder, **EAGER, max_num_seqs=1)
    requests = [
        asked("a", [5, 6, 7], stop_token_ids=(stop,)),
        asked("b", [5, 6, 7]),  # waits for the only row
    ]
    results = run(core, requests)
    assert results.texts == {"a": ends, "b": tokens}
    assert core.scheduler.kv_cache_manager.usage == 0.0


def test_a_small_cache_preempts_and_changes_no_token(
    tiny_folder: Path, device: RecordingDevice
) -> None:
    """Blocks fill with tokens that are not known yet; who is under way keeps its blocks."""
    requests = [asked(f"r{n}", [n + 1, n + 2, n + 3], max_tokens=7) for n in range(2)]
    wanted = run(core_of(tiny_folder, "reference"), requests).texts
    small: dict[str, Any] = {"block_size": 4, "num_gpu_blocks_override": 5, "max_model_len": 12}
    core = core_of(tiny_folder, **EAGER, **small)
    results = run(core, requests)
    assert results.texts == wanted
    assert results.num_preemptions > 0
    known = requests[1].prompt_token_ids + wanted["r1"][:6]
    again = run(core, [asked("again", known, max_tokens=1)])
    assert again.num_cached_tokens == 8
    assert again.texts["again"] == wanted["r1"][6:]


def test_an_abort_between_launch_and_wait_leaves_the_others_as_they_are(
    tiny_folder: Path, device: RecordingDevice
) -> None:
    wanted = run(core_of(tiny_folder, "reference"), [asked("b", [8, 9])]).texts["b"]
    core = core_of(tiny_folder, **EAGER)
    core.add_request(asked("a", [5, 6, 7]))
    core.add_request(asked("b", [8, 9]))
    assert core.step().outputs == []  # launched, not waited for
    assert core.abort_requests(["a"]) == 1
    found: list[int] = []
    while not core.is_idle:
        outputs = core.step().outputs
        assert {output.request_id for output in outputs} <= {"b"}
        found += [token for output in outputs for token in output.new_token_ids]
    assert found == wanted


def test_errors_of_the_device_come_when_the_step_is_waited_for(
    tiny_folder: Path, device: RecordingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = core_of(tiny_folder, **EAGER)
    core.add_request(asked("a", [5, 6, 7]))

    def broken(self: object) -> ModelRunnerOutput:
        raise RuntimeError("device-side assert")

    monkeypatch.setattr("tests.fakes.graph_device.RecordedDownload.wait", broken)
    core.step()
    with pytest.raises(RuntimeError, match="device-side assert"):
        core.step()
