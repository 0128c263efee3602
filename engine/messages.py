"""What the API server and EngineCore say to each other: msgspec structs, sent as msgpack over ZMQ.

Field names follow vLLM's v1/engine/__init__.py. Text never travels: tokenising and detokenising
happen in the API server. A frame on the input socket is (request type byte, payload).
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable, Iterator

import msgspec

from engine.config import EngineConfig
from engine.lora_adapters import LoraRequest
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams


class RequestType(bytes, enum.Enum):
    """First frame of a message to EngineCore (values of vLLM's EngineCoreRequestType)."""

    ADD = b"\x00"
    ABORT = b"\x01"
    UTILITY = b"\x03"


class FinishReason(enum.IntEnum):
    """Why a request ended; `str()` gives OpenAI's word (stop, length, abort, error)."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


class EventType(enum.IntEnum):
    """Scheduler events of one request."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class ImageInput(msgspec.Struct, array_like=True, frozen=True):
    """One image of a prompt: its soft tokens' place among the prompt's, and what the tower sees.

    `pixels` are little-endian float32 in the order of `shape` (channels, height, width), as the
    model's processor leaves them. `digest` is SHA-256 of both: equal images have equal ones.
    """

    offset: int  # of the first soft token in `prompt_token_ids`
    num_tokens: int
    digest: bytes
    pixels: bytes
    shape: tuple[int, int, int]

    @property
    def end(self) -> int:
        """Place behind its last soft token."""
        return self.offset + self.num_tokens


class EngineCoreRequest(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """One request as EngineCore sees it. `sampling_params.max_tokens` is already resolved (never
    None).

    `eos_token_ids` is empty when the request ignores EOS. `arrival_time` is wall clock, seconds.
    With `pooling` the prompt becomes a vector; nothing is generated, so there is no `max_tokens`.
    `message_digests`, one per message of a chat, tell the same messages from others. `images` stand
    in the order of the prompt, and do not overlap.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float
    eos_token_ids: tuple[int, ...] = ()
    cache_salt: str | None = None
    priority: int = 0
    pooling: PoolingParams | None = None
    message_digests: tuple[bytes, ...] = ()
    client_index: int = 0  # which of EngineCore's clients gets the outputs
    lora: LoraRequest | None = None
    images: tuple[ImageInput, ...] = ()

    @property
    def prefix_salt(self) -> str | None:
        """What keys and values depend on besides the tokens: the cache salt and the adapter."""
        salt = self.cache_salt
        if salt is not None and salt.startswith("\0"):  # else it could look like an adapter's
            salt = f"\0{salt}"
        return salt if self.lora is None else f"\0lora{self.lora.lora_id}\0{salt or ''}"


class EngineCoreEvent(msgspec.Struct, array_like=True, frozen=True):
    """A scheduler event with EngineCore's monotonic clock, seconds."""

    type: EventType
    timestamp: float


class MissCause(str, enum.Enum):
    """What kept a prompt's tokens from being found in the prefix cache."""

    NO_PREDECESSOR = "no_predecessor"  # no earlier request that is remembered begins alike
    OTHER_TEXT = "other_text"
    OTHER_IMAGE = "other_image"
    REWRITTEN_ANSWER = "rewritten_answer"  # it differs inside what the model had answered
    RENDERED_ANEW = "rendered_anew"  # the same messages, and the template made other text of them
    PARTIAL_BLOCK = "partial_block"  # only full blocks can be found, and the last token never
    NOT_COMPUTED = "not_computed"  # the earlier request is not that far itself
    EVICTED = "evicted"
    EMPTIED = "emptied"  # the whole cache was, by a client or for the server's sleep
    OTHER_SALT = "other_salt"
    OTHER_ADAPTER = "other_adapter"


class PrefixMiss(msgspec.Struct, array_like=True, frozen=True):
    """How the prompt compares with the earlier request that shares most of its beginning.

    `num_matched_tokens` is also the place of the first token that differs, counted from 0;
    `num_lost_tokens` of the matched ones were not in the cache.
    """

    cause: MissCause
    num_matched_tokens: int
    num_lost_tokens: int


class PrefillStats(msgspec.Struct, array_like=True, frozen=True):
    """Where the prompt's KV came from; sent once, with the first token.

    `miss` is None without a prefix cache, and where nothing was lost.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    miss: PrefixMiss | None = None


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log probabilities at one position under the raw distribution (before any setting acts).

    The token that stands there comes first, then the most likely ones, best first; the first may
    appear again among them. `rank` is the first one's, 1 being the most likely.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class PackedLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """TokenLogprobs of many positions, `width` entries each, as three arrays of the machine's kind.

    4-byte integers and floats: a long prompt has millions of entries, which as objects would take
    ten times the memory, and a tenth of a second to read out of a message.
    """

    width: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes  # one per position

    @classmethod
    def pack(cls, entries: Iterable[TokenLogprobs], width: int) -> PackedLogprobs:
        """Those of `entries`, all `width` wide."""
        ids, values, ranks = array("i"), array("f"), array("i")
        for entry in entries:
            ids.extend(entry.token_ids)
            values.extend(entry.logprobs)
            ranks.append(entry.rank)
        return cls(width, ids.tobytes(), values.tobytes(), ranks.tobytes())

    def __len__(self) -> int:
        return len(self.ranks) // 4

    def __iter__(self) -> Iterator[TokenLogprobs]:
        ids, values, ranks = array("i"), array("f"), array("i")
        ids.frombytes(self.token_ids)
        values.frombytes(self.logprobs)
        ranks.frombytes(self.ranks)
        for index, rank in enumerate(ranks):
            part = slice(index * self.width, (index + 1) * self.width)
            yield TokenLogprobs(ids[part].tolist(), values[part].tolist(), rank)


class EngineCoreOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """New tokens of one request from one step. `stop_reason` is the stop token id, None for EOS.

    `logprobs` runs parallel to `new_token_ids`. `prompt_logprobs` comes once, with the first token,
    and begins with the prompt's second token. `pooling_output`, little-endian float32, is the whole
    answer to a request with pooling.
    """

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    events: list[EngineCoreEvent] | None = None
    prefill_stats: PrefillStats | None = None
    num_preemptions: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: PackedLogprobs | None = None
    pooling_output: bytes | None = None
    error: str | None = None  # why `finish_reason` is ERROR or ABORT, for the client


class DraftStats(msgspec.Struct, array_like=True, frozen=True):
    """Drafts that steps tried since the previous message, and how many of their tokens were kept.

    `accepted_by_place` counts how often the first, the second, ... token of a draft was kept.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_by_place: list[int]


class GraphStats(msgspec.Struct, array_like=True, frozen=True):
    """Steps of a device that records CUDA graphs since the previous message.

    `replayed` counts those of each mode (FULL, PIECEWISE); their tokens include padding.
    """

    num_steps: int
    replayed: dict[str, int]
    num_graph_tokens: int
    num_padding_tokens: int


class SchedulerStats(msgspec.Struct, array_like=True, frozen=True):
    """State after one step. Gauges are snapshots.

    `*_delta` fields count since the previous message.
    """

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0  # 0..1 of usable blocks (the null block is not counted)
    num_free_blocks: int = 0
    num_cached_blocks: int = 0  # blocks that carry a prefix-cache hash, free ones included
    num_preemptions_delta: int = 0
    prefix_cache_queries_delta: int = 0  # tokens
    prefix_cache_hits_delta: int = 0  # tokens
    num_scheduled_tokens: int = 0  # computed in this step
    drafts: DraftStats | None = None  # None where there are none
    graphs: GraphStats | None = None  # None where nothing is recorded
    sleep_level: int = 0  # 0 is awake
    num_taking_turns: int = 0  # waiting ones that nothing but the prompts before them holds up

    @property
    def num_waiting_for_room(self) -> int:
        """The other waiting ones: no place, no memory or no grammar is there yet."""
        return max(0, self.num_waiting_reqs - self.num_taking_turns)


class EngineCoreOutputs(msgspec.Struct, array_like=True, omit_defaults=True):
    """One message per step. `timestamp` is EngineCore's monotonic clock, seconds.

    `engine_index` says which of several replicas it came from.
    """

    outputs: list[EngineCoreOutput] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    utility_output: UtilityOutput | None = None
    engine_dead: bool = False
    engine_index: int = 0


class EngineStats(msgspec.Struct, array_like=True, frozen=True):
    """EngineCore -> DPCoordinator, after each step: its state and the tokens of the step.

    A prompt counts when its first token appears, `num_cached_tokens` of it included.
    """

    engine_index: int
    scheduler: SchedulerStats
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0


MOST_UNREAD = 1000
"""Messages to the DPCoordinator that a process keeps while there is none."""


class ClientReport(msgspec.Struct, array_like=True, frozen=True):
    """API server -> DPCoordinator: its unfinished requests on each engine, and which engine it gave
    which first blocks of prompts since its last report.
    """

    client_index: int
    num_requests: list[int]
    prefixes: list[tuple[bytes, int]] = []
    num_queued_tokens: int = 0  # of prompts without any output


class QueueStats(msgspec.Struct, array_like=True, frozen=True):
    """DPCoordinator -> API servers: every engine's queues, and what each server has sent there.

    `num_requests` and `num_queued_tokens` are what each `client_index` reported. `num_waiting` are
    those that wait for room (`SchedulerStats.num_waiting_for_room`).
    """

    num_waiting: list[int]
    num_running: list[int]
    num_requests: dict[int, list[int]]
    prefixes: list[tuple[bytes, int]] = []
    num_queued_tokens: dict[int, int] = {}
    sleep_levels: list[int] = []


LOAD_ADAPTER, UNLOAD_ADAPTER = "load_adapter:", "unload_adapter:"
"""Methods of EngineCore: behind them a LoraRequest as JSON, and a `lora_id`."""


SLEEP, WAKE_UP = "sleep:", "wake_up:"
"""The same with a SleepCall as JSON, and with tags between commas, none for all."""

TELL_SLEEP = "tell_sleep"
"""Has an engine that sleeps, and so makes no step, tell its state to a new coordinator."""

SLEEP_TAGS = ("weights", "kv_cache")
SLEEP_MODES = ("abort", "wait", "keep")
SLEEP_LEVELS = (1, 2)
ASLEEP = (
    "The server sleeps and generates nothing: wake it with `stoker wake` or POST /wake_up, then "
    "send the request again."
)
"""What the client of a request is told, wherever it is refused."""


class SleepCall(msgspec.Struct, frozen=True):
    """How deep to sleep (1: weights go to the host's memory, 2: they are dropped), and what becomes
    of the requests that are there: they are ended, finished first, or kept and computed anew.
    """

    level: int = 1
    mode: str = "abort"


class UtilityRequest(msgspec.Struct, array_like=True, frozen=True):
    """Call of a named EngineCore method, answered by a UtilityOutput with the same `call_id`."""

    call_id: int
    method: str
    client_index: int = 0


class UtilityOutput(msgspec.Struct, array_like=True, frozen=True):
    """Answer to a UtilityRequest; `error` is None on success."""

    call_id: int
    result: bool | int | float | str | None = None
    error: str | None = None


class HandshakeHello(msgspec.Struct, tag=True, frozen=True):
    """EngineCore -> client: I am up and want my configuration."""

    pid: int


class CoreLinks(msgspec.Struct, array_like=True, frozen=True):
    """Addresses at which one EngineCore finds those that it works for.

    `clients` are pairs of an address for requests and one for outputs; a client's number is its
    `client_index`, 0 being the one that started the engine. `stats` is where the DPCoordinator
    listens, None where the one client gets the statistics with its outputs.
    """

    clients: tuple[tuple[str, str], ...] = ()
    stats: str | None = None


class HandshakeInit(msgspec.Struct, tag=True, frozen=True):
    """Client -> EngineCore: the configuration and the socket addresses of this start."""

    config: EngineConfig
    links: CoreLinks


class HandshakeReady(msgspec.Struct, tag=True, frozen=True):
    """EngineCore -> client: the model is loaded and the KV cache allocated."""

    max_model_len: int
    num_gpu_blocks: int  # the null block included
    block_size: int
    kv_cache_size_tokens: int
    kv_cache_max_concurrency: float
    dtype: str
    max_joint_prefill_tokens: int | None = None  # of several prompts in one step


class HandshakeDead(msgspec.Struct, tag=True, frozen=True):
    """EngineCore -> client: the start failed; `kind` is the error class, `message` its text."""

    kind: str
    message: str


Handshake = HandshakeHello | HandshakeInit | HandshakeReady | HandshakeDead
