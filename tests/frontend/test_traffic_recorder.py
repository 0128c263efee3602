"""The record of a server's traffic: what a line tells, what it does not, and what becomes of a disk
that is full, slow or not there.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import resource
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.env import PROBE_SALT
from engine.errors import ConfigError
from engine.frontend import traffic_recorder
from engine.frontend.traffic_recorder import TrafficFile, TrafficRecorder, check_traffic_file
from engine.messages import EngineCoreRequest, ImageInput
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams
from tests.waiting import wait_for

KEY = bytes(range(32))
BLOCK = 16
LARGE = 1 << 30
Told = Callable[[], list[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traffic.jsonl"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the engine's log has been told so far."""
    logger = logging.getLogger("engine")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    return lambda: [record.getMessage() for record in caplog.records]


def request(name: str, token_ids: Sequence[int], **more: Any) -> EngineCoreRequest:
    params = SamplingParams(temperature=0.0, max_tokens=9)
    return EngineCoreRequest(name, list(token_ids), params, 0.0, **more)


@contextmanager
def recording(path: Path, key: bytes = KEY, max_bytes: int = LARGE) -> Iterator[TrafficRecorder]:
    recorder = TrafficRecorder(TrafficFile(str(path), max_bytes, key), BLOCK)
    yield recorder
    recorder.close()


def note(recorder: TrafficRecorder, one: EngineCoreRequest, num_output_tokens: int = 3) -> None:
    recorder.note_arrival(one)
    recorder.note_end(one, num_output_tokens)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ids(path: Path, *requests: EngineCoreRequest, key: bytes = KEY) -> list[list[int]]:
    with recording(path, key) as recorder:
        for one in requests:
            note(recorder, one)
    return [line["hash_ids"] for line in lines(path)[-len(requests) :]]


def test_a_line_tells_arrival_lengths_and_blocks_and_nothing_else(path: Path) -> None:
    before_ms = round(time.time() * 1e3)
    with recording(path) as recorder:
        note(recorder, request("chatcmpl-of-somebody", range(40)), 7)
        note(recorder, request("given up", range(16)), 0)
        note(recorder, request("embedding", range(16), pooling=PoolingParams()), 0)
        note(recorder, request("of the supervisor", range(16), cache_salt=PROBE_SALT), 1)

    first, second = lines(path)
    assert before_ms <= first.pop("timestamp") <= round(time.time() * 1e3)
    blocks = first.pop("hash_ids")
    assert first == {"block_size": BLOCK, "input_length": 40, "output_length": 7}
    assert len(set(blocks)) == 3
    assert all(0 <= block < 1 << 53 for block in blocks)
    assert (second["output_length"], second["hash_ids"]) == (1, blocks[:1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_ids_are_equal_where_prompts_begin_alike_and_no_further(path: Path) -> None:
    first, same, branch, late = ids(
        path,
        request("a", range(40)),
        request("b", range(40)),
        request("c", [*range(20), 99, *range(21, 40)]),
        request("d", [99, *range(1, 40)]),
    )
    assert first == same
    assert (branch[0], len({*first, *branch})) == (first[0], 5)
    assert not {*first} & {*late}


def test_ids_tell_apart_what_the_cache_tells_apart(path: Path) -> None:
    def image(digest: bytes) -> ImageInput:
        return ImageInput(20, 4, digest, b"pixels", (1, 1, 1))

    plain, salted, one, other = ids(
        path,
        request("a", range(40)),
        request("b", range(40), cache_salt="mine"),
        request("c", range(40), images=(image(b"1"),)),
        request("d", range(40), images=(image(b"2"),)),
    )
    assert not {*plain} & {*salted}
    assert plain[0] == one[0] == other[0]
    assert len({plain[1], one[1], other[1]}) == 3


def test_without_the_key_a_known_prompt_cannot_be_looked_for(path: Path) -> None:
    one = request("a", range(40))
    (first,), (again,) = ids(path, one), ids(path, one, key=KEY[::-1])
    assert not {*first} & {*again}


def test_several_processes_continue_one_file(path: Path) -> None:
    with recording(path) as one, recording(path) as other:
        for number in range(50):
            note(one, request(f"a{number}", range(number + 1)))
            note(other, request(f"b{number}", range(number + 1)))
    assert sorted(line["input_length"] for line in lines(path)) == sorted([*range(1, 51)] * 2)


def test_it_ends_with_a_whole_line_where_it_may_not_grow(path: Path, told: Told) -> None:
    with recording(path, max_bytes=1000) as recorder:
        for number in range(50):
            note(recorder, request(f"a{number}", range(40)))
    assert 0 < path.stat().st_size <= 1000
    assert len(lines(path)) > 3
    assert told() == [
        f"The traffic record {path} ends here: it has reached the 1000 bytes of "
        "--record-traffic-max-bytes."
    ]


def test_a_full_disk_leaves_whole_lines_and_is_told(path: Path, told: Told) -> None:
    with recording(path) as recorder:
        note(recorder, request("a", range(40)))
    kept = path.read_bytes()
    path.write_bytes(kept * ((1 << 20) // len(kept)))
    whole = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with recording(path) as recorder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 20, hard))
        try:
            note(recorder, request("b", range(40)))
            wait_for(lambda: bool(told()))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.stat().st_size == whole
        note(recorder, request("d", range(24)))
    assert lines(path)[-1]["input_length"] == 24
    assert told() == [
        f"The traffic record {path} cannot be written: No space left on device.",
        f"The traffic record {path} lacks 1 request(s).",
    ]


def test_a_disk_that_hangs_holds_nobody_up(
    path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_recorder, "_MOST_WAITING_TOKENS", 100)
    monkeypatch.setattr(traffic_recorder, "_LAST_LINES_S", 0.01)
    recorder = TrafficRecorder(TrafficFile(str(path), LARGE, KEY), BLOCK)
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for number in range(10):
            note(recorder, request(f"a{number}", range(40)))
        recorder.close()
        assert path.read_bytes() == b""

    def num_lacking() -> int:
        found = (re.search(r"lacks (\d+) request", text) for text in told())
        return sum(int(one[1]) for one in found if one)

    wait_for(lambda: num_lacking() == 7 and path.read_bytes().count(b"\n") == 3)
    assert len(lines(path)) == 3


def test_the_cut_line_of_a_killed_writer_goes(path: Path) -> None:
    ids(path, request("a", range(40)))
    whole = path.read_bytes()
    for end in (1, 20, len(whole) - 1):
        path.write_bytes(whole + whole[:end])
        check_traffic_file(str(path))
        assert path.read_bytes() == whole
    path.write_bytes(whole[:5])
    check_traffic_file(str(path))
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "content",
    [b"# notes\n", b'{"timestamp": 1, "input_length": 5, "output_length": 2}', b"\0" * 99],
)
def test_a_file_of_another_kind_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no traffic record; name another file"):
        check_traffic_file(str(path))
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        check_traffic_file(str(tmp_path / "none" / "traffic.jsonl"))
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        check_traffic_file(str(tmp_path))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(ConfigError, match="cannot be written"):
        check_traffic_file(str(fifo))
