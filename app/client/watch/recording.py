"""A watched session as a file: what every scrape and every /debug question answered, and when.

JSON lines, gzip when the name ends in .gz. The first line is a header with the format's version.
A scrape is kept as its exact text; after the first one only the lines that changed are written.
Free text of requests (prompts, clients) and keys never get in.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase, BufferedWriter
from pathlib import Path
from typing import Any

from app.client.errors import ClientError, InvalidRecording
from app.client.terminal_text import strip_escapes
from engine.machine.private_files import open_new

FORMAT = "stoker.recording"
VERSION = 1
MAX_BYTES = 256 << 20
"""A recording ends here, measured before compression: about a day at one sample a second."""
_LONGEST_LINE = 16 << 20
_TEXT_OF_A_REQUEST = ("id", "state")
_SLOT_KEYS = (
    *("id", "n_ctx", "is_processing", "id_task", "next_token", "n_decoded", "params", "n_predict"),
    *("n_prompt_tokens", "n_prompt_tokens_cache", "n_prompt_tokens_processed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One answer of one server; `time_s` counts from the start of the recording.

    Exactly one of `lines` (of GET /metrics), `error` (of it) and `debug` is set.
    """

    time_s: float
    server: int = 0
    lines: tuple[str, ...] | None = None
    error: str | None = None
    debug: Mapping[str, Any] | None = None

    @property
    def metrics(self) -> str:
        """The text of the scrape, byte for byte."""
        return "\n".join(self.lines or ())


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole file; `servers` are the names that the entries' numbers stand for."""

    servers: tuple[str, ...]
    interval_s: float
    entries: tuple[Entry, ...]
    started_at_s: float | None = None  # unix time; older files tell none


class RecordingWriter:
    """Writes one file; stops by itself at `max_bytes`. The file is the user's alone (0600)."""

    def __init__(
        self,
        path: Path,
        servers: Sequence[str],
        interval_s: float,
        *,
        max_bytes: int = MAX_BYTES,
        started_at_s: float | None = None,
    ) -> None:
        self._below = _create(path)
        self._file: BufferedIOBase = self._below
        if path.suffix == ".gz":
            # Without time and name inside, equal sessions make equal files.
            self._file = gzip.GzipFile(filename="", fileobj=self._below, mode="wb", mtime=0)
        self._room = max_bytes
        self._started_s: float | None = None
        self._lines: dict[int, tuple[str, ...]] = {}
        self.num_samples = 0
        header = {"format": FORMAT, "version": VERSION, "interval_s": interval_s}
        if started_at_s is not None:
            header["started_at_s"] = round(started_at_s, 3)
        self._write({**header, "servers": list(servers)})

    @property
    def is_full(self) -> bool:
        """Whether the size limit was reached; nothing more is written then."""
        return self._room <= 0

    def scraped(self, server: int, time_s: float, text: str) -> None:
        """GET /metrics answered with `text` at `time_s` (monotonic clock)."""
        lines = tuple(text.split("\n"))
        before = self._lines.get(server, ())
        self._lines[server] = lines
        self.num_samples += 1
        if len(before) != len(lines):
            self._note(server, time_s, {"metrics": text})
            return
        changed = {i: new for i, new in enumerate(lines) if new != before[i]}
        self._note(server, time_s, {"changed": changed})

    def failed(self, server: int, time_s: float, error: ClientError) -> None:
        """GET /metrics had no answer, or not the one it should."""
        self.num_samples += 1
        self._note(server, time_s, {"error": str(error)})

    def debugged(self, server: int, time_s: float, documents: Mapping[str, Any]) -> None:
        """The engine answered /debug with these documents, by the last part of their path."""
        self._note(server, time_s, {"debug": _without_free_text(documents)})

    def close(self) -> None:
        self._file.close()
        self._below.close()  # gzip leaves open what it was given

    def _note(self, server: int, time_s: float, what: Mapping[str, Any]) -> None:
        if self._started_s is None:
            self._started_s = time_s
        self._write({"t": round(time_s - self._started_s, 3), "s": server, **what})

    def _write(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._room -= len(line)
        if self._room > 0:
            self._file.write(line)
            self._file.flush()  # whoever ends this process loses nothing


def _create(path: Path) -> BufferedWriter:
    try:
        descriptor = open_new(path)
    except FileExistsError as error:
        raise InvalidRecording(f"{path} exists already; name a new file to record into") from error
    except OSError as error:
        raise InvalidRecording(f"cannot write {path}: {error.strerror}") from error
    return os.fdopen(descriptor, "wb")


def _without_free_text(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Requests keep numbers, their id and their state: a prompt must never reach the file."""
    kept = dict(documents)
    requests = kept.get("requests")
    if isinstance(requests, dict) and isinstance(requests.get("data"), list):
        data = [_numbers_of(entry) for entry in requests["data"] if isinstance(entry, dict)]
        kept["requests"] = {**requests, "data": data}
    if "slots" in kept:
        kept["slots"] = _slot_numbers(kept["slots"])
    return kept


def _numbers_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in entry.items()
        if key in _TEXT_OF_A_REQUEST or value is None or isinstance(value, int | float)
    }


def _slot_numbers(value: Any) -> Any:
    """Only what is read of a slot: its prompt may lie in it as text and as token ids."""
    if isinstance(value, list):
        return [_slot_numbers(one) for one in value if isinstance(one, dict)]
    if isinstance(value, dict):
        return {key: _slot_numbers(one) for key, one in value.items() if key in _SLOT_KEYS}
    return None if isinstance(value, str) else value


def read_recording(path: Path) -> Recording:
    """The whole file; InvalidRecording says what is wrong with it.

    A file that breaks off, since its writer was ended, is good up to there.
    """
    try:
        with _open(path) as file:
            return _read(path, _documents(path, file))
    except OSError as error:
        reason = error.strerror or "it is no gzip file"
        raise InvalidRecording(f"cannot read the recording {path}: {reason}") from error


def _open(path: Path) -> BufferedIOBase:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _documents(path: Path, file: BufferedIOBase) -> Iterator[Mapping[str, Any]]:
    number = 0
    try:
        while line := file.readline(_LONGEST_LINE):
            if not line.endswith(b"\n"):
                return  # broken off
            number += 1
            document = json.loads(line)
            if not isinstance(document, dict):
                raise InvalidRecording(f"{path}:{number} is not an entry of a recording")
            yield document
    except (EOFError, zlib.error):
        return
    except (ValueError, RecursionError) as error:
        raise InvalidRecording(f"{path}:{number} is not JSON") from error


def _read(path: Path, documents: Iterator[Mapping[str, Any]]) -> Recording:
    header = next(documents, {})
    if header.get("format") != FORMAT:
        raise InvalidRecording(f"{path} is no recording of `stoker top --record`")
    if header.get("version") != VERSION:
        raise InvalidRecording(
            f"{path} has version {header.get('version')}; this program reads version {VERSION}"
        )
    try:
        servers = tuple(strip_escapes(str(name)) for name in header["servers"])
        entries = tuple(_entries(documents, len(servers)))
        interval_s = _seconds(header["interval_s"])
        started = header.get("started_at_s")
        started_at_s = None if started is None else _seconds(started)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InvalidRecording(f"{path} has an entry that this version cannot read") from error
    if not any(entry.debug is None for entry in entries):
        raise InvalidRecording(f"{path} holds no sample")
    return Recording(servers, interval_s, entries, started_at_s)


def _entries(documents: Iterable[Mapping[str, Any]], num_servers: int) -> Iterator[Entry]:
    lines: dict[int, tuple[str, ...]] = {}
    newest_s = 0.0
    for document in documents:
        server = int(document["s"])
        if server not in range(num_servers):
            raise ValueError("a server that the header does not name")
        newest_s = max(newest_s, _seconds(document["t"]))
        if "error" in document:
            yield Entry(time_s=newest_s, server=server, error=strip_escapes(str(document["error"])))
        elif "debug" in document:
            yield Entry(time_s=newest_s, server=server, debug=dict(document["debug"]))
        else:
            lines[server] = _next_lines(document, lines.get(server, ()))
            yield Entry(time_s=newest_s, server=server, lines=lines[server])


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError("no time")
    return seconds


def _next_lines(document: Mapping[str, Any], before: tuple[str, ...]) -> tuple[str, ...]:
    if "metrics" in document:
        return tuple(str(document["metrics"]).split("\n"))
    lines = list(before)
    for number, line in document["changed"].items():
        lines[int(number)] = str(line)
    return tuple(lines)
