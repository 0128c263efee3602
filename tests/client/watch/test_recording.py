from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from app.client.errors import InvalidRecording, Unreachable
from app.client.watch.recording import RecordingWriter, read_recording

FIRST = 'a{x="1"} 1\nb 2\nc é\n'
SECOND = 'a{x="1"} 1\nb 3\nc é\n'
LONGER = SECOND + "d 4\n"


@pytest.fixture(params=["one.jsonl", "one.jsonl.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def raw_lines(path: Path) -> list[str]:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode().splitlines()


def write_session(path: Path) -> None:
    writer = RecordingWriter(path, ["one", "two"], 0.5)
    writer.scraped(0, 100.0, FIRST)
    writer.scraped(1, 100.25, LONGER)
    writer.debugged(0, 100.25, {"scheduler": {"num_steps": 3}})
    writer.scraped(0, 100.5, SECOND)
    writer.failed(1, 100.75, Unreachable("no server answers"))
    writer.scraped(0, 101.0, LONGER)
    writer.close()


def test_every_scrape_comes_back_byte_for_byte(path: Path) -> None:
    write_session(path)
    recording = read_recording(path)
    assert (recording.servers, recording.interval_s) == (("one", "two"), 0.5)
    texts = [(e.server, e.time_s, e.metrics) for e in recording.entries if e.lines is not None]
    assert texts == [(0, 0.0, FIRST), (1, 0.25, LONGER), (0, 0.5, SECOND), (0, 1.0, LONGER)]
    assert [e.error for e in recording.entries if e.error] == ["no server answers"]
    assert [dict(e.debug) for e in recording.entries if e.debug] == [
        {"scheduler": {"num_steps": 3}}
    ]


def test_only_changed_lines_are_written(path: Path) -> None:
    write_session(path)
    third = json.loads(raw_lines(path)[4])
    assert third == {"t": 0.5, "s": 0, "changed": {"1": "b 3"}}


def test_the_file_is_private_and_never_overwritten(path: Path) -> None:
    write_session(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidRecording, match="exists already"):
        RecordingWriter(path, ["one"], 1.0)


def test_equal_sessions_make_equal_files(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_session(tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_prompts_and_clients_stay_out(path: Path) -> None:
    entry = {"id": "r1", "state": "running", "place": None, "age_s": 1.5, "blocks": 3}
    private = {"prompt": "my secret", "client": "10.0.0.9", "messages": [{"content": "my secret"}]}
    writer = RecordingWriter(path, ["one"], 1.0)
    writer.scraped(0, 0.0, FIRST)
    writer.debugged(0, 0.0, {"requests": {"data": [{**entry, **private}], "num_not_listed": 0}})
    writer.close()
    assert "secret" not in "\n".join(raw_lines(path))
    debug = read_recording(path).entries[1].debug
    assert debug is not None
    assert debug["requests"] == {"data": [entry], "num_not_listed": 0}


def test_size_is_bounded(path: Path) -> None:
    writer = RecordingWriter(path, ["one"], 1.0, max_bytes=400)
    number = 0
    while not writer.is_full:
        writer.scraped(0, float(number), f"a {number}\nb 1\n")
        number += 1
    writer.scraped(0, float(number), FIRST)
    writer.close()
    assert sum(len(line.encode()) + 1 for line in raw_lines(path)) <= 400
    assert 2 < len(read_recording(path).entries) < number


def test_a_file_that_breaks_off_is_good_up_to_there(path: Path) -> None:
    writer = RecordingWriter(path, ["one"], 1.0)
    writer.scraped(0, 0.0, FIRST)
    before = path.read_bytes()  # as a killed recorder leaves it
    writer.scraped(0, 1.0, SECOND)
    both = path.read_bytes()
    writer.close()
    for raw, num_entries in ((before, 1), (both, 2), (both[:-12], 1)):
        path.write_bytes(raw)
        assert len(read_recording(path).entries) == num_entries


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no recording"),
        ("hello\n", "is not JSON"),
        ("[1]\n", "not an entry"),
        ('{"format":"other"}\n', "is no recording"),
        ('{"format":"stoker.recording","version":9}\n', "has version 9"),
        ('{"format":"stoker.recording","version":1,"servers":["a"],"interval_s":1}\n', "no sample"),
        (
            '{"format":"stoker.recording","version":1,"servers":["a"],"interval_s":1}\n'
            '{"t":0,"s":4,"metrics":"x"}\n',
            "cannot read",
        ),
        (
            '{"format":"stoker.recording","version":1,"servers":["a"],"interval_s":1}\n'
            '{"t":0,"s":0,"changed":{"3":"x"}}\n',
            "cannot read",
        ),
        (
            '{"format":"stoker.recording","version":1,"servers":["a"],"interval_s":1}\n'
            '{"t":NaN,"s":0,"metrics":"x"}\n',
            "cannot read",
        ),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidRecording, match=message):
        read_recording(path)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecording, match="cannot read"):
        read_recording(tmp_path / "missing.jsonl")
    (tmp_path / "text.gz").write_text("no gzip")
    with pytest.raises(InvalidRecording, match="no gzip file"):
        read_recording(tmp_path / "text.gz")
    with pytest.raises(InvalidRecording, match="cannot write"):
        RecordingWriter(tmp_path / "no" / "such.jsonl", ["one"], 1.0)


def test_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    header = {"format": "stoker.recording", "version": 1, "servers": ["a\x1b[2Jb"]}
    entry = {"t": 0, "s": 0, "error": "\x1b]0;title\x07gone"}
    lines = [json.dumps(line) for line in ({**header, "interval_s": 1}, entry)]
    path.write_text("\n".join(lines) + "\n")
    recording = read_recording(path)
    assert (recording.servers, recording.entries[0].error) == (("ab",), "gone")


def test_the_date_of_a_recording_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "dated.jsonl"
    writer = RecordingWriter(path, ["one"], 1.0, started_at_s=1_790_000_000.5)
    writer.scraped(0, 5.0, "vllm:num_requests_running 1")
    writer.close()
    assert read_recording(path).started_at_s == 1_790_000_000.5
