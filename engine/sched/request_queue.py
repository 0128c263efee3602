"""Waiting queues: first come first served, and priority.

Taking what is next is cheap, and so is `add` where requests come in their order.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from engine.sched.request import Request, RequestStatus


class RequestQueue(Protocol):
    """Order in which waiting requests are admitted."""

    def add(self, request: Request) -> None:
        """A request that has not run yet; `place` says how many came before it."""

    def put_back(self, request: Request) -> None:
        """One that was taken out or preempted: it comes back before all others of its rank."""

    def peek(self) -> Request:
        """The request that is next."""

    def pop(self) -> Request: ...

    def remove(self, request: Request) -> None:
        """Take a request out from anywhere."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FcfsQueue:
    """Order of arrival; requests that are put back go to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Append; one whose grammar took its time goes before those that came after it."""
        queue, index = self._queue, len(self._queue)
        while index and _came_later(queue[index - 1], request):
            index -= 1
        if index == len(queue):
            queue.append(request)
        else:
            queue.insert(index, request)

    def put_back(self, request: Request) -> None:
        """Put a request that was taken out back in front of all others."""
        self._queue.appendleft(request)

    def peek(self) -> Request:
        return self._queue[0]

    def pop(self) -> Request:
        """Take the first in line."""
        return self._queue.popleft()

    def remove(self, request: Request) -> None:
        self._queue.remove(request)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


def _came_later(queued: Request, request: Request) -> bool:
    """Nothing goes before preempted requests: they ran already."""
    return queued.place > request.place and queued.status != RequestStatus.PREEMPTED


class PriorityQueue:
    """Ordered by (priority, arrival time, id), smaller first; a sorted list.

    As in vLLM, waiting does not make a request more urgent: it may wait for as long as more urgent
    ones keep coming.
    """

    def __init__(self) -> None:
        self._queue: list[Request] = []

    def add(self, request: Request) -> None:
        bisect.insort(self._queue, request, key=lambda item: item.sort_key)

    def put_back(self, request: Request) -> None:
        """Its key is older than that of new requests of the same priority."""
        self.add(request)

    def peek(self) -> Request:
        return self._queue[0]

    def pop(self) -> Request:
        return self._queue.pop(0)

    def remove(self, request: Request) -> None:
        self._queue.remove(request)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


def create_request_queue(policy: str) -> RequestQueue:
    """The queue for a value of `--scheduling-policy`."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()
