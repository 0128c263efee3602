"""Where the lines of a log lie, and what each is: level, process, phase. Reads text when asked.

Grown by one worker thread, read by the screen: 12 bytes are kept of a line, never its text.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from logparse import LogParser, LogReport, safe_text
from logparse.live import LiveReader
from logparse.reading.line import TRACEBACK
from logparse.reading.log_parts import open_parts
from logparse.reading.source import decoded_lines
from tui.state.log_text import LEVELS, LogLevel

_CHUNK = 1 << 17
_LONGEST_TEXT = 4000
_ROWS_AT_ONCE = 512
_MOST_BETWEEN = 1 << 14  # bytes that are read along rather than skipped
_MOST_PROCESSES = 255
_PACKED = (b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Which lines are shown; None is all of them."""

    level: LogLevel = LogLevel.OTHER  # the least that is shown
    process: str | None = None
    phase: int | None = None


@dataclass(slots=True)
class _Lines:
    """One byte each for level, process and phase of every line, and where it begins."""

    starts: array[int] = field(default_factory=lambda: array("Q", [0]))  # one more than lines
    levels: bytearray = field(default_factory=bytearray)
    owners: bytearray = field(default_factory=bytearray)
    phases: bytearray = field(default_factory=bytearray)
    names: list[str] = field(default_factory=lambda: [""])
    codes: dict[str | None, int] = field(default_factory=lambda: {None: 0})
    tracebacks: set[int] = field(default_factory=set)  # owners whose traceback goes on


class LogIndex:
    """`grow` belongs to the worker; all else may be asked from the screen at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._text = _JoinedFiles(open_parts(path))
        self._packed: BinaryIO | None = None
        self._unpacked: Iterator[str] | None = None
        if self._text.read(4, 0).startswith(_PACKED):
            self._packed = path.open("rb")
            self._text.close()
            text = tempfile.TemporaryFile()  # noqa: SIM115 - see close
            self._text = _JoinedFiles([cast(BinaryIO, text)])
            self._unpacked = decoded_lines(self._packed)
        self._begin()

    def _begin(self) -> None:
        self._lines = _Lines()
        self._unread: deque[int] = deque()  # bytes of each line that the reader has not read yet
        self._reader = LiveReader(
            tells_events=False, on_read=self._add_read, on_again=self._read_again
        )
        self._read_to = 0
        self._partial = b""
        self._number_of_starts = getattr(self, "_number_of_starts", 0) + 1

    def _read_again(self) -> None:
        """The reader has learnt what was done to the log: all that was told of its lines goes."""
        starts = self._lines.starts
        lengths = [after - before for before, after in itertools.pairwise(starts)]
        self._unread.extendleft(reversed(lengths))
        self._lines = _Lines()
        self._number_of_starts += 1

    def close(self) -> None:
        with self._lock:
            self._text.close()
            if self._packed is not None:
                self._packed.close()

    # -- the worker ----------------------------------------------------------

    def grow(self) -> bool:
        """Read the next piece of the file; False when there is none now."""
        with self._lock:
            if self._text.is_closed:
                return False
            if self._unpacked is not None:
                self._unpack()
            self._look_for_another_file()
            data = self._text.read(_CHUNK, self._read_to)
            self._read_to += len(data)
            self._take(data)
            if not data:
                self._reader.rest()
            return bool(data)

    def _unpack(self) -> None:
        assert self._unpacked is not None
        size, target = self._text.size(), self._text.newest.fileno()
        written = 0
        while written < _CHUNK and (line := next(self._unpacked, None)) is not None:
            data = line.encode("utf-8", "replace")
            written += os.pwrite(target, data, size + written)

    def _look_for_another_file(self) -> None:
        """A log of ours goes on in its next part; one that another took or cut begins anew."""
        if self._unpacked is not None:
            return
        opened, unread = self._text.newest, self._text.size() - self._read_to
        try:
            is_other = not os.path.samestat(self._path.stat(), os.fstat(opened.fileno()))
            if unread > 0 or (unread == 0 and not is_other):
                return
            parts = open_parts(self._path)
        except OSError:
            return
        number = next((n for n, part in enumerate(parts) if _is_same(part, opened)), None)
        if is_other and number is not None:
            self._text.append(parts[number + 1 :])
            for known in parts[: number + 1]:
                known.close()
            return
        self._text.close()
        self._text = _JoinedFiles(parts)
        self._begin()

    def _take(self, data: bytes) -> None:
        whole, newline, rest = (self._partial + data).rpartition(b"\n")
        self._partial = rest
        if newline:
            for line in whole.split(b"\n"):
                self._unread.append(len(line) + 1)
                self._reader.feed(line.decode("utf-8", "replace"))

    def _add_read(self, parser: LogParser, num_lines: int) -> None:
        """What the parser says of the lines that it read last; several are pieces of one."""
        lines, newest = self._lines, parser.newest
        process = newest.process if newest is not None else None
        owner = lines.codes.get(process)
        if owner is None:
            owner = self._new_owner(process)
        level = LEVELS.get(newest.level or "", LogLevel.OTHER) if newest else LogLevel.OTHER
        if newest is not None and newest.level is None:
            level = self._level_of_plain(owner, newest.message)
        for _ in range(num_lines):
            lines.levels.append(level)
            lines.owners.append(owner)
            lines.phases.append(parser.phase)
            lines.starts.append(lines.starts[-1] + self._unread.popleft())

    def _new_owner(self, process: str | None) -> int:
        lines = self._lines
        if len(lines.names) > _MOST_PROCESSES:
            return 0
        lines.names.append(safe_text(process or "", 60))
        lines.codes[process] = len(lines.names) - 1
        return lines.codes[process]

    def _level_of_plain(self, owner: int, message: str) -> LogLevel:
        """A traceback goes from its first line to the exception's, which is not indented."""
        open_ones = self._lines.tracebacks
        if TRACEBACK in message[:200]:
            open_ones.add(owner)
            return LogLevel.ERROR
        if owner not in open_ones:
            return LogLevel.OTHER
        if message[:1] not in (" ", ""):
            open_ones.discard(owner)
        return LogLevel.ERROR

    # -- the screen ----------------------------------------------------------

    @property
    def generation(self) -> int:
        """Another number means that the log began anew and line numbers mean other lines."""
        return self._number_of_starts

    @property
    def num_lines(self) -> int:
        """Whole lines read so far."""
        return len(self._lines.starts) - 1

    @property
    def processes(self) -> tuple[str, ...]:
        """Names in order of appearance."""
        return tuple(self._lines.names[1:])

    def report(self) -> LogReport:
        """What the lines so far tell."""
        with self._lock:
            return self._reader.report()

    def level(self, line: int) -> LogLevel:
        """Of a line, counted from 0."""
        levels = self._lines.levels
        return LogLevel(levels[line]) if line < len(levels) else LogLevel.OTHER

    def text(self, line: int) -> str:
        """A line as it may be shown: no control characters, secrets masked."""
        starts = self._lines.starts
        if line + 1 >= len(starts):  # the log began anew meanwhile
            return ""
        length = min(starts[line + 1] - starts[line], 16 * _LONGEST_TEXT)
        return _shown(self._bytes(starts[line], length))

    def _bytes(self, at: int, length: int) -> bytes:
        try:
            return self._text.read(length, at)
        except (OSError, ValueError):  # closed, or replaced by another file meanwhile
            return b""

    def select(self, wanted: LineFilter, first: int = 0) -> array[int]:
        """The lines from `first` on that the filter lets through."""
        lines = self._lines
        end = len(lines.starts) - 1
        if wanted == LineFilter():
            return array("I", range(first, end))
        owner = None if wanted.process is None else self._owner(wanted.process)
        tables = (
            (lines.levels, lambda code: code >= wanted.level),
            (lines.owners, lambda code: owner is None or code == owner),
            (lines.phases, lambda code: wanted.phase is None or code == wanted.phase),
        )
        masks = [_mask(codes[first:end], is_shown) for codes, is_shown in tables]
        shown = (masks[0] & masks[1] & masks[2]).to_bytes(end - first, "big")
        return array("I", itertools.compress(range(first, end), shown))

    def _owner(self, process: str) -> int:
        return self._lines.names.index(process) if process in self._lines.names else -1

    def find(self, needle: str, shown: array[int], row: int, step: int) -> int | None:
        """The next row of `shown` after `row` (before it with step -1) that holds the text."""
        wanted = needle.casefold()
        candidate = row
        for candidate in self._rows_with(needle.lower().encode(), shown, row, step):
            if wanted in self.text(shown[candidate]).casefold():
                return candidate
        return None

    def _rows_with(self, needle: bytes, shown: array[int], row: int, step: int) -> Iterator[int]:
        """Rows whose bytes hold it; rows that lie beside each other are searched at once."""
        for some in self._near_rows(shown, row, step):
            first, last = sorted((shown[some[0]], shown[some[-1]]))
            begin, end = self._lines.starts[first], self._lines.starts[last + 1]
            data = self._bytes(begin, end - begin).lower()
            if needle in data:
                yield from (row for row in some if needle in self._piece(data, begin, shown[row]))

    def _near_rows(self, shown: array[int], row: int, step: int) -> Iterator[list[int]]:
        """Blocks of rows with little between them: what a filter hides need not be read."""
        starts, block = self._lines.starts, list[int]()
        for candidate in range(row + step, len(shown) if step > 0 else -1, step):
            if block:
                before, after = sorted((shown[block[-1]], shown[candidate]))
                is_far = starts[after] - starts[before + 1] > _MOST_BETWEEN
                if is_far or len(block) == _ROWS_AT_ONCE:
                    yield block
                    block = []
            block.append(candidate)
        if block:
            yield block

    def _piece(self, data: bytes, begin: int, line: int) -> bytes:
        starts = self._lines.starts
        return data[starts[line] - begin : starts[line + 1] - begin]

    def row_at(self, shown: array[int], line: int) -> int:
        """The row of a line, or of the last shown one before it."""
        return max(0, bisect_right(shown, line) - 1)


class _JoinedFiles:
    """Files one after the other, read by position; only the last one grows."""

    def __init__(self, files: list[BinaryIO]) -> None:
        self._files: list[BinaryIO] = []
        self._begins: list[int] = []
        self.append(files)

    @property
    def newest(self) -> BinaryIO:
        return self._files[-1]

    @property
    def is_closed(self) -> bool:
        return self.newest.closed

    def append(self, files: list[BinaryIO]) -> None:
        for file in files:
            self._begins.append(self.size())
            self._files.append(file)

    def size(self) -> int:
        return self._begins[-1] + os.fstat(self.newest.fileno()).st_size if self._files else 0

    def read(self, length: int, at: int) -> bytes:
        number = bisect_right(self._begins, at) - 1
        found = b""
        while length > len(found) and number < len(self._files):
            inside = at + len(found) - self._begins[number]
            found += os.pread(self._files[number].fileno(), length - len(found), inside)
            number += 1
        return found

    def close(self) -> None:
        for file in self._files:
            file.close()


def _is_same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))


def _mask(codes: bytearray, is_shown: Callable[[int], bool]) -> int:
    """A number with a byte of 1 for each code that is shown."""
    return int.from_bytes(codes.translate(bytes(map(is_shown, range(256)))), "big")


def _shown(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    return safe_text(text.rpartition("\r")[2].expandtabs(8), _LONGEST_TEXT)
