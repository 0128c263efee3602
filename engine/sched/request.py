"""Request: one sequence as the scheduler sees it, its status and its block hashes. No torch."""

from __future__ import annotations

import enum
import time

from engine.messages import (
    EngineCoreEvent,
    EngineCoreRequest,
    EventType,
    FinishReason,
    PrefixMiss,
)
from engine.sampling_params import SamplingParams
from engine.sched.block_hash import BlockHash, hash_block, image_keys
from engine.sched.grammar import Grammar


class RequestStatus(enum.IntEnum):
    """Life of a request; everything after PREEMPTED is finished (vLLM's v1/request.py)."""

    WAITING = 0
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_ABORTED = 6
    FINISHED_ERROR = 7

    @property
    def is_finished(self) -> bool:
        """True for every status after PREEMPTED."""
        return self > RequestStatus.PREEMPTED

    @property
    def finish_reason(self) -> FinishReason | None:
        """What the client is told; None while the request lives."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}


class Request:
    """State that changes every step, so a slotted class rather than a frozen value.

    `num_computed_tokens` counts tokens whose KV exists or is being computed by the scheduled step.
    `num_output_placeholders` counts tokens that steps under way will bring, where a request is
    scheduled before they are known. `block_hashes` covers every full block of
    `token_ids`, in order. `grammar` is None for requests without structured output.
    """

    __slots__ = (
        "arrival_time",
        "asks_logprobs",
        "block_hashes",
        "block_size",
        "cache_salt",
        "eos_token_ids",
        "error",
        "events",
        "first_token_time",
        "grammar",
        "images",
        "lora_id",
        "max_tokens",
        "message_digests",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_output_placeholders",
        "num_passes",
        "num_preemptions",
        "num_prompt_tokens",
        "place",
        "pooling",
        "prefix_miss",
        "priority",
        "request_id",
        "sampling_params",
        "status",
        "stop_reason",
        "token_ids",
    )

    def __init__(
        self,
        message: EngineCoreRequest,
        block_size: int,
        *,
        hash_blocks: bool,
        grammar: Grammar | None = None,
    ) -> None:
        self.request_id = message.request_id
        self.sampling_params: SamplingParams = message.sampling_params
        self.eos_token_ids = message.eos_token_ids
        self.priority = message.priority
        self.pooling = message.pooling
        self.arrival_time = message.arrival_time
        self.first_token_time: float | None = None
        self.lora_id = message.lora.lora_id if message.lora else 0  # 0: without an adapter
        self.cache_salt = message.prefix_salt
        self.message_digests = message.message_digests
        self.images = message.images
        self.token_ids = list(message.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        params = message.sampling_params
        self.asks_logprobs = params.logprobs is not None or params.prompt_logprobs is not None
        max_tokens = 0 if message.pooling else message.sampling_params.max_tokens
        assert max_tokens is not None, "the front end resolves max_tokens"
        self.max_tokens = max_tokens
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.num_passes = 0  # of later requests, while there was no room for its adapter
        self.num_cached_tokens: int | None = None  # hits at first admission
        self.prefix_miss: PrefixMiss | None = None
        self.num_preemptions = 0
        self.place = 0  # the scheduler numbers requests as they come
        self.grammar = grammar
        self.stop_reason: int | None = None
        self.error: str | None = None  # what the client is told when the request fails
        self.events: list[EngineCoreEvent] = []
        self.block_size = block_size if hash_blocks else 0
        self.block_hashes: list[BlockHash] = []
        self._extend_block_hashes()

    @property
    def num_tokens(self) -> int:
        """Prompt plus output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def needs_whole_prompt(self) -> bool:
        """True when cached tokens are computed again: their logits and hidden states are gone."""
        if self.pooling is not None:
            return self.pooling.needs_every_token
        return self.sampling_params.prompt_logprobs is not None

    @property
    def sort_key(self) -> tuple[int, float, str]:
        """Order under the priority policy; smaller is served sooner."""
        return (self.priority, self.arrival_time, self.request_id)

    def without_cut_images(self, start: int, count: int, most: int) -> int:
        """How many tokens from `start` on a step may take in place of `count`, so that no image's
        end is cut off: up to the image, or all of it if it comes first and is within `most`.

        The tokens of an image see each other, so they are computed in one step.
        """
        end = start + count
        for image in self.images:
            if image.offset < end < image.end:
                if image.offset > start:
                    return image.offset - start
                return image.end - start if image.end - start <= most else 0
        return count

    def append_output(self, token_id: int) -> None:
        """Add a generated token and hash the block that it fills."""
        self.token_ids.append(token_id)
        if self.first_token_time is None:
            self.first_token_time = time.time()  # the clock of `arrival_time`
        if self.block_size and len(self.token_ids) // self.block_size > len(self.block_hashes):
            self._extend_block_hashes()

    def record_event(self, kind: EventType) -> None:
        """Note an event with the monotonic clock; it leaves with the next output."""
        self.events.append(EngineCoreEvent(kind, time.monotonic()))

    def take_events(self) -> list[EngineCoreEvent] | None:
        """Events since the last call, None when there are none."""
        if not self.events:
            return None
        events, self.events = self.events, []
        return events

    def _extend_block_hashes(self) -> None:
        size = self.block_size
        if not size:
            return
        hashes, tokens = self.block_hashes, self.token_ids
        for start in range(len(hashes) * size, len(tokens) - size + 1, size):
            parent = hashes[-1] if hashes else None
            salt = self.cache_salt if start == 0 else None
            images = image_keys(self.images, start, size) if self.images else b""
            hashes.append(hash_block(parent, tokens[start : start + size], salt, images))
