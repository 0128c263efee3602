from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.core import request_traces
from engine.core.engine_core import EngineCore
from engine.core.request_traces import RequestTraces
from engine.frontend.request_traces import FrontendTraces, Marks
from engine.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config


def make_core(folder: Path, **flags: object) -> EngineCore:
    return EngineCore(engine_config(folder, enable_debug_endpoints=True, **flags))


def request(request_id: str, num_tokens: int, max_tokens: int) -> EngineCoreRequest:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return EngineCoreRequest(request_id, list(range(num_tokens)), params, 0.0)


def test_steps_and_states_of_a_request_that_is_preempted(tiny_folder: Path) -> None:
    core = make_core(tiny_folder, num_gpu_blocks_override=8, block_size=4, max_model_len=28)
    for name in ("a", "b"):
        core.add_request(request(name, 9, 12))
    while not core.is_idle:
        core.step()
    traces = {name: json.loads(core.trace_document(name) or "") for name in ("a", "b")}
    states = {name: [state for state, _ in trace["states"]] for name, trace in traces.items()}
    assert states["a"] == ["WAITING", "RUNNING", "FINISHED_LENGTH_CAPPED"]
    preempted = ["WAITING", "RUNNING", "PREEMPTED", "RUNNING", "FINISHED_LENGTH_CAPPED"]
    assert states["b"] == preempted
    trace = traces["a"]
    assert trace["num_steps"] == 12
    assert trace["first_step"]["num_tokens"] == 9
    assert trace["last_step"]["num_tokens"] == 1
    for step in (trace["first_step"], trace["last_step"]):
        assert 0 < step["blocks_s"] <= step["planned_s"] - step["start_s"]
        assert step["start_s"] <= step["planned_s"] <= step["executed_s"] <= step["updated_s"]
        assert 0 < step["forward_s"] + step["sampler_s"] <= step["executed_s"] - step["planned_s"]
    assert trace["totals"]["forward_s"] > trace["first_step"]["forward_s"]
    core.shutdown()


def test_aborted_and_unknown_requests(tiny_folder: Path) -> None:
    core = make_core(tiny_folder)
    core.add_request(request("a", 5, 9))
    core.step()
    core.abort_requests(["a", "never"])
    trace = json.loads(core.trace_document("a") or "")
    assert trace["states"][-1][0] == "FINISHED_ABORTED"
    assert core.trace_document("never") is None
    core.shutdown()


def test_nothing_is_kept_unless_asked_for(tiny_folder: Path) -> None:
    core = EngineCore(engine_config(tiny_folder))
    core.add_request(request("a", 5, 2))
    core.step()
    assert core.trace_document("a") is None
    core.shutdown()


def test_only_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_traces, "MAX_TRACES", 2)
    traces = RequestTraces()
    for name in "abc":
        traces.begin(name)
    assert traces.document("a") is None
    assert traces.document("c") is not None


def test_both_sides_count_from_the_arrival() -> None:
    frontend = FrontendTraces()
    frontend.begin("a", Marks("1.2.3.4:5", {"received": 100.0, "read": 100.25}), [1] * 7)
    core = {"queued_s": 101.0, "states": [["WAITING", 101.0]], "totals": {"forward_s": 0.5}}
    document = frontend.document("a", {**core, "first_step": {"start_s": 102.0, "num_tokens": 7}})
    assert document is not None
    assert document["marks"] == {"received": 0.0, "read": 0.25}
    assert document["core"]["queued_s"] == 1.0
    assert document["core"]["states"] == [["WAITING", 1.0]]
    assert document["core"]["totals"] == {"forward_s": 0.5}
    assert document["core"]["first_step"] == {"start_s": 2.0, "num_tokens": 7}
    assert (document["client"], document["prompt_tokens"]) == ("1.2.3.4:5", 7)
    assert frontend.document("b", None) is None
    assert frontend.client_of("b") is None
