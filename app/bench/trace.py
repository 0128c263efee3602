"""Recorded traffic: when requests came, how long they were, which beginnings they shared.

Reads Mooncake's JSONL (milliseconds, and an id for each block of 512 prompt tokens, or of as many
as `block_size` says: the server's `--record-traffic`) and the CSV of Azure's LLM inference traces.
Such files hold no text: prompts are made up to their lengths, and a block with the same id has the
same words.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import random
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from app.bench.other_tools import finite_number
from app.bench.prompts import Prompt, WordCosts, WordFiller
from app.errors import StokerError, UsageError
from app.json_lines import read_json_lines

BLOCK_TOKENS = 512  # of Mooncake's format
_MOST = 1e15  # of tokens or milliseconds
_MOST_ID = (1 << 63) - 1  # of a block, as it is kept
_KEPT_BLOCKS = 4096  # whose words are not made up again: beginnings that many requests share
_AZURE_FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")
_FRACTION = re.compile(r"(\.\d{6})\d+")  # Azure writes seven digits, Python reads six


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. `due_s` counts from the first one; `blocks` are the ids of its prompt, each of
    `block_tokens` tokens but the last, which may be shorter.
    """

    due_s: float
    input_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()
    block_tokens: int = BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests in the order of their arrival, and the file's name and hash."""

    name: str
    sha256: str
    requests: tuple[TraceRequest, ...]

    @property
    def repeated_share(self) -> float:
        """Share of the prompt tokens that lie in blocks which an earlier request had."""
        seen: set[int] = set()
        repeated = total = 0
        for request in self.requests:
            total += request.input_tokens
            known = sum(block in seen for block in request.blocks)
            repeated += min(request.input_tokens, known * request.block_tokens)
            seen.update(request.blocks)
        return repeated / total if total else 0.0


def read_trace(path: Path) -> Trace:
    """The trace in `path`; UsageError names the line that cannot be read."""
    sha256, first_line = _looked_through(path)
    is_table = _AZURE_FIELDS[0] in first_line.rstrip("\r\n").split(",")
    read = _azure if is_table else _mooncake
    found = sorted(read(path), key=lambda request: request.due_s)
    if not found:
        raise _bad_trace(path, "holds no request")
    start_s = found[0].due_s
    requests = tuple(replace(request, due_s=request.due_s - start_s) for request in found)
    return Trace(path.name, sha256, requests)


def _looked_through(path: Path) -> tuple[str, str]:
    """The file's hash and its first line."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            first_line = file.readline()
            digest.update(first_line)
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise _bad_trace(path, f"cannot be read: {error}") from error
    return digest.hexdigest(), first_line.decode("utf-8-sig", errors="replace")


def _mooncake(path: Path) -> Iterator[TraceRequest]:
    for number, record in read_json_lines(path, lambda what: _bad_trace(path, what)):
        fields: Mapping[str, Any] = record if isinstance(record, dict) else {}
        values = [_length(fields.get(name)) for name in _MOONCAKE_FIELDS]
        blocks = fields.get("hash_ids") or ()
        size = fields.get("block_size", BLOCK_TOKENS)
        if None in values or not isinstance(blocks, list | tuple):
            raise _bad_trace(path, f"line {number} has not {', '.join(_MOONCAKE_FIELDS)}")
        if not isinstance(size, int) or size < 1:
            raise _bad_trace(path, f"line {number} has blocks of {str(size)[:40]} tokens")
        due_ms, inputs, outputs = (value or 0.0 for value in values)
        request = _request(path, number, due_ms / 1e3, inputs, outputs)
        yield replace(request, blocks=array("q", map(_block_id, blocks)), block_tokens=size)


def _block_id(value: object) -> int:
    """In eight bytes: a day of traffic has millions of them."""
    if isinstance(value, int) and 0 <= value <= _MOST_ID:
        return value
    digest = hashlib.blake2b(str(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & _MOST_ID


def _azure(path: Path) -> Iterator[TraceRequest]:
    for number, row in _rows(path):
        moment, *lengths = (row.get(name) for name in _AZURE_FIELDS)
        try:
            inputs, outputs = (float(length or "") for length in lengths)
            due = datetime.fromisoformat(_FRACTION.sub(r"\1", moment or ""))
        except ValueError as error:
            raise _bad_trace(path, f"line {number} has not {', '.join(_AZURE_FIELDS)}") from error
        if due.tzinfo is None:
            due = due.replace(tzinfo=timezone.utc)
        yield _request(path, number, due.timestamp(), inputs, outputs)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The number of the line that each row ends in, and the row."""
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            for row in rows:
                number = rows.line_num
                yield number, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _bad_trace(path, f"cannot be read behind line {number}: {error}") from error


def _request(path: Path, number: int, due_s: float, inputs: float, outputs: float) -> TraceRequest:
    if not (1 <= inputs < _MOST and 1 <= outputs < _MOST):  # not a number is in no range
        text = f"line {number} asks for {inputs:g} prompt and {outputs:g} output tokens"
        raise _bad_trace(path, f"{text}; each must be at least 1")
    return TraceRequest(due_s, int(inputs), int(outputs))


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
        self.requests = tuple(
            one for one in trace.requests if one.input_tokens + one.output_tokens <= limit
        )
        self.num_too_long = len(trace.requests) - len(self.requests)
        if not self.requests:
            raise UsageError(
                f"no request of the trace {trace.name} fits into {max_model_len} tokens",
                hint="replay it on a server with a larger --max-model-len",
            )
        self.repeated_share = replace(trace, requests=self.requests).repeated_share
        self._beginnings = WordFiller(costs)
        self._others = WordFiller(WordCosts(costs.later, costs.later, 0, costs.is_measured))
        self._seed = seed
        self._num_rounds = 0

    def take(self, num: int) -> TraceRound:
        """The trace's first `num` requests, in words that no earlier call gave."""
        self._num_rounds += 1
        seed = f"{self._seed} {self._num_rounds}"
        return TraceRound(self.requests[:num], self._beginnings, self._others, seed)


@dataclass(frozen=True, slots=True)
class TraceRound:
    """The prompts of one round, each made up as it is asked for: a day of traffic is large."""

    requests: tuple[TraceRequest, ...]
    beginnings: WordFiller  # of prompts
    others: WordFiller
    seed: str

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Prompt]:
        shared = functools.lru_cache(_KEPT_BLOCKS)(self._words)
        for place, request in enumerate(self.requests):
            text = " ".join(filter(None, self._parts(place, request, shared)))
            yield Prompt(text, request.input_tokens, request.output_tokens, request.due_s)

    def _parts(
        self, place: int, request: TraceRequest, shared: Callable[[str, int, bool], str]
    ) -> Iterator[str]:
        """The words of the blocks that are shared, and new ones for the rest."""
        left = request.input_tokens
        for block in request.blocks:
            if left <= 0:
                return
            length = min(request.block_tokens, left)
            yield shared(f"block {block}", length, left == request.input_tokens)
            left -= length
        if left > 0:
            yield self._words(f"{place}", left, left == request.input_tokens)

    def _words(self, name: str, length: int, is_first: bool) -> str:
        """Words of `length` tokens, at the beginning of a prompt or later in it."""
        filler = self.beginnings if is_first else self.others
        return " ".join(filler.words(length, random.Random(f"{self.seed} {name}")))


def _bad_trace(path: Path, what: str) -> StokerError:
    return UsageError(
        f"the trace {path} {what}",
        hint='each line: {"timestamp": 27482, "input_length": 6955, "output_length": 52, '
        '"hash_ids": [46, 47, 2353]}, or CSV with the columns ' + ",".join(_AZURE_FIELDS),
    )
