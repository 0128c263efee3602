"""The parts of a log: nothing lost up to the limit, the first lines never, the loss said."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.commands.logs import _growing_batches, _lines
from app.server_logs.log_files import HEAD_LINES, RotatingLog
from app.server_logs.log_sink import LogSink
from app.targets.logs import LogTarget
from logparse.reading.log_parts import log_parts, open_log, read_earlier_parts

LIMIT = 64 << 10
GAP = re.compile(rb"^stoker: (\d+) bytes are left out here, a log has 65536 at most.*\n", re.M)


def whole(path: Path) -> bytes:
    with open_log(path) as stream:
        return stream.read()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RotatingLog]:
    log = RotatingLog(tmp_path / "x.log", LIMIT)
    yield log
    log.close()


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %d of the log\n" % number for number in range(first, last))


def test_nothing_is_lost_up_to_the_limit(log: RotatingLog) -> None:
    data = lines(0, 2500)
    assert LIMIT // 2 < len(data) < LIMIT - LIMIT // 8
    for at in range(0, len(data), 5000):
        log.write(data[at : at + 5000])

    assert len(log_parts(log.path)) > 3
    assert whole(log.path) == data
    assert log.lost_bytes == 0
    assert {path.stat().st_mode & 0o777 for path in log_parts(log.path)} == {0o600}


def test_past_the_limit_the_first_lines_stay_and_the_loss_is_said(log: RotatingLog) -> None:
    data = lines(0, 50_000)
    for at in range(0, len(data), 70_000):
        log.write(data[at : at + 70_000])

    head = lines(0, HEAD_LINES)
    text = whole(log.path)
    gap = GAP.search(text)
    assert text.startswith(head)
    assert gap is not None
    assert gap.start() == len(head)
    rest = text[gap.end() :]
    assert data.endswith(rest)
    assert int(gap[1]) == log.lost_bytes == len(data) - len(head) - len(rest)
    assert sum(path.stat().st_size for path in log_parts(log.path)) <= LIMIT + len(gap[0]) + 100
    assert len(rest) > LIMIT // 2


@given(st.lists(st.binary(max_size=9000), max_size=60))
def test_whatever_is_written_parts_are_the_log_in_order(chunks: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = RotatingLog(Path(folder) / "x.log", LIMIT)
        for chunk in chunks:
            log.write(chunk)
        log.close()
        data, text = b"".join(chunks), whole(log.path)
        if log.lost_bytes == 0:
            assert text == data
        else:
            gap = GAP.search(text)
            assert gap is not None
            assert data.startswith(text[: gap.start()])
            assert data.endswith(text[gap.end() :])


def test_a_reader_keeps_the_parts_that_it_has_opened(log: RotatingLog) -> None:
    data = lines(0, 2000)
    log.write(data)
    with open_log(log.path) as stream:
        log.write(lines(2000, 60_000))
        assert stream.read().startswith(data)
    with read_earlier_parts(log.path) as stream:
        earlier = stream.read()
    assert earlier + log.path.read_bytes() == whole(log.path)


def test_stoker_logs_reads_all_parts_and_follows_the_last(log: RotatingLog) -> None:
    data = lines(0, 2000)
    for at in range(0, len(data), 3000):
        log.write(data[at : at + 3000])
    target = LogTarget("x", log.path)
    assert len(log_parts(log.path)) > 2

    read = "".join(_lines(target))
    batches = _growing_batches(target)
    followed = itertools.chain.from_iterable(batches)
    seen = list(itertools.islice(followed, 2000))
    log.write(b"one more\n")

    assert read.encode() == "".join(seen).encode() == data
    assert next(followed) == "one more\n"
    batches.close()


def test_a_disk_that_is_full_for_a_while_leaves_a_word(log: RotatingLog) -> None:
    log.write(b"before\n")
    target = log._open().fileno()
    saved, full = os.dup(target), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, target)
    log.write(b"lost\n")
    os.dup2(saved, target)
    log.write(b"after\n")
    os.close(full)
    os.close(saved)

    assert (log.write_error, log.lost_bytes) == ("No space left on device", 5)
    notice = "\nstoker: 5 bytes of this log are missing here: No space left on device\n"
    assert whole(log.path).decode() == f"before\n{notice}after\n"


# Prints as fast as it can and says how long the longest wait for the pipe was.
FLOOD = """
import os, sys, time
sys.stdout.buffer.write(b"first line\\n")
sys.stdout.buffer.write(b"\\xff" * 10_000_000 + b"\\n")
block = b"".join(b"line %d that is no text: \\xfe\\xff\\n" % n for n in range(10_000))
for _ in range(40):
    sys.stdout.buffer.write(block)
sys.stdout.buffer.write(b"last line\\n")
"""


def test_a_flood_waits_for_no_reader_and_is_kept_whole(tmp_path: Path) -> None:
    """400,000 lines and one of 10 MB, while whoever reads along takes its time."""
    told: list[str] = []

    def slow(line: str) -> None:
        if len(told) < 20:
            time.sleep(0.05)
        told.append(line[:40])

    sink = LogSink(tmp_path / "x.log", on_line=slow)
    child = subprocess.Popen([sys.executable, "-c", FLOOD], stdout=subprocess.PIPE)
    assert child.stdout is not None
    sink.drain(cast(BinaryIO, child.stdout))

    assert child.wait(timeout=120) == 0
    text = whole(sink.path)
    assert text.startswith(b"first line\n" + b"\xff" * 10_000_000 + b"\n")
    assert text.count(b"\n") == 400_003
    assert text.endswith(b"last line\n")
    assert sink.lost_bytes == 0
    assert told[-1] == sink.tail(1)[0] == "last line"


def test_a_reader_that_stands_still_stops_nobody(tmp_path: Path) -> None:
    """The server ends while the first line is still being read; later lines are told or passed."""
    may_go_on = threading.Event()
    told: list[str] = []

    def stuck(line: str) -> None:
        may_go_on.wait(60)
        told.append(line)

    sink = LogSink(tmp_path / "x.log", on_line=stuck)
    child = subprocess.Popen([sys.executable, "-c", FLOOD], stdout=subprocess.PIPE)
    assert child.stdout is not None
    drain = threading.Thread(target=sink.drain, args=(child.stdout,))
    drain.start()

    assert child.wait(timeout=60) == 0
    may_go_on.set()
    drain.join(timeout=60)
    assert told[-1] == "last line"
    assert whole(sink.path).count(b"\n") == 400_003


def test_the_numbered_files_of_others_are_not_joined(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    for name in ("server.log", "server.log.1", "server.log.2"):
        (tmp_path / name).write_text(f"{name}\n")

    assert log_parts(path) == [path]
    (tmp_path / "server.log.0").write_text("the first part\n")
    assert [part.suffix for part in log_parts(path)] == [".0", ".1", ".2", ".log"]
