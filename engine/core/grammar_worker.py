"""The process that tries grammars before a request is queued.

A grammar of a few characters can take minutes and gigabytes to compile, so each is tried in a child
with limits: see `forked_jobs`. A job's body is a StructuredOutputsParams, an answer's a CheckReply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import psutil

from engine.core.forked_jobs import JobAnswer, JobLimits, serve_jobs
from engine.core.grammar import GrammarModel, grammar_error, load_tokenizer, plain_reason
from engine.sampling_params import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLTokenizer

LIMIT_CPU_S = 3
LIMIT_BYTES = 64 << 20
"""Memory of one compiled grammar."""

_LIMITS = JobLimits(cpu_s=LIMIT_CPU_S, wall_s=30, room_bytes=1 << 30)
_FORK_BYTES = 3 << 20  # pages that every child copies
_TOO_LARGE = f"it takes more than {LIMIT_BYTES >> 20} MiB of memory once compiled; make it smaller"


class CheckReply(msgspec.Struct, array_like=True, frozen=True):
    """`error` is None for a good grammar; `num_bytes` is the memory that it takes."""

    error: str | None
    num_bytes: int = 0


def reply_of(answer: JobAnswer) -> CheckReply:
    """What a job came to, however its child ended."""
    if answer.body is not None:
        return msgspec.msgpack.decode(answer.body, type=CheckReply)
    if _LIMITS.is_too_slow(answer.status):
        return CheckReply(f"it takes more than {LIMIT_CPU_S} s to compile; make it smaller")
    if _LIMITS.is_too_large(answer.status):
        room = _LIMITS.room_bytes >> 20
        return CheckReply(f"it takes more than {room} MiB of memory to compile; make it smaller")
    return CheckReply("it cannot be compiled; make it smaller, or nest it less")


def main() -> int:
    """Serve until stdin is closed."""
    return serve_jobs(_load, _try, _LIMITS)


def _load(payload: bytes) -> LLTokenizer | str:
    """The model's tokenizer, or why there is none."""
    try:
        return load_tokenizer(msgspec.msgpack.decode(payload, type=GrammarModel))
    except Exception as error:  # whatever is wrong with it, every check says so
        return f"the model's tokenizer cannot be used for it: {error}"


def _try(tokenizer: LLTokenizer | str, body: bytes) -> bytes:
    if isinstance(tokenizer, str):
        return msgspec.msgpack.encode(CheckReply(tokenizer))
    spec = msgspec.msgpack.decode(body, type=StructuredOutputsParams)
    process = psutil.Process()  # not the parent's, which has another number
    before = process.memory_info().rss
    try:
        error = grammar_error(tokenizer, spec)
    except MemoryError:
        error = _TOO_LARGE
    num_bytes = max(0, process.memory_info().rss - before - _FORK_BYTES)
    if error is None and num_bytes > LIMIT_BYTES:
        error = _TOO_LARGE
    return msgspec.msgpack.encode(CheckReply(error and plain_reason(error), num_bytes))


if __name__ == "__main__":
    raise SystemExit(main())
