"""The two files of a batch, in OpenAI's format: requests in, answers out, one JSON object a line.

The output is also the record of what is done: each answer is appended in one write, so that a
process that is killed at any moment leaves whole lines and at most the beginning of one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import StokerError, UsageError
from app.json_lines import read_json_lines
from engine.machine.locks import file_lock

ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings"),
    *("/v1/responses", "/v1/messages", "/v1/score", "/v1/rerank"),
)

_BEGINNING = b'{"custom_id": '  # of every line that is written
_ANSWER_FIELD = "response"  # of every answer, null too; a request has none


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A line of the input."""

    custom_id: str
    url: str
    body: dict[str, Any]


def read_requests(path: Path) -> list[BatchRequest]:
    """All lines, checked before anything is sent; UsageError names the line that is wrong."""
    requests: dict[str, BatchRequest] = {}
    for number, entry in read_json_lines(path, lambda what: UsageError(f"{path}: {what}")):
        request = _request(entry, f"{path}: line {number}")
        if request.custom_id in requests:
            raise UsageError(
                f"{path}: line {number}: custom_id {request.custom_id!r} is there twice"
            )
        requests[request.custom_id] = request
    if not requests:
        raise UsageError(f"{path} holds no requests")
    return list(requests.values())


def _request(entry: Any, place: str) -> BatchRequest:
    if not isinstance(entry, dict):
        raise UsageError(f"{place} is no JSON object")
    custom_id, url, body = entry.get("custom_id"), entry.get("url"), entry.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise UsageError(f"{place}: custom_id must be a text")
    if entry.get("method", "POST") != "POST" or url not in ROUTES:
        raise UsageError(f"{place}: a request is a POST to {', '.join(ROUTES)}")
    if not isinstance(body, dict):
        raise UsageError(f"{place}: body must be an object")
    if body.get("stream"):
        raise UsageError(f"{place}: a batch streams nothing; leave `stream` out")
    return BatchRequest(custom_id, url, body)


class AnswerFile:
    """The output: whose answers it holds, and appending to it."""

    def __init__(self, path: Path, descriptor: int, done: set[str], num_failed: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.done = done
        self.num_failed = num_failed

    def append(self, custom_id: str, answer: dict[str, Any]) -> None:
        """Write one answer; StokerError when the disk is full, and then nothing of it is left."""
        text = json.dumps({"custom_id": custom_id, **answer}, ensure_ascii=False)
        # A lone surrogate of an answer is written as JSON's own escape of it.
        line = text.encode(errors="backslashreplace") + b"\n"
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written")
        except OSError as error:
            os.ftruncate(self._descriptor, end)
            raise StokerError(
                f"{self._path} cannot be written: {error}",
                hint="make room; the same command goes on where it stopped",
            ) from error
        self.done.add(custom_id)
        self.num_failed += is_failed(answer)


def is_failed(answer: dict[str, Any]) -> bool:
    """Whether an answer says that its request came to nothing."""
    response = answer.get(_ANSWER_FIELD)
    return not isinstance(response, dict) or response.get("status_code") != 200


@contextlib.contextmanager
def open_answers(path: Path, known: Collection[str]) -> Iterator[AnswerFile]:
    """The output, held alone, with what an earlier run has left; a line that was cut off is gone.

    UsageError for a file that holds anything but answers to the `known` requests.
    """

    def refuse() -> None:
        raise UsageError(f"another `stoker batch` writes to {path}")

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        with file_lock(path.with_name(f".{path.name}.lock"), refuse):
            yield _opened(descriptor, path, known)
    finally:
        os.close(descriptor)


def _opened(descriptor: int, path: Path, known: Collection[str]) -> AnswerFile:
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read()
    whole = content.rfind(b"\n") + 1
    done, num_failed = _read_answers(content[:whole], path, known)
    if not _is_cut_off(content[whole:]):
        raise _other_file(path, content.count(b"\n") + 1)
    os.ftruncate(descriptor, whole)
    return AnswerFile(path, descriptor, done, num_failed)


def _is_cut_off(tail: bytes) -> bool:
    """Whether a line without an end can be the beginning of an answer."""
    if not _BEGINNING.startswith(tail[: len(_BEGINNING)]):
        return False
    try:
        return _ANSWER_FIELD in json.loads(tail)
    except (ValueError, RecursionError):
        return True


def _read_answers(content: bytes, path: Path, known: Collection[str]) -> tuple[set[str], int]:
    done: set[str] = set()
    num_failed = 0
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            entry = json.loads(line)
            custom_id = entry["custom_id"]
            is_other = _ANSWER_FIELD not in entry or custom_id not in known or custom_id in done
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _other_file(path, number) from error
        if is_other:
            raise _other_file(path, number)
        done.add(custom_id)
        num_failed += is_failed(entry)
    return done, num_failed


def _other_file(path: Path, number: int) -> UsageError:
    return UsageError(
        f"{path}, line {number}, is no answer to a request of this batch",
        hint="name another file with -o; a batch goes on only with its own",
    )
