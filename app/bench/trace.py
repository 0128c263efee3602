"""Recorded traffic: when requests came, how long they were, which beginnings they shared.

Reads Mooncake's JSONL (milliseconds, and an id for each block of 512 prompt tokens) and the CSV of
Azure's LLM inference traces. Such files hold no text: prompts are made up to their lengths, and a
block with the same id has the same words.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from app.bench.other_tools import finite_number
from app.bench.prompts import LengthRange, Prompt, PromptMaker, WordCosts
from app.errors import StokerError, UsageError

BLOCK_TOKENS = 512  # of Mooncake's format
_MOST = 1e15  # of tokens or milliseconds
_AZURE_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")
_FRACTION = re.compile(r"(\.\d{6})\d+")  # Azure writes seven digits, Python reads six


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. `due_s` counts from the first one; `blocks` are the ids of its prompt."""

    due_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests in the order of their arrival, and the file's name and hash."""

    name: str
    sha256: str
    requests: tuple[TraceRequest, ...]

    @property
    def repeated_share(self) -> float:
        """Share of the prompt tokens that lie in blocks which an earlier request had."""
        seen: set[str] = set()
        repeated = total = 0
        for request in self.requests:
            total += request.input_tokens
            known = sum(block in seen for block in request.blocks)
            repeated += min(request.input_tokens, known * BLOCK_TOKENS)
            seen.update(request.blocks)
        return repeated / total if total else 0.0


def read_trace(path: Path) -> Trace:
    """The trace in `path`; UsageError names the line that cannot be read."""
    import hashlib

    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_trace(path, f"cannot be read: {error}") from error
    # Not splitlines: a text may hold other characters that end a line.
    lines = [line.rstrip("\r") for line in text.split("\n")]
    is_table = _AZURE_FIELDS[0] in lines[0].split(",")
    read = _azure if is_table else _mooncake
    found = sorted(read(path, lines), key=lambda request: request.due_s)
    if not found:
        raise _bad_trace(path, "holds no request")
    start_s = found[0].due_s
    requests = tuple(
        TraceRequest(one.due_s - start_s, one.input_tokens, one.output_tokens, one.blocks)
        for one in found
    )
    return Trace(path.name, hashlib.sha256(content).hexdigest(), requests)


def _mooncake(path: Path, lines: Sequence[str]) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad_trace(path, f"line {number} is not JSON") from error
        fields: Mapping[str, Any] = record if isinstance(record, dict) else {}
        values = [_length(fields.get(name)) for name in _MOONCAKE_FIELDS]
        blocks = fields.get("hash_ids") or ()
        if None in values or not isinstance(blocks, list | tuple):
            raise _bad_trace(path, f"line {number} has not {', '.join(_MOONCAKE_FIELDS)}")
        due_ms, inputs, outputs = (value or 0.0 for value in values)
        yield _request(path, number, due_ms / 1e3, inputs, outputs, tuple(map(str, blocks)))


def _azure(path: Path, lines: Sequence[str]) -> Iterator[TraceRequest]:
    for number, row in enumerate(_rows(path, lines), 2):
        moment, *lengths = (row.get(name) for name in _AZURE_FIELDS)
        try:
            inputs, outputs = (float(length or "") for length in lengths)
            due = datetime.fromisoformat(_FRACTION.sub(r"\1", moment or ""))
        except ValueError as error:
            raise _bad_trace(path, f"line {number} has not {', '.join(_AZURE_FIELDS)}") from error
        if due.tzinfo is None:
            due = due.replace(tzinfo=timezone.utc)
        yield _request(path, number, due.timestamp(), inputs, outputs, ())


def _rows(path: Path, lines: Sequence[str]) -> Iterator[dict[str, str]]:
    rows = csv.DictReader(lines)
    try:
        yield from rows
    except csv.Error as error:
        raise _bad_trace(path, f"cannot be read behind line {rows.line_num}: {error}") from error


def _request(
    path: Path, number: int, due_s: float, inputs: float, outputs: float, blocks: tuple[str, ...]
) -> TraceRequest:
    if not (1 <= inputs < _MOST and 1 <= outputs < _MOST):  # not a number is in no range
        text = f"line {number} asks for {inputs:g} prompt and {outputs:g} output tokens"
        raise _bad_trace(path, f"{text}; each must be at least 1")
    return TraceRequest(due_s, int(inputs), int(outputs), blocks)


def _length(value: object) -> float | None:
    """A number from 0 to what a day or a context may have; None for anything else."""
    number = finite_number(value)
    return number if number is not None and 0 <= number < _MOST else None


class TracePrompts:
    """Prompts of a trace's lengths, due when its requests came; each round has new words.

    What needs more than `max_model_len` tokens is left out and counted in `num_too_long`.
    """

    num_repeated = 0

    def __init__(
        self, trace: Trace, costs: WordCosts, max_model_len: int | None, seed: str
    ) -> None:
        limit = max_model_len or float("inf")
        self.requests = [
            one for one in trace.requests if one.input_tokens + one.output_tokens <= limit
        ]
        self.num_too_long = len(trace.requests) - len(self.requests)
        if not self.requests:
            raise UsageError(
                f"no request of the trace {trace.name} fits into {max_model_len} tokens",
                hint="replay it on a server with a larger --max-model-len",
            )
        fitting = Trace(trace.name, trace.sha256, tuple(self.requests))
        self.repeated_share = fitting.repeated_share
        self._costs, self._seed = costs, seed
        self._num_rounds = 0

    def take(self, num: int) -> list[Prompt]:
        """The trace's first `num` requests, in words that no earlier call gave."""
        self._num_rounds += 1
        round_seed = f"{self._seed} {self._num_rounds}"
        blocks: dict[tuple[str, int, bool], str] = {}
        return [
            Prompt(
                self._text(f"{round_seed} {place}", round_seed, request, blocks),
                request.input_tokens,
                request.output_tokens,
                request.due_s,
            )
            for place, request in enumerate(self.requests[:num])
        ]

    def _text(
        self,
        seed: str,
        round_seed: str,
        request: TraceRequest,
        known: dict[tuple[str, int, bool], str],
    ) -> str:
        """The words of the blocks that are shared, and new ones for the rest."""
        parts: list[str] = []
        left = request.input_tokens
        for block in request.blocks:
            length = min(BLOCK_TOKENS, left)
            if length <= 0:
                break
            key = (block, length, not parts)
            if key not in known:
                known[key] = self._words(f"{round_seed} block {block}", length, not parts)
            parts.append(known[key])
            left -= length
        if left > 0:
            parts.append(self._words(seed, left, not parts))
        return " ".join(part for part in parts if part)

    def _words(self, seed: str, length: int, is_first: bool) -> str:
        """Words of `length` tokens, at the beginning of a prompt or later in it."""
        costs = self._costs
        if not is_first:
            costs = WordCosts(costs.later, costs.later, 0, costs.is_measured)
        lengths = LengthRange(length, length)
        return str(PromptMaker(costs, lengths, lengths, 0.0, seed).take(1)[0].content)


def _bad_trace(path: Path, what: str) -> StokerError:
    return UsageError(
        f"the trace {path} {what}",
        hint='each line: {"timestamp": 27482, "input_length": 6955, "output_length": 52, '
        '"hash_ids": [46, 47, 2353]}, or CSV with the columns ' + ",".join(_AZURE_FIELDS),
    )
