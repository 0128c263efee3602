"""`stoker batch` whole: on scripted servers, and killed on the real engine with the tiny model."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli import run
from app.commands.batch_server import _socket_place
from tests.client.local_server import Answer, Call, Route, serving
from tests.e2e.running_server import STOKER, Server, tiny_server
from tests.tiny_model import write_tiny_llama
from tests.waiting import wait_for

Capture = pytest.CaptureFixture[str]
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()


def scripted(answer: Route) -> dict[str, Route]:
    return {"/v1/models": lambda _call: Answer([MODELS]), "/v1/completions": answer}


def echo(call: Call) -> Answer:
    return Answer([json.dumps({"echo": json.loads(call.body)["prompt"]}).encode()])


def requests(path: Path, count: int, **body: Any) -> Path:
    lines = (
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"p{number}", **body},
        }
        for number in range(count)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers(path: Path) -> dict[str, Any]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert max(Counter(entry["custom_id"] for entry in entries).values()) == 1
    return {entry["custom_id"]: entry["response"] for entry in entries}


def batch(capsys: Capture, *arguments: object) -> tuple[int, dict[str, Any]]:
    code = run(["batch", *map(str, arguments), "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else {}


def test_every_request_is_answered_under_its_id(tmp_path: Path, capsys: Capture) -> None:
    source, out = requests(tmp_path / "in.jsonl", 30), tmp_path / "out.jsonl"
    with serving(scripted(echo)) as server:
        code, document = batch(capsys, source, server.url, "-o", out, "--concurrency", 4)
    assert (code, document["schema"]) == (0, "stoker.batch")
    assert (document["total"], document["answered"], document["failed"]) == (30, 30, 0)
    found = answers(out)
    assert {name: entry["body"]["echo"] for name, entry in found.items()} == {
        f"r{number}": f"p{number}" for number in range(30)
    }
    assert {entry["status_code"] for entry in found.values()} == {200}


def test_a_second_run_sends_only_what_is_missing(tmp_path: Path, capsys: Capture) -> None:
    source, out = requests(tmp_path / "in.jsonl", 6), tmp_path / "out.jsonl"
    with serving(scripted(echo)) as server:
        batch(capsys, source, server.url, "-o", out)
        kept = out.read_text().splitlines()[:4]
        out.write_text("\n".join(kept) + '\n{"custom_id": "r')
        server.calls.clear()
        code, document = batch(capsys, source, server.url, "-o", out)
        assert (code, document["answered_before"], document["answered"]) == (0, 4, 6)
        assert len([call for call in server.calls if call.method == "POST"]) == 2
        assert len(answers(out)) == 6
        assert batch(capsys, source, server.url, "-o", out)[1]["answered_before"] == 6


def test_a_busy_server_is_asked_again_and_an_error_is_an_answer(
    tmp_path: Path, capsys: Capture
) -> None:
    seen: Counter[str] = Counter()
    first = {"p0": 429, "p1": 503, "p2": 500}

    def answer(call: Call) -> Answer:
        prompt = json.loads(call.body)["prompt"]
        seen[prompt] += 1
        if prompt == "p3":
            return Answer([b'{"error": {"message": "no"}}'], 400)
        is_first = seen[prompt] == 1 and prompt in first
        return Answer([b"{}"], first[prompt]) if is_first else echo(call)

    source, out = requests(tmp_path / "in.jsonl", 5), tmp_path / "out.jsonl"
    with serving(scripted(answer)) as server:
        code, document = batch(capsys, source, server.url, "-o", out)
    assert (code, document["failed"], document["retried"]) == (1, 1, 3)
    found = answers(out)
    assert {name: entry["status_code"] for name, entry in found.items()} == {
        **{f"r{number}": 200 for number in (0, 1, 2, 4)},
        "r3": 400,
    }
    assert found["r3"]["body"]["error"]["message"] == "no"
    assert seen == {"p0": 2, "p1": 2, "p2": 2, "p3": 1, "p4": 1}


@pytest.mark.parametrize(
    "strange",
    [
        Answer([b"no gzip"], headers={"Content-Encoding": "gzip"}),
        Answer(status=307, headers={"Location": "/v1/completions"}),  # to itself, without end
        Answer(status=429, headers={"Retry-After": "\xb2"}),
    ],
    ids=["encoding", "redirects", "pause"],
)
def test_what_a_broken_proxy_answers_is_asked_again(
    tmp_path: Path, capsys: Capture, strange: Answer
) -> None:
    seen = itertools.count()
    source, out = requests(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"

    def answer(call: Call) -> Answer:  # httpx follows 20 redirects
        return strange if next(seen) < (21 if strange.status == 307 else 1) else echo(call)

    with serving(scripted(answer)) as server:
        code, document = batch(capsys, source, server.url, "-o", out)
    assert (code, document["retried"]) == (0, 1)
    assert answers(out)["r0"]["body"] == {"echo": "p0"}


def test_a_failure_that_stays_is_written_down(tmp_path: Path, capsys: Capture) -> None:
    source, out = requests(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    with serving(scripted(lambda _call: Answer([b"oops"], 500))) as server:
        code, _ = batch(capsys, source, server.url, "-o", out, "--retries", 1)
    assert code == 1
    assert answers(out)["r0"] == {"status_code": 500, "request_id": "", "body": "oops"}


def test_time_that_is_up_leaves_the_rest_for_the_next_run(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = requests(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    with serving(scripted(echo)) as server:
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time())))
        code, document = batch(capsys, source, server.url, "-o", out)
        assert (code, document["answered"]) == (3, 0)
        monkeypatch.delenv("SLURM_JOB_END_TIME")
        assert batch(capsys, source, server.url, "-o", out)[0] == 0
    assert len(answers(out)) == 3


def test_no_server_and_wrong_lines(tmp_path: Path, capsys: Capture) -> None:
    source = requests(tmp_path / "in.jsonl", 1)
    with serving({}) as server:
        url = server.url
    assert run(["batch", str(source), url, "-o", str(tmp_path / "out")]) == 4
    assert not (tmp_path / "out").exists()
    source.write_text("{}\n")
    assert run(["batch", str(source), url]) == 2
    assert "line 1" in capsys.readouterr().err


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with tiny_server(tmp_path_factory.mktemp("model")) as running:
        yield running


def test_killed_again_and_again_it_answers_each_request_once(
    server: Server, tmp_path: Path
) -> None:
    source = requests(tmp_path / "in.jsonl", 60, max_tokens=8, ignore_eos=True)
    out = tmp_path / "out.jsonl"
    command = [str(STOKER), "batch", str(source), server.url, "-o", str(out), "--concurrency", "2"]

    def size() -> int:
        return out.stat().st_size if out.exists() else 0

    def run_until_it_writes() -> None:
        before = size()
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            wait_for(lambda: size() > before or process.poll() is not None)
            process.kill()

    for _ in range(3):
        run_until_it_writes()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = answers(out)
    assert found.keys() == {f"r{number}" for number in range(60)}
    assert all(entry["body"]["usage"]["completion_tokens"] == 8 for entry in found.values())


def started(*arguments: object) -> subprocess.Popen[str]:
    """A batch in a process of its own, as its server's supervisor takes the signals."""
    command = [str(STOKER), "batch", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_model_is_served_for_the_batch_alone(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    source = requests(tmp_path / "in.jsonl", 2000, max_tokens=8, ignore_eos=True, model="any/name")
    out = tmp_path / "out.jsonl"
    arguments = (source, model, "-o", out, "--concurrency", 2, "--json")
    with started(*arguments) as process:
        wait_for(lambda: process.poll() is not None or (out.exists() and out.stat().st_size > 0))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    count = json.loads(stdout)["answered"]
    assert 0 < count < 2000
    assert "ended, socket" in stderr  # the proof of the stop
    few = source.read_text().splitlines(keepends=True)[: count + 4]
    source.write_text("".join(few))
    with started(*arguments) as process:
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["answered"] == len(answers(out)) == count + 4
    assert "ended, socket" in stderr
    with started(*arguments) as process:  # nothing is left to do
        assert "starting" not in process.communicate()[1]
    assert process.returncode == 0


def test_a_server_of_its_own_ends_with_the_time(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    source = requests(tmp_path / "in.jsonl", 5000, max_tokens=64, ignore_eos=True)
    with started(source, model, "-o", tmp_path / "out.jsonl", "--time-limit", 1) as process:
        _, stderr = process.communicate()
    assert process.returncode == 3, stderr
    assert "the time was up" in stderr
    assert "ended, socket" in stderr


def test_one_server_has_one_model(tmp_path: Path, capsys: Capture) -> None:
    model = write_tiny_llama(tmp_path / "model")
    source = requests(tmp_path / "in.jsonl", 1, model="a")
    two = requests(tmp_path / "two.jsonl", 1, model="b").read_text().replace("r0", "r1")
    source.write_text(source.read_text() + two)
    assert run(["batch", str(source), str(model), "-o", str(tmp_path / "out")]) == 2
    assert "the requests name 2 models: a, b" in capsys.readouterr().err
    assert run(["batch", str(source), "no-such-model", "-o", str(tmp_path / "out")]) == 4
    assert "no server is called no-such-model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    for word in ("~no-such-user/model", "x" * 300):
        assert run(["batch", str(source), word, "-o", str(tmp_path / "out")]) in (2, 4)
        assert "unexpected" not in capsys.readouterr().err


def test_the_socket_of_its_own_server_lies_in_the_shorter_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, deep = tmp_path / "r", tmp_path / ("d" * 90)
    for folder in (runtime, deep):
        folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert _socket_place() == str(runtime)
    runtime.rmdir()
    assert _socket_place() == str(deep)
