"""`stoker logs` as a user runs it: a process, its two streams and its exit code."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[1] / "data" / "seed_example10.log"
FAILED = (
    "(APIServer pid=1) INFO 10-03 12:00:00 [a.py:1] vLLM server version 0.30.0, serving model o/m\n"
    "(APIServer pid=1) OSError: [Errno 98] Address already in use\n"
)
STARTING = FAILED.splitlines()[0] + "\n"


def stoker_logs(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    code = "import sys; from app.cli import main; sys.argv[0] = 'stoker'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "logs", *arguments],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_text_of_a_file() -> None:
    done = stoker_logs(str(SAMPLE))
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert done.stderr == b""
    assert lines[0] == ("26 lines: 11 APIServer, 15 EngineCore, 3 without a level (progress bars)")
    assert lines[3] == "KV tokens      40720 = 2545 blocks of 16"
    assert "  2 engine start and weight loading  22 s" in lines


@pytest.mark.parametrize("arguments", [("-",), ()])
def test_standard_input(arguments: tuple[str, ...]) -> None:
    done = stoker_logs(*arguments, given=SAMPLE.read_bytes())
    assert done.returncode == 0
    assert b"ready at       http://0.0.0.0:8000" in done.stdout


def test_json_is_one_document_with_the_documented_keys() -> None:
    done = stoker_logs("--json", str(SAMPLE))
    document = json.loads(done.stdout)
    assert (document["schema"], document["schema_version"]) == ("stoker.logs", 1)
    expected = {
        "outcome": "ready", "engine": "vllm", "engine_version": "0.30.0", "weights_gib": 14.96,
        "kv_memory_gib": 4.97, "kv_tokens": 40720, "max_concurrency": 1.24, "max_model_len": 32768,
        "compile_s": 24.61, "graph_gib": 0.31, "engine_init_s": 37.8,
        "ready_url": "http://0.0.0.0:8000", "processes": ["APIServer", "EngineCore"],
        "root_cause": None, "key_line": None, "kv_blocks": None,
    }  # fmt: skip
    assert {key: document[key] for key in expected} == expected


def test_plain_is_key_tab_value() -> None:
    done = stoker_logs("--plain", str(SAMPLE))
    rows = dict(line.split("\t") for line in done.stdout.decode().splitlines())
    assert rows["weights_gib"] == "14.96"
    assert rows["kv_blocks"] == "-"
    assert rows["phases.2.seconds"] == "22.0"
    assert rows["processes"] == "APIServer,EngineCore"


def test_a_failed_start() -> None:
    done = stoker_logs("-", given=FAILED.encode())
    text = done.stdout.decode()
    assert done.returncode == 1
    assert "failed to start: the port is already in use by another process" in text
    assert "line 2 (APIServer):\n    OSError: [Errno 98] Address already in use" in text
    assert "vllm serve o/m --port 8001" in text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"", "not a server log"),
        (b"gcc -c a.c\nerror: no such file\n", "not a server log"),
        (STARTING.encode(), "still starting"),
        (SAMPLE.read_bytes()[1200:2200], "beginning is missing"),
    ],
)
def test_not_enough_evidence(given: bytes, words: str) -> None:
    done = stoker_logs("-", given=given)
    assert done.returncode == 3
    assert words in done.stdout.decode()


@pytest.mark.parametrize("name", ["no-such-file.log", "."])
def test_a_file_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    done = stoker_logs(str(tmp_path / name))
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"cannot read" in done.stderr
    assert b"stoker logs server.log" in done.stderr


def test_two_formats_are_one_too_many() -> None:
    assert stoker_logs("--json", "--plain", str(SAMPLE)).returncode == 2


def test_no_file_and_a_terminal_is_a_usage_error() -> None:
    master, slave = pty.openpty()
    try:
        code = "import sys; from app.cli import main; main(['logs'])"
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=slave, capture_output=True, timeout=60, check=False
        )
    finally:
        os.close(master)
        os.close(slave)
    assert done.returncode == 2
    assert b"no log to read" in done.stderr
    assert b"stoker logs server.log" in done.stderr


def test_bytes_escapes_and_secrets_do_not_get_through() -> None:
    given = (
        STARTING.encode()
        + b"(APIServer pid=1) \xff\xfe\x00\n"
        + b"(APIServer pid=1) ValueError: \x1b[31mbad\x1b]0;x\x07 \xff key hf_abcdefghijkl\x9b2J\n"
    )
    for arguments in (("-",), ("--json", "-"), ("--plain", "-")):
        done = stoker_logs(*arguments, given=given)
        assert done.returncode == 1
        shown = done.stdout.decode()
        assert "hf_abc" not in shown
        assert "\x1b" not in shown
        assert "\x9b" not in shown
        assert "bad" in shown
