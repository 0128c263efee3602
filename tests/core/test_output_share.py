"""Who gets what of a step, where several API servers share one engine."""

from __future__ import annotations

from engine.core.output_share import OutputShare
from engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineStats,
    FinishReason,
    PrefillStats,
    SchedulerStats,
)
from engine.sampling_params import SamplingParams


def share_of(**owners: int) -> OutputShare:
    share = OutputShare(rank=3)
    for name, client in owners.items():
        share.note(EngineCoreRequest(name, [1], SamplingParams(), 0.0, client_index=client))
    return share


def test_each_client_gets_its_own_requests_alone() -> None:
    share = share_of(a=1, b=2, c=1)
    outputs = [EngineCoreOutput(name, [5]) for name in "abc"]
    shares = dict(share.shares(EngineCoreOutputs(outputs, timestamp=7.0)))
    assert {client: [one.request_id for one in own.outputs] for client, own in shares.items()} == {
        1: ["a", "c"],
        2: ["b"],
    }
    assert {(own.engine_index, own.timestamp) for own in shares.values()} == {(3, 7.0)}
    assert dict(share.shares(EngineCoreOutputs(scheduler_stats=SchedulerStats()))) == {}


def test_a_request_that_has_ended_is_nobodys() -> None:
    share = share_of(a=1, b=1, c=2)
    end = EngineCoreOutput("a", [5], FinishReason.STOP)
    assert [client for client, _ in share.shares(EngineCoreOutputs([end]))] == [1]
    assert share.ids_of(1) == ["b"]
    share.forget(["b", "never seen"])
    assert share.ids_of(1) == []
    assert share.ids_of(2) == ["c"]


def test_the_coordinator_learns_the_whole_step() -> None:
    outputs = EngineCoreOutputs(
        [
            EngineCoreOutput("a", [5], prefill_stats=PrefillStats(10, 4)),
            EngineCoreOutput("b", [6, 7]),
        ],
        SchedulerStats(num_running_reqs=2),
    )
    assert share_of().stats(outputs) == EngineStats(3, SchedulerStats(num_running_reqs=2), 10, 4, 3)
