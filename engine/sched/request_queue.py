"""Waiting queues: first come first served, and priority.

Both give O(log n) or better per operation.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from engine.sched.request import Request


class RequestQueue(Protocol):
    """Order in which waiting requests are admitted."""

    def add(self, request: Request) -> None:
        """A new request."""

    def add_preempted(self, request: Request) -> None:
        """A preempted request: it comes back before new ones of its rank."""

    def peek(self) -> Request:
        """The request that is next."""

    def pop(self) -> Request:
        """Take the next request."""

    def remove(self, request: Request) -> None:
        """Take a request out from anywhere."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FcfsQueue:
    """Arrival order; preempted requests go to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Append."""
        self._queue.append(request)

    def add_preempted(self, request: Request) -> None:
        """Put at the front."""
        self._queue.appendleft(request)

    def peek(self) -> Request:
        """First in line."""
        return self._queue[0]

    def pop(self) -> Request:
        """Take the first in line."""
        return self._queue.popleft()

    def remove(self, request: Request) -> None:
        """Take out one request."""
        self._queue.remove(request)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


class PriorityQueue:
    """Ordered by (priority, arrival time, id), smaller first; a sorted list."""

    def __init__(self) -> None:
        self._queue: list[Request] = []

    def add(self, request: Request) -> None:
        """Insert at its rank."""
        bisect.insort(self._queue, request, key=lambda item: item.sort_key)

    def add_preempted(self, request: Request) -> None:
        """Its key is older than that of new requests of the same priority."""
        self.add(request)

    def peek(self) -> Request:
        """Smallest key."""
        return self._queue[0]

    def pop(self) -> Request:
        """Take the smallest key."""
        return self._queue.pop(0)

    def remove(self, request: Request) -> None:
        """Take out one request."""
        self._queue.remove(request)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


def create_request_queue(policy: str) -> RequestQueue:
    """The queue of `--scheduling-policy`."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()
