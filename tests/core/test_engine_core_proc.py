"""The sockets of an EngineCore without its process: what it makes of messages that have come."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from engine.core.engine_core import EngineCore
from engine.core.engine_core_proc import EngineCoreProc
from engine.core.handshake import SharedAddresses
from engine.core.output_share import ABORT_CLIENT
from engine.messages import (
    MOST_UNREAD,
    SLEEP,
    WAKE_UP,
    CoreLinks,
    EngineCoreOutputs,
    EngineCoreRequest,
    HandshakeInit,
    RequestType,
    SleepCall,
    UtilityRequest,
)
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config

TIMEOUT_MS = 60_000


class World:
    """An engine, its owner (client 0) and one API server (client 1), all in one context."""

    def __init__(self, folder: Path, stats: str, **flags: object) -> None:
        self.context = zmq.Context()
        names = [(f"inproc://in{client}", f"inproc://out{client}") for client in (0, 1)]
        self._inputs = [self._bound(zmq.PUSH, name) for name, _ in names]
        self._outputs = [self._bound(zmq.PULL, name) for _, name in names]
        config = engine_config(folder, **flags)
        self.core = EngineCore(config)
        init = HandshakeInit(config, CoreLinks(tuple(names), stats))
        self.proc = EngineCoreProc(self.core, self.context, init)

    def _bound(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.bind(address)
        return socket

    def say(self, client: int, kind: RequestType, payload: object) -> None:
        self._inputs[client].send_multipart((kind.value, msgspec.msgpack.encode(payload)))

    def hear(self, client: int) -> EngineCoreOutputs:
        assert self._outputs[client].poll(TIMEOUT_MS)
        return msgspec.msgpack.decode(self._outputs[client].recv(), type=EngineCoreOutputs)

    def call(self, method: str) -> object:
        self.say(0, RequestType.UTILITY, UtilityRequest(2, method))
        self.proc._receive()
        answer = self.hear(0).utility_output
        assert answer is not None
        return answer.result

    def close(self) -> None:
        self.core.shutdown()
        self.proc._wake_read.close()
        self.proc._wake_write.close()
        self.context.destroy(linger=0)


@contextlib.contextmanager
def made(folder: Path, **flags: object) -> Iterator[World]:
    before = signal.getsignal(signal.SIGTERM)
    addresses = SharedAddresses.create()
    world = World(folder, addresses.stats, **flags)
    try:
        yield world
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, before)
        world.close()
        addresses.remove()


@pytest.fixture
def world(tiny_folder: Path) -> Iterator[World]:
    with made(tiny_folder) as world:
        yield world


def test_the_end_of_a_client_ends_what_came_of_it_by_another_way(world: World) -> None:
    world.say(0, RequestType.UTILITY, UtilityRequest(7, f"{ABORT_CLIENT}1"))
    last = EngineCoreRequest("last", [1, 2, 3], SamplingParams(max_tokens=9), 0.0, client_index=1)
    world.say(1, RequestType.ADD, last)
    world.proc._receive()
    assert world.core.is_idle
    answer = world.hear(0).utility_output
    assert answer is not None
    assert (answer.call_id, answer.result) == (7, True)


def test_without_a_coordinator_steps_go_on_and_their_numbers_are_not_heaped_up(
    world: World,
) -> None:
    stats = world.proc._stats
    assert stats is not None
    for _ in range(MOST_UNREAD + 1):
        world.proc._send_step(world.core.stats_message())
    assert not stats.poll(0, zmq.POLLOUT), "it is full"
    assert world.hear(0) == EngineCoreOutputs(), "its owner was told that it works"


def ask_to_sleep(world: World, level: int) -> EngineCoreRequest:
    """As call 1, behind a request; returns that, for whose end the sleep waits."""
    runs = EngineCoreRequest("runs", [1, 2, 3], SamplingParams(max_tokens=9), 0.0)
    world.say(0, RequestType.ADD, runs)
    call = SLEEP + msgspec.json.encode(SleepCall(level, "wait")).decode()
    world.say(0, RequestType.UTILITY, UtilityRequest(1, call))
    return runs


def test_a_sleep_that_waits_is_told_to_who_joins_it(world: World) -> None:
    assert world.call("asked_sleep_level") == 0
    ask_to_sleep(world, 2)
    assert world.call("asked_sleep_level") == 2
    assert world.call("sleep_level") == 0
    world.core.abort_requests(["runs"])
    world.proc._sleep_if_awaited()
    assert world.hear(0).utility_output is None  # everybody learns the state first
    answer = world.hear(0).utility_output
    assert answer is not None
    assert (answer.call_id, answer.result) == (1, 2)
    assert world.call("asked_sleep_level") == 2


def test_a_sleep_that_waits_is_called_off_by_waking(world: World) -> None:
    runs = ask_to_sleep(world, 1)
    world.say(0, RequestType.UTILITY, UtilityRequest(2, WAKE_UP))
    world.proc._receive()
    found = [world.hear(0).utility_output for _ in range(3)]
    answers = {answer.call_id: answer for answer in found if answer is not None}
    assert "woken before it slept" in str(answers[1].error)
    assert answers[2].result == 0
    world.say(0, RequestType.ADD, msgspec.structs.replace(runs, request_id="next"))
    world.proc._receive()
    assert list(world.core.scheduler.requests) == ["runs", "next"]


def test_debug_documents_come_as_json_when_asked_for(tiny_folder: Path) -> None:
    """Steps are run by hand, so that no request ends between two documents."""
    with made(tiny_folder, enable_debug_endpoints=True) as world:
        for name in "ab":
            runs = EngineCoreRequest(name, [1, 2, 3], SamplingParams(max_tokens=9), 0.0)
            world.say(0, RequestType.ADD, runs)
        world.proc._receive()
        while not any(output.new_token_ids for output in world.core.step().outputs):
            pass
        scheduler, requests, blocks = (
            json.loads(str(world.call(f"debug_{name}")))
            for name in ("scheduler", "requests", "blocks")
        )
    assert scheduler["num_steps"] > 0
    entries = requests["data"]
    assert entries[0].items() >= {"id": "a", "state": "running", "prompt_tokens_done": 3}.items()
    assert blocks["num_used"] >= len(entries)
    assert list(blocks["owners"]) == [entry["id"] for entry in entries] == ["a", "b"]
