from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from app.supervise.steady_output import NOBODY_READS, SteadyStream


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    read, write = os.pipe()
    with os.fdopen(write, "w") as target:
        yield read, target


def test_what_is_printed_arrives(pipe: tuple[int, TextIO]) -> None:
    read, target = pipe
    stream = SteadyStream(target, lambda why: None)
    print("one", file=stream)
    print("two", file=stream, flush=True)
    assert os.read(read, 100) == b"one\ntwo\n"
    os.close(read)


def test_a_reader_that_went_away_is_told_of_once(pipe: tuple[int, TextIO]) -> None:
    read, target = pipe
    told: list[str] = []
    stream = SteadyStream(target, told.append)
    os.close(read)
    for _ in range(3):
        print("line", file=stream)
        stream.drain(60.0)
    assert told == [NOBODY_READS]


def test_a_reader_that_does_not_read_holds_nobody_up(pipe: tuple[int, TextIO]) -> None:
    read, target = pipe
    size = fcntl.fcntl(target.fileno(), fcntl.F_SETPIPE_SZ, 4096) if sys.platform == "linux" else 0
    stream = SteadyStream(target, lambda why: None)
    for _ in range(100):
        stream.write("x" * 64_000)
    stream.drain(0.0)
    stream.flush()
    assert os.read(read, 1) == b"x"
    assert size <= 4096
    os.close(read)  # the thread that waits ends with it


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device")
def test_a_full_disk_is_told_of_and_later_lines_are_tried() -> None:
    told: list[str] = []
    with open("/dev/full", "w") as full:
        stream = SteadyStream(full, told.append)
        for _ in range(2):
            print("line", file=stream)
            stream.drain(60.0)
    assert len(told) == 1
    assert os.strerror(errno.ENOSPC) in told[0]
