"""The lines of a log as they are, its last ones, and how far a long one has been read."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_BLOCK_BYTES = 1 << 18
_LONG_BYTES = 20 << 20  # takes a second and more to read
_TELL_EVERY = 20_000  # lines
_PACKED = (b"\x1f\x8b", b"\x28\xb5", b"\xff\xfe", b"\xfe\xff")  # gzip, zstd, UTF-16


def print_lines(lines: Iterable[str]) -> None:
    """Onto stdout; a terminal gets no control characters, a pipe what is there."""
    from app.output import printable

    is_terminal = sys.stdout.isatty()
    for line in lines:
        text = line.removesuffix("\n").removesuffix("\r")
        print(printable(text) if is_terminal else text)
    sys.stdout.flush()


def last_lines(lines: Iterable[str], count: int | None) -> Iterable[str]:
    """The last `count` of them, all where that is None."""
    return lines if count is None else deque(lines, maxlen=count)


def tail_of_file(path: Path, count: int) -> list[str] | None:
    """The last `count` lines, read from the end; None where they have to be read from the front.

    That is a packed file, one in UTF-16, or one that holds fewer: earlier parts may have the rest.
    """
    with path.open("rb") as file:
        if file.read(2) in _PACKED or not file.seekable():
            return None
        at, tail = file.seek(0, os.SEEK_END), b""
        while at > 0 and tail.count(b"\n") <= count:
            start = max(0, at - _BLOCK_BYTES)
            file.seek(start)
            tail, at = file.read(at - start) + tail, start
    lines = tail.decode("utf-8", "replace").splitlines()
    return lines[-count:] if len(lines) >= count else None


@contextlib.contextmanager
def reading_progress(path: Path | None) -> Iterator[Callable[[Iterable[str]], Iterator[str]]]:
    """Draws how far a long file has been read, on a terminal; passes the lines on."""
    size = path.stat().st_size if path is not None and path.is_file() else 0
    if size < _LONG_BYTES or not sys.stderr.isatty():
        yield iter
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from app.output import talk_console

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=talk_console(), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task("", total=size)

        def counted(lines: Iterable[str]) -> Iterator[str]:
            done = 0
            for number, line in enumerate(lines):
                done += len(line)
                if number % _TELL_EVERY == 0:
                    bar.update(task, completed=min(done, size))
                yield line

        yield counted
