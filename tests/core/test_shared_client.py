"""One API server's end to engines that another process owns, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from engine.core import shared_client
from engine.core.handshake import SharedAddresses
from engine.core.output_share import ABORT_CLIENT
from engine.core.replicas import create_client
from engine.core.shared_client import SharedClient
from engine.errors import EngineDeadError, EngineError, ReplicaDownError
from engine.messages import (
    ClientReport,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    HandshakeReady,
    QueueStats,
    RequestType,
    UtilityOutput,
    UtilityRequest,
)
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config
from tests.waiting import until

READY = HandshakeReady(512, 65, 16, 1024, 2.0, "float32")
SERVER = 1  # of the API servers; the client's number is one more
TIMEOUT_S = 60


def request(name: str, tokens: int = 3) -> EngineCoreRequest:
    return EngineCoreRequest(name, [1] * tokens, SamplingParams(), 0.0)


class Engines:
    """The other ends of the sockets: two engines that do what a test says, and the coordinator."""

    def __init__(self, addresses: SharedAddresses) -> None:
        self.context = zmq.asyncio.Context()
        self._encode = msgspec.msgpack.Encoder().encode
        self.inputs = [self._socket(zmq.PULL, addresses.requests(SERVER, n)) for n in range(2)]
        self.output = self._socket(zmq.PUSH, addresses.outputs(SERVER))
        self.reports = self.context.socket(zmq.PULL)
        self.reports.bind(addresses.reports)
        self.queues = self.context.socket(zmq.XPUB)
        self.queues.bind(addresses.queues)

    def _socket(self, kind: int, address: str) -> zmq.asyncio.Socket:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.connect(address)
        return socket

    async def take(self, engine: int) -> tuple[RequestType, bytes]:
        kind, payload = await asyncio.wait_for(self.inputs[engine].recv_multipart(), TIMEOUT_S)
        return RequestType(kind), payload

    async def say(self, outputs: EngineCoreOutputs) -> None:
        await self.output.send(self._encode(outputs))

    async def end(self, name: str, engine: int = 0) -> None:
        output = EngineCoreOutput(name, [5], FinishReason.STOP)
        await self.say(EngineCoreOutputs([output], engine_index=engine))

    async def publish(self, stats: QueueStats) -> None:
        await self.queues.send(self._encode(stats))

    async def until_reported(self, *num_requests: int) -> None:
        while (await self.report()).num_requests != list(num_requests):
            pass

    async def report(self) -> ClientReport:
        message = await asyncio.wait_for(self.reports.recv(), TIMEOUT_S)
        return msgspec.msgpack.decode(message, type=ClientReport)


Made = tuple[SharedClient, Engines]
Make = Callable[..., Awaitable[Made]]


@pytest.fixture
async def make(tiny_folder: Path) -> AsyncIterator[Make]:
    addresses = SharedAddresses.create()
    made: list[Made] = []

    async def started(*are_up: bool, **flags: object) -> Made:
        async def go() -> tuple[list[HandshakeReady], tuple[bool, ...]]:
            return [READY, READY], are_up or (True, True)

        config = engine_config(tiny_folder, data_parallel_size=2, **flags)
        engines = Engines(addresses)
        client = SharedClient(config, addresses, SERVER, go)
        made.append((client, engines))
        assert await client.start() == (READY, READY)
        await asyncio.wait_for(engines.queues.recv(), TIMEOUT_S)  # it has subscribed
        return client, engines

    yield started
    for client, engines in made:
        await client.shutdown(0.0)
        engines.context.destroy(linger=0)
    addresses.remove()
    assert not addresses.folder.exists()


async def test_requests_carry_their_clients_number_and_outputs_come_back(make: Make) -> None:
    client, engines = await make()
    await client.add_request(request("a"))
    assert client.engine_of("a") == 1, "servers begin with different engines"
    kind, payload = await engines.take(1)
    sent = msgspec.msgpack.decode(payload, type=EngineCoreRequest)
    assert (kind, sent.request_id, sent.client_index) == (RequestType.ADD, "a", SERVER + 1)
    await engines.end("a", 1)
    outputs = await client.get_output()
    assert [one.request_id for one in outputs.outputs] == ["a"]
    assert outputs.engine_index == 1


async def test_it_reports_what_it_has_sent_where(make: Make) -> None:
    client, engines = await make()
    assert await engines.report() == ClientReport(SERVER + 1, [0, 0])
    for name in "abc":
        await client.add_request(request(name))
    await engines.until_reported(1, 2)
    await engines.end("b")
    while (report := await engines.report()).num_queued_tokens != 6:
        assert report.num_queued_tokens == 9
    await client.abort_requests(["a"])
    await engines.until_reported(0, 1)
    assert (await engines.take(1))[0] is RequestType.ADD
    assert (await engines.take(1))[0] is RequestType.ADD
    assert await engines.take(1) == (RequestType.ABORT, msgspec.msgpack.encode(["a"]))


async def test_what_others_sent_counts_and_its_own_counts_once(make: Make) -> None:
    client, engines = await make()
    others = {SERVER + 1: [9, 9], SERVER + 2: [0, 5]}
    await engines.publish(QueueStats([9, 14], [0, 0], others))
    await until(lambda: client._router.load(1) == 4 * 5)
    for name in "abcde":
        await client.add_request(request(name))
    assert {client.engine_of(name) for name in "abcde"} == {0}


async def test_a_dead_engine_fails_its_own_requests_alone(make: Make) -> None:
    client, engines = await make()
    await client.add_request(request("a"))
    await client.add_request(request("b"))
    asked = asyncio.create_task(client.call_utility("reset_prefix_cache", 1))
    await until(lambda: bool(client._calls))
    client.note_down(1)
    outputs = await client.get_output()
    assert [(one.request_id, one.finish_reason) for one in outputs.outputs] == [
        ("a", FinishReason.ERROR)
    ]
    assert "EngineCore_DP1" in str(outputs.outputs[0].error)
    with pytest.raises(ReplicaDownError, match="EngineCore_DP1 is down"):
        await asked
    with pytest.raises(ReplicaDownError):
        await client.call_utility("reset_prefix_cache", 1)
    for name in "cd":
        await client.add_request(request(name))
        assert client.engine_of(name) == 0
    client.note_up(1)
    await client.add_request(request("e"))
    assert client.engine_of("e") == 1
    await engines.end("b")
    assert (await client.get_output()).outputs[0].request_id == "b"


async def test_a_request_for_an_engine_that_never_takes_it_ends_with_it(make: Make) -> None:
    client, engines = await make()
    for socket in engines.inputs:
        socket.close(linger=0)
    sending = asyncio.create_task(client.add_request(request("a")))
    await until(lambda: client._router.num_requests(1) == 1)
    client.note_down(1)
    await asyncio.wait_for(sending, TIMEOUT_S)
    outputs = await client.get_output()
    assert [one.request_id for one in outputs.outputs] == ["a"]


async def test_calls_are_answered_or_refused(make: Make) -> None:
    client, engines = await make()
    asked = asyncio.create_task(client.call_utility("debug_scheduler", 1))
    _, payload = await engines.take(1)
    call = msgspec.msgpack.decode(payload, type=UtilityRequest)
    assert (call.method, call.client_index) == ("debug_scheduler", SERVER + 1)
    await engines.say(EngineCoreOutputs(utility_output=UtilityOutput(call.call_id, "{}")))
    assert await asked == "{}"
    asked = asyncio.create_task(client.call_utility("nothing"))
    call = msgspec.msgpack.decode((await engines.take(0))[1], type=UtilityRequest)
    answer = UtilityOutput(call.call_id, error="no such method: nothing")
    await engines.say(EngineCoreOutputs(utility_output=answer))
    with pytest.raises(EngineError, match="no such method"):
        await asked


async def test_an_engine_that_was_down_at_the_start_gets_nothing(make: Make) -> None:
    client, _ = await make(False, True)
    for name in "ab":
        await client.add_request(request(name))
        assert client.engine_of(name) == 1


async def test_without_any_engine_whoever_waits_is_told(make: Make) -> None:
    client, _ = await make()
    waiting = asyncio.create_task(client.get_output())
    client.note_dead(EngineDeadError("both are gone"))
    with pytest.raises(EngineDeadError, match="both are gone"):
        await waiting
    for _again in range(2):
        with pytest.raises(EngineDeadError, match="both are gone"):
            await client.get_output()
    with pytest.raises(EngineDeadError):
        await client.add_request(request("a"))


async def test_prefixes_are_shared_among_api_servers(make: Make) -> None:
    client, engines = await make(data_parallel_routing="prefix")
    await engines.report()
    await client.add_request(request("a", tokens=40))
    ((first, rank), (second, _)) = (await engines.report()).prefixes
    assert rank == client.engine_of("a") == 1
    assert first != second, "two blocks of 16 tokens"
    await client.abort_requests(["a"])
    elsewhere = EngineCoreRequest("b", [2] * 40, SamplingParams(), 0.0)
    assert client._affinity is not None
    hashes = client._affinity.hashes(elsewhere)
    news = [(one, 1) for one in hashes]
    await engines.publish(QueueStats([0, 0], [0, 0], {}, news))
    await until(lambda: client._affinity is not None and bool(client._affinity.ranks(hashes)))
    await client.add_request(elsewhere)
    assert client.engine_of("b") == 1, "it was 0's turn"


async def test_a_new_coordinator_that_has_not_heard_of_it_is_told(make: Make) -> None:
    client, engines = await make()
    await client.add_request(request("a"))
    await engines.until_reported(0, 1)
    await engines.publish(QueueStats([0, 0], [0, 0], {SERVER + 2: [3, 0]}))
    assert (await engines.report()).num_requests == [0, 1]
    assert client._router.load(0) == 4 * 3
    client.note_no_coordinator()
    assert [client._router.load(rank) for rank in (0, 1)] == [0, 4], "its own count alone"


async def test_reports_that_nobody_reads_are_bounded_and_the_last_one_is_not_lost(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, engines = await make()
    await engines.report()
    monkeypatch.setattr(shared_client, "_REPORT_S", 0.0)
    address = engines.reports.get_string(zmq.LAST_ENDPOINT)
    engines.reports.close(linger=0)
    while int(client._reports.get(zmq.EVENTS)) & zmq.POLLOUT:
        client._has_changed.set()
        await asyncio.sleep(0)
    await client.add_request(request("a"))
    engines.reports = engines.context.socket(zmq.PULL)
    engines.reports.bind(address)
    await engines.until_reported(0, 1)


async def test_a_real_engine_works_for_who_started_it_and_for_an_api_server(
    tiny_folder: Path,
) -> None:
    addresses, config = SharedAddresses.create(), engine_config(tiny_folder)
    owner = create_client(config, links=[addresses.links(1, 0)])
    readies = await owner.start()

    async def go() -> tuple[tuple[HandshakeReady, ...], tuple[bool, ...]]:
        return readies, (True,)

    client = SharedClient(config, addresses, 0, go)
    await client.start()
    try:
        long = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
        for number in range(20):
            await client.add_request(EngineCoreRequest(f"r{number}", [1, 2, 3], long, 0.0))
        outputs = await asyncio.wait_for(client.get_output(), TIMEOUT_S)
        assert outputs.outputs[0].new_token_ids
        told = await asyncio.wait_for(owner.get_output(), TIMEOUT_S)
        assert told == EngineCoreOutputs(), "that it works, and nothing of the requests"
        reading = asyncio.create_task(owner.get_output())
        assert await asyncio.wait_for(owner.call_utility(f"{ABORT_CLIENT}1"), TIMEOUT_S) is True
        assert await owner.call_utility(f"{ABORT_CLIENT}1") is False, "they are all gone"
        emptied = client.call_utility("reset_prefix_cache")
        assert await asyncio.wait_for(emptied, TIMEOUT_S) is True
        assert not reading.done()
        reading.cancel()
    finally:
        await client.shutdown(0.0)
        await owner.shutdown(0.0)
        addresses.remove()
