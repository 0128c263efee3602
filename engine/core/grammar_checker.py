"""GrammarChecker: asks a process of its own whether a grammar can be used, before it is queued.

Owns that process (`grammar_worker`), started with the first structured request, and what it said.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict

import msgspec

from engine.core.grammar import MAX_GRAMMAR_CHARS, GrammarModel
from engine.core.grammar_worker import CheckReply, reply_of
from engine.core.job_process import JobProcess, JobProcessEnded
from engine.sampling_params import StructuredOutputsParams

_SMALL_CHARS = 16_384
_SMALL_AT_A_TIME = 2
_LARGE_AT_A_TIME = 1
"""Large grammars, which may take seconds each, have a queue of their own."""

_MAX_KNOWN = 256
_MAX_KNOWN_CHARS = 8 << 20
_ENDED = "the process that compiles grammars ended; try again"


@dataclasses.dataclass(slots=True)
class _Check:
    """One check that is under way, and how many requests wait for it."""

    task: asyncio.Task[CheckReply]
    num_waiting: int = 0


class GrammarChecker:
    """Checks the grammars of one model; equal ones once, as long as they are remembered."""

    def __init__(self, model: GrammarModel) -> None:
        self._known: OrderedDict[StructuredOutputsParams, CheckReply] = OrderedDict()
        self._known_chars = 0
        self._checks: dict[StructuredOutputsParams, _Check] = {}
        self._seats = asyncio.Semaphore(_SMALL_AT_A_TIME)
        self._large_seats = asyncio.Semaphore(_LARGE_AT_A_TIME)
        self._process = JobProcess("grammars", model, "compiles grammars")

    async def check(self, spec: StructuredOutputsParams) -> StructuredOutputsParams:
        """`spec` with the size that it has once compiled; ValueError says why it is unusable.

        Who leaves while it waits takes its check along, unless others wait for the same one.
        """
        size = spec.num_chars
        if size > MAX_GRAMMAR_CHARS:
            raise ValueError(f"it has {size} characters; at most {MAX_GRAMMAR_CHARS} can be used")
        reply = self._known.get(spec)
        if reply is None:
            reply = await self._join(spec)
            self._remember(spec, reply)
        if reply.error is not None:
            raise ValueError(reply.error)
        return dataclasses.replace(spec, compiled_bytes=reply.num_bytes)

    async def close(self) -> None:
        """End the process that tries them."""
        await self._process.close()

    async def _join(self, spec: StructuredOutputsParams) -> CheckReply:
        check = self._checks.get(spec)
        if check is None:
            check = self._checks[spec] = _Check(asyncio.create_task(self._ask(spec)))
        check.num_waiting += 1
        try:
            reply: CheckReply = await asyncio.shield(check.task)
            return reply
        finally:
            check.num_waiting -= 1
            if not check.num_waiting:
                del self._checks[spec]
                check.task.cancel()

    def _remember(self, spec: StructuredOutputsParams, reply: CheckReply) -> None:
        if spec not in self._known and reply.error != _ENDED:
            self._known[spec] = reply
            self._known_chars += spec.num_chars
        while len(self._known) > _MAX_KNOWN or self._known_chars > _MAX_KNOWN_CHARS:
            oldest, _ = self._known.popitem(last=False)
            self._known_chars -= oldest.num_chars

    async def _ask(self, spec: StructuredOutputsParams) -> CheckReply:
        async with self._seats if spec.num_chars <= _SMALL_CHARS else self._large_seats:
            try:
                return reply_of(await self._process.do(msgspec.msgpack.encode(spec)))
            except JobProcessEnded:
                return CheckReply(_ENDED)
