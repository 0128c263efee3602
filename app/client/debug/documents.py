"""Our engine's /debug answers: the newest step, the live requests, the block map; ending a request.

Other engines have no such endpoints. Text from the server is stripped of escape sequences.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from app.client.debug.prefix_miss import PrefixMiss, read_prefix_miss
from app.client.debug.ranks import RankReading, read_ranks
from app.client.debug.trace import Trace, read_trace
from app.client.errors import BadAnswer, status_error
from app.client.metrics.slots import Slot, read_slots
from app.client.terminal_text import strip_escapes
from app.client.transport import connection_errors, normalise_base_url, open_async_client

if TYPE_CHECKING:
    import httpx

DOCUMENTS = ("scheduler", "requests", "blocks")
_MOST_BLOCKS = 1 << 20


class BlockState(enum.IntEnum):
    """What one KV block is at the moment."""

    FREE = 0
    CACHED = 1  # nobody holds it, but its prefix can still be found
    USED = 2
    SHARED = 3  # used by more than one request


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMap:
    """Every block of the pool. `states` is one BlockState per block, empty if not sent.

    `num_used` counts shared blocks once. `free_queue` holds ids, the next one to be handed out
    first.
    """

    num_blocks: int
    block_size: int
    num_used: int
    num_cached: int | None = None
    num_free: int | None = None
    num_unused_slots: int | None = None  # reserved, and no token in them yet
    first_block: int = 1
    states: bytes = b""
    free_queue: tuple[int, ...] = ()
    owners: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def num_before_eviction(self) -> int | None:
        """Blocks that can be handed out before a cached prefix is lost; None: there is none."""
        for number, block in enumerate(self.free_queue):
            if self.states[block - self.first_block] == BlockState.CACHED:
                return number
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """One request that the engine knows. `place` counts from 1 and is None unless it queues."""

    id: str
    state: str
    place: int | None
    age_s: float
    prompt_tokens: int
    prompt_tokens_done: int
    output_tokens: int
    max_tokens: int
    blocks: int
    cached_tokens: int | None
    preemptions: int
    client: str | None = None
    first_token_s: float | None = None  # after the arrival; None before it, or if not told
    prefix_miss: PrefixMiss | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Output after the first token, on average so far."""
        if self.first_token_s is None or self.output_tokens < 2:
            return None
        seconds = self.age_s - self.first_token_s
        return (self.output_tokens - 1) / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """The newest step, as it was planned. `limit` is what kept it from doing more."""

    num_requests: int
    num_decode_tokens: int
    num_prefill_tokens: int
    num_preempted: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    limit: str
    next_waiting_blocks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """Limits, queue lengths and the newest step; `step` is None before the first.

    It is that of one `engine`, counted from 0, of the server's `num_engines` replicas. `ranks` is
    empty where one process does all.
    """

    num_running: int
    num_waiting: int
    num_waiting_for_grammar: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    num_steps: int
    last_step_age_s: float
    step: EngineStep | None
    engine: int = 0
    num_engines: int = 1
    ranks: tuple[RankReading, ...] = ()

    @property
    def num_unfinished(self) -> int:
        """Requests that run or wait."""
        return self.num_running + self.num_waiting + self.num_waiting_for_grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugSample:
    """All of it at `time_s` (monotonic clock)."""

    time_s: float
    scheduler: SchedulerState
    requests: tuple[LiveRequest, ...]
    num_not_listed: int
    blocks: BlockMap


class DebugSource:
    """One kept-alive connection to /debug, opened when it is first used.

    `engine` is the replica whose scheduler and blocks are asked for; requests come from all.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 5.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._base_url = normalise_base_url(base_url)
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self.engine = 0

    async def fetch(self) -> DebugSample:
        """Ask for all three documents; ClientError when one cannot be had."""
        return read_debug(await self.fetch_documents(), time.monotonic())

    async def fetch_documents(self) -> dict[str, Any]:
        """The three documents as they came, by the last part of their path."""
        which = f"?engine={self.engine}" if self.engine else ""
        return {name: await self._json("GET", f"/debug/{name}{which}") for name in DOCUMENTS}

    async def cancel(self, request_id: str) -> None:
        """End one request; BadStatus 404 when it has ended already."""
        await self._json("DELETE", f"/debug/requests/{quote(request_id, safe='')}")

    async def trace(self, request_id: str) -> Trace:
        """When what was done for one request; BadStatus 404 when no times of it are kept."""
        path = f"/debug/requests/{quote(request_id, safe='')}/trace"
        return read_trace(await self._json("GET", path))

    async def slots(self) -> tuple[Slot, ...]:
        """What llama-server's slots work on; other servers have none."""
        return read_slots(await self.slots_document())

    async def slots_document(self) -> Any:
        """The answer of llama-server's GET /slots as it came."""
        return await self._json("GET", "/slots")

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _json(self, method: str, path: str) -> Any:
        if self._client is None:
            self._client = open_async_client(
                self._base_url,
                api_key=self._api_key,
                timeout_s=self._timeout_s,
                transport=self._transport,
            )
        with connection_errors(self._base_url):
            response = await self._client.request(method, path)
        if response.is_error:
            raise status_error(str(response.url), response.status_code, response.text)
        try:
            return response.json()
        except ValueError as error:
            raise BadAnswer(f"{response.url} did not answer with JSON") from error


def read_debug(documents: Mapping[str, Any], time_s: float) -> DebugSample:
    """The sample that the three documents make; BadAnswer when one is not as it should be."""
    requests, num_not_listed = read_requests(documents.get("requests"))
    return DebugSample(
        time_s=time_s,
        scheduler=read_scheduler(documents.get("scheduler")),
        requests=requests,
        num_not_listed=num_not_listed,
        blocks=read_block_map(documents.get("blocks")),
    )


def read_scheduler(document: Any) -> SchedulerState:
    apart = ("step", "last_step_age_s", "engine", "num_engines", "ranks")
    try:
        step = document["last_step"]
        return SchedulerState(
            **_numbers(document, SchedulerState, leave_out=apart),
            last_step_age_s=float(document["last_step_age_s"]),
            step=None if step is None else _read_step(step),
            engine=int(document.get("engine", 0)),
            num_engines=int(document.get("num_engines", 1)),
            ranks=read_ranks(document.get("ranks")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _bad("scheduler") from error


def _read_step(document: Any) -> EngineStep:
    optional = ("next_waiting_blocks",)
    return EngineStep(
        **_numbers(document, EngineStep, leave_out=("limit", *optional)),
        **_optional_numbers(document, optional),
        limit=strip_escapes(str(document["limit"])),
    )


def read_requests(document: Any) -> tuple[tuple[LiveRequest, ...], int]:
    """The answer of /debug/requests: the requests, and how many more there are."""
    try:
        found = tuple(_read_request(entry) for entry in document["data"])
        return found, int(document["num_not_listed"])
    except (KeyError, TypeError, ValueError) as error:
        raise _bad("requests") from error


_REQUEST_WORDS = ("id", "state", "age_s", "client", "first_token_s", "prefix_miss")


def _optional_seconds(value: Any) -> float | None:
    return None if value is None else float(value)


def _read_request(entry: Any) -> LiveRequest:
    optional = ("place", "cached_tokens")
    return LiveRequest(
        **_numbers(entry, LiveRequest, leave_out=(*_REQUEST_WORDS, *optional)),
        **_optional_numbers(entry, optional),
        id=strip_escapes(str(entry["id"])),
        state=strip_escapes(str(entry["state"])),
        age_s=float(entry["age_s"]),
        client=strip_escapes(str(entry["client"])) if entry.get("client") else None,
        first_token_s=_optional_seconds(entry.get("first_token_s")),
        prefix_miss=read_prefix_miss(entry.get("prefix_miss")),
    )


def read_block_map(document: Any) -> BlockMap:
    try:
        counts: dict[str, Any] = {
            key: int(document[key]) for key in ("num_blocks", "block_size", "num_used")
        }
        if document.get("num_unused_slots") is not None:
            counts["num_unused_slots"] = int(document["num_unused_slots"])
        if not document["is_mapped"]:
            return BlockMap(**counts)
        return _mapped(document, counts)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _bad("blocks") from error


def _mapped(document: Any, counts: dict[str, Any]) -> BlockMap:
    first, num_blocks = int(document["first_block"]), counts["num_blocks"]
    if num_blocks > _MOST_BLOCKS:
        raise ValueError("no map is as large")
    known = range(first, first + num_blocks)
    owners = {
        strip_escapes(str(key)): tuple(_expand(runs, known))
        for key, runs in document["owners"].items()
    }
    states = bytearray(num_blocks)
    for held in owners.values():
        for block in held:
            is_held = states[block - first] >= BlockState.USED
            states[block - first] = BlockState.SHARED if is_held else BlockState.USED
    num_cached = 0
    for block in _expand(document["findable"], known):
        if states[block - first] == BlockState.FREE:
            states[block - first] = BlockState.CACHED
            num_cached += 1
    free_queue = tuple(_expand(document["free_queue"], known))
    return BlockMap(
        **counts,
        num_cached=num_cached,
        num_free=len(free_queue) - num_cached,
        first_block=first,
        states=bytes(states),
        free_queue=free_queue,
        owners=owners,
    )


def _expand(runs: Iterable[Any], known: range) -> Iterator[int]:
    for first, length in runs:
        blocks = range(first, first + length, 1 if length > 0 else -1)
        if not blocks or blocks[0] not in known or blocks[-1] not in known:
            raise ValueError("blocks that are not in the pool")
        yield from blocks


def _numbers(document: Any, kind: type, *, leave_out: Iterable[str]) -> dict[str, Any]:
    names = set(kind.__dataclass_fields__) - set(leave_out)  # type: ignore[attr-defined]
    return {name: int(document[name]) for name in names}


def _optional_numbers(document: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: None if document[name] is None else int(document[name]) for name in names}


def _bad(what: str) -> BadAnswer:
    return BadAnswer(f"/debug/{what} answered in a form that this version does not know")
