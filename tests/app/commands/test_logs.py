"""`stoker logs` as a user runs it: a process, its two streams and its exit code."""

from __future__ import annotations

import gzip
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.paths import logs_dir, records_dir
from app.registry.server_registry import ServerRecord, ServerRegistry
from app.views import raw_log
from app.views.raw_log import print_lines
from engine.machine.processes import process_identity
from tests.places import DATA

SAMPLE = DATA / "seed_example10.log"
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
    assert lines[0] == "vllm 0.30.0 with example-org/Coder-8B-Instruct is ready"
    assert lines[2] == ("26 lines: 11 APIServer, 15 EngineCore, 3 without a level (progress bars)")
    assert lines[5] == "KV tokens      40720 = 2545 blocks of 16"
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


LINES = SAMPLE.read_bytes().splitlines(keepends=True)


@pytest.fixture
def failed_log(tmp_path: Path) -> Path:
    path = tmp_path / "failed.log"
    path.write_text(FAILED)
    return path


def test_several_logs_are_explained_one_after_the_other(failed_log: Path) -> None:
    done = stoker_logs(str(SAMPLE), str(failed_log))
    text = done.stdout.decode()
    assert done.returncode == 1
    assert text.index(f"== {SAMPLE}") < text.index("is ready") < text.index(f"== {failed_log}")

    logs = json.loads(stoker_logs("--json", str(SAMPLE), str(failed_log)).stdout)["logs"]
    assert [(log["file"], log["outcome"]) for log in logs] == [
        (str(SAMPLE), "ready"),
        (str(failed_log), "failed"),
    ]


def test_brief_is_three_lines(failed_log: Path) -> None:
    done = stoker_logs("--brief", str(failed_log))
    assert done.returncode == 1
    assert len(done.stdout.decode().splitlines()) == 3
    assert b"vllm serve o/m --port 8001" in done.stdout


def test_two_starts_side_by_side(failed_log: Path) -> None:
    done = stoker_logs("--compare", str(SAMPLE), str(failed_log))
    assert done.returncode == 1
    lines = [line.split() for line in done.stdout.decode().splitlines()]
    assert ["*", "weights_gib", "14.96", "-"] in lines
    assert ["engine_version", "0.30.0", "0.30.0"] in lines

    rows = json.loads(stoker_logs("--compare", "--json", str(SAMPLE), str(SAMPLE)).stdout)["rows"]
    assert not any(row["differs"] for row in rows)
    assert stoker_logs("--compare", str(SAMPLE)).returncode == 2


def test_only_the_lines_that_failed(failed_log: Path) -> None:
    done = stoker_logs("--errors", "--plain", str(failed_log))
    assert done.returncode == 1
    assert done.stdout.decode().splitlines() == [
        "2\t1\tAPIServer\texception\tOSError: [Errno 98] Address already in use"
    ]


@pytest.mark.parametrize("name", ["weight", "2", "engine start and weight loading"])
def test_lines_of_one_phase(name: str) -> None:
    done = stoker_logs("--phase", name, str(SAMPLE))
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "2 engine start and weight loading: 22 s"
    assert "    Model loading took 14.96 GiB memory and 18.530412 seconds" in lines


@pytest.mark.parametrize("name", ["6", "ing", "lunch"])
def test_a_phase_that_is_none(name: str) -> None:
    done = stoker_logs("--phase", name, str(SAMPLE))
    assert done.returncode == 2
    assert b"configuration, engine start" in done.stderr


def test_one_line_and_the_table_of_all() -> None:
    line = "INFO 10-03 12:00:01 [x.py:1] Available KV cache memory: 4.97 GiB"
    done = stoker_logs("--explain-line", line)
    assert done.returncode == 0
    assert "source    v1/worker/gpu_worker.py" in done.stdout.decode().splitlines()
    assert stoker_logs("--explain-line", "words").returncode == 3

    rules = json.loads(stoker_logs("--rules", "--json").stdout)["rules"]
    ids = [rule["id"] for rule in rules]
    assert "kv-memory" in ids
    assert len(ids) == len(set(ids))


def test_options_that_exclude_each_other() -> None:
    assert stoker_logs("--brief", "--errors", str(SAMPLE)).returncode == 2
    assert stoker_logs("--follow", "--plain", str(SAMPLE)).returncode == 2
    assert stoker_logs("--follow", str(SAMPLE), str(SAMPLE)).returncode == 2
    assert stoker_logs("-", "-").returncode == 2


def test_a_running_server_by_name_and_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path))
    record = ServerRecord(
        name="mine", pid=os.getpid(), create_time=psutil.Process().create_time(),
        supervisor_pid=os.getpid(), url="http://127.0.0.1:1", model="m", engine="vllm",
        log_path=str(SAMPLE), identity=process_identity(os.getpid()),
    )  # fmt: skip
    ServerRegistry(records_dir()).add(record)
    for word in ("mine", str(os.getpid())):
        done = stoker_logs(word)
        assert done.returncode == 0
        assert b"is ready" in done.stdout
    done = stoker_logs("other")
    assert done.returncode == 2
    assert "hint: servers: mine (http://127.0.0.1:1); stoker logs" in done.stderr.decode()


def test_the_last_log_of_a_server_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed_log: Path
) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path))
    older = logs_dir() / "my-model-20260101-120000.log"
    older.write_bytes(SAMPLE.read_bytes())
    os.utime(older, (1, 1))
    (logs_dir() / "my-model-20260102-120000.log").write_text(FAILED)
    assert stoker_logs("my-model").returncode == 1
    assert stoker_logs("my").returncode == 2


STARTED = b"(APIServer pid=1000) INFO:     Application startup complete.\n"


class Following:
    """`stoker logs --follow` on a file that the test writes; lines of it come in `told`."""

    def __init__(self, *arguments: str) -> None:
        code = "import sys; from app.cli import main; main(sys.argv[1:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, "logs", "--follow", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def read_until(self, words: str) -> str:
        assert self._process.stdout is not None
        seen = ""
        for line in self._process.stdout:
            seen += line
            if words in line:
                return seen
        raise AssertionError(f"ended without {words!r}: {seen}")

    def interrupt(self) -> tuple[str, int]:
        self._process.send_signal(signal.SIGINT)
        rest, _ = self._process.communicate(timeout=60)
        return rest, self._process.returncode


def test_following_across_a_rotation_until_ctrl_c(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"".join(LINES[:10]))
    with Following(str(log)) as follow:
        assert "8 s" in follow.read_until("configuration")
        follow.read_until("4/4")
        log.rename(tmp_path / "server.log.1")
        log.write_bytes(b"".join(LINES[10:]) + STARTED)
        assert "14.96" in follow.read_until("ready at http://0.0.0.0:8000")
        rest, code = follow.interrupt()
    assert code == 0
    assert "example-org/Coder-8B-Instruct is ready" in rest


def test_following_lines_behind_a_prefix_that_nobody_knows(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = [b"~ gpu-node-7 ~ " + line for line in [*LINES, STARTED]]
    log.write_bytes(b"".join(lines[:4]))
    with Following(str(log)) as follow:
        with log.open("ab") as file:
            file.write(b"".join(lines[4:]))
        follow.read_until("ready at http://0.0.0.0:8000")
        rest, code = follow.interrupt()
    assert code == 0
    log.write_bytes(b"".join([*LINES, STARTED]))
    assert rest.strip() == stoker_logs(str(log)).stdout.decode().strip()


def test_following_a_start_that_fails_as_json_lines(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(STARTING)
    with Following("--json", str(log)) as follow:
        follow.read_until("engine_version")
        with log.open("a") as file:
            file.write(FAILED.splitlines()[1] + "\n")
        event = json.loads(follow.read_until("problem_found").splitlines()[-1])
        rest, code = follow.interrupt()
    assert event["line_number"] == 2
    assert code == 1
    document = json.loads(rest.splitlines()[-1])
    assert (document["event"], document["outcome"]) == ("report", "failed")


def test_following_standard_input_ends_with_it() -> None:
    done = stoker_logs("--follow", "-", given=STARTING.encode())
    assert done.returncode == 3
    assert b"still starting" in done.stdout


def test_the_lines_as_they_are(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    text = "".join(f"line {number} \x1b[31mé\x1b[0m\n" for number in range(30_000))
    log.write_text(text, encoding="utf-8")
    assert stoker_logs(str(log), "--raw").stdout.decode() == text
    assert stoker_logs("--raw", given=text.encode()).stdout.decode() == text
    last = "".join(text.splitlines(keepends=True)[-3:])
    for arguments in (["--tail", "3"], ["-n", "3"], ["--raw", "--tail", "3"]):
        assert stoker_logs(str(log), *arguments).stdout.decode() == last
    assert stoker_logs("-", "--tail", "3", given=text.encode()).stdout.decode() == last
    assert stoker_logs(str(log), "--tail", "40000").stdout.decode() == text
    (tmp_path / "server.log.gz").write_bytes(gzip.compress(text.encode()))
    assert stoker_logs(str(tmp_path / "server.log.gz"), "--tail", "3").stdout.decode() == last
    for refused in (["--brief"], ["--json"], ["--tail", "0"]):
        assert stoker_logs(str(log), "--raw", *refused).returncode == 2


def test_the_tail_goes_back_into_what_was_rotated_out(tmp_path: Path) -> None:
    (tmp_path / "x.log.head").write_text("a\n")
    (tmp_path / "x.log.0").write_text("b\nc\n")
    (tmp_path / "x.log").write_text("d\n")
    assert stoker_logs(str(tmp_path / "x.log"), "--tail", "2").stdout.decode() == "c\nd\n"


def test_a_terminal_gets_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_lines(["a\x1b]0;title\x07b"])
    assert "\x1b" not in capsys.readouterr().out


def test_following_the_lines_as_they_are(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("one\ntwo\nthree\n")
    with Following("--tail", "1", str(log)) as follow:
        assert follow.read_until("three") == "three\n"
        with log.open("a") as file:
            file.write("four\nfi")
        assert follow.read_until("four") == "four\n"
        assert follow.interrupt() == ("fi\n", 0)


def test_a_long_file_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "long.log"
    log.write_text("x" * 99 + "\n")
    monkeypatch.setattr(raw_log, "_LONG_BYTES", 100)
    monkeypatch.setattr(raw_log, "_TELL_EVERY", 1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with raw_log.reading_progress(log) as counted:
        assert list(counted(["x" * 99])) == ["x" * 99]
    assert "reading" in capsys.readouterr().err
    with raw_log.reading_progress(tmp_path / "none.log") as plain:
        assert list(plain(["a"])) == ["a"]
