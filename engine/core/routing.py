"""Router: which of several engines gets a request. Talks to none of them.

The least loaded one does, where a waiting request counts four times a running one (vLLM's rule,
DPLBAsyncMPClient in v1/engine/core_client.py). With prefix affinity the one goes first that served
the request's first blocks, for as long as it has not much more to do than the least loaded one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.messages import EngineCoreRequest
from engine.sched.block_hash import BlockHash, hash_block, image_keys

_WAITING_WEIGHT = 4
"""A waiting request counts as this many running ones (vLLM)."""

AFFINITY_SLACK = 16
"""How much more load than the least loaded engine one may have that served a prefix: four waiting
requests."""

_MOST_BLOCKS = 64
"""Of a prompt that are compared: what lies behind them seldom tells two requests apart."""

_MOST_PREFIXES = 1 << 16
"""Blocks that are remembered, 100 bytes or so each; the oldest are forgotten."""

_MOST_NEWS = 4096


@dataclass(slots=True)
class _Place:
    is_up: bool = True
    request_ids: set[str] = field(default_factory=set)
    num_elsewhere: int = 0  # requests that others sent there
    num_running: int = 0  # of all of them, as of the engine's last word

    @property
    def load(self) -> int:
        waiting = max(0, len(self.request_ids) + self.num_elsewhere - self.num_running)
        return _WAITING_WEIGHT * waiting + self.num_running


class Router:
    """Chooses among `size` engines and knows which has which request."""

    def __init__(self, size: int, affinity: PrefixAffinity | None = None, first: int = 0) -> None:
        """`first` is the engine that is next in turn among equally loaded ones."""
        self._places = [_Place() for _ in range(size)]
        self._ranks: dict[str, int] = {}
        self._affinity = affinity
        self._next = first % size

    def __len__(self) -> int:
        return len(self._places)

    @property
    def num_up(self) -> int:
        return sum(place.is_up for place in self._places)

    def is_up(self, rank: int) -> bool:
        """Whether the engine takes requests."""
        return self._places[rank].is_up

    def load(self, rank: int) -> int:
        """Four times the requests that wait there, and those that run."""
        return self._places[rank].load

    def num_requests(self, rank: int) -> int:
        """Requests placed there that have not ended."""
        return len(self._places[rank].request_ids)

    def place(self, request: EngineCoreRequest) -> int | None:
        """Choose the engine for a request, which stays there; None when none is up."""
        size = len(self._places)
        order = [(self._next + step) % size for step in range(size)]
        living = [rank for rank in order if self._places[rank].is_up]
        if not living:
            return None
        rank = self._preferred(request, living)
        self._next = (rank + 1) % size
        self._places[rank].request_ids.add(request.request_id)
        self._ranks[request.request_id] = rank
        return rank

    def rank_of(self, request_id: str) -> int | None:
        """The engine that has the request; None for one that is not known."""
        return self._ranks.get(request_id)

    def forget(self, request_id: str) -> None:
        """The request has ended, so it is no load any more."""
        rank = self._ranks.pop(request_id, None)
        if rank is not None:
            self._places[rank].request_ids.discard(request_id)

    def note_running(self, rank: int, num_running: int) -> None:
        """What the engine said that it runs."""
        self._places[rank].num_running = num_running

    def note_elsewhere(self, rank: int, num_requests: int) -> None:
        """Requests that others have sent to the engine."""
        self._places[rank].num_elsewhere = num_requests

    def note_down(self, rank: int) -> list[str]:
        """The engine is gone; ids of the requests that are lost with it, which are forgotten."""
        place = self._places[rank]
        lost = sorted(place.request_ids)
        for request_id in lost:
            self.forget(request_id)
        place.is_up, place.num_running, place.num_elsewhere = False, 0, 0
        if self._affinity is not None:
            self._affinity.forget(rank)
        return lost

    def note_up(self, rank: int) -> None:
        """The engine takes requests again."""
        self._places[rank].is_up = True

    def _preferred(self, request: EngineCoreRequest, living: Sequence[int]) -> int:
        least = min(living, key=self.load)
        if self._affinity is None:
            return least
        hashes = self._affinity.hashes(request)
        known = self._affinity.ranks(hashes)
        warm = [rank for rank in living if rank in known]
        chosen = min(warm, key=self.load) if warm else least
        if self.load(chosen) > self.load(least) + AFFINITY_SLACK:
            chosen = least
        self._affinity.note(hashes, chosen)
        return chosen


class PrefixAffinity:
    """Which engines were given which first blocks of prompts, `block_size` tokens each."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ranks: OrderedDict[BlockHash, frozenset[int]] = OrderedDict()
        self._news: deque[tuple[BlockHash, int]] = deque(maxlen=_MOST_NEWS)

    def hashes(self, request: EngineCoreRequest) -> list[BlockHash]:
        """Of the prompt's first full blocks, each with all that comes before it."""
        tokens, size = request.prompt_token_ids, self._block_size
        found: list[BlockHash] = []
        for end in range(size, min(len(tokens), size * _MOST_BLOCKS) + 1, size):
            parent = found[-1] if found else None
            salt = None if found else request.prefix_salt  # as the engine's own prefix cache does
            images = image_keys(request.images, end - size, size)
            found.append(hash_block(parent, tokens[end - size : end], salt, images))
        return found

    def ranks(self, hashes: Sequence[BlockHash]) -> frozenset[int]:
        """The engines that were given the most of these blocks."""
        for one in reversed(hashes):
            if found := self._ranks.get(one):
                return found
        return frozenset()

    def note(self, hashes: Iterable[BlockHash], rank: int) -> None:
        """The engine is given a prompt with these blocks."""
        for one in hashes:
            if rank not in self._ranks.get(one, ()):
                self._news.append((one, rank))
            self._add(one, rank)

    def take_news(self) -> list[tuple[BlockHash, int]]:
        """What `note` has learnt since the last call."""
        news = list(self._news)
        self._news.clear()
        return news

    def learn(self, news: Iterable[tuple[BlockHash, int]]) -> None:
        """Take in which blocks other API servers have sent where."""
        for one, rank in news:
            self._add(one, rank)

    def forget(self, rank: int) -> None:
        """The engine's cache is gone."""
        for one, ranks in self._ranks.items():
            self._ranks[one] = ranks - {rank}

    def _add(self, one: BlockHash, rank: int) -> None:
        self._ranks[one] = self._ranks.get(one, frozenset()) | {rank}
        self._ranks.move_to_end(one)
        if len(self._ranks) > _MOST_PREFIXES:
            self._ranks.popitem(last=False)
