"""`stoker sleep` and `wake` against a small HTTP server: what is sent, said and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from app.cli import run
from app.errors import ExitCode
from tests.client.local_server import Answer, Call, LocalServer, serving


@dataclass
class Sleeper:
    """A server of vLLM's shape, with `tells_level` of ours; `status` is its answer to /sleep."""

    level: int = 0
    status: int = 200
    tells_level: bool = False

    def is_sleeping(self, _call: Call) -> Answer:
        told = {"level": self.level} if self.tells_level else {}
        return Answer([json.dumps({"is_sleeping": self.level > 0, **told}).encode()])

    def sleep(self, call: Call) -> Answer:
        if self.status == 200:
            asked = int(dict(part.split("=") for part in query(call))["level"])
            self.level = max(self.level, asked)
        return Answer([b"Sleep mode is not enabled"], self.status)

    def wake_up(self, _call: Call) -> Answer:
        self.level = 0
        return Answer()


def query(call: Call) -> list[str]:
    return urlsplit(call.path).query.split("&")


@pytest.fixture
def sleeper() -> Sleeper:
    return Sleeper()


@pytest.fixture
def server(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    for name in ("STOKER_URL", "STOKER_API_KEY", "VLLM_API_KEY", "STOKER_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    routes = {
        "/is_sleeping": sleeper.is_sleeping,
        "/sleep": sleeper.sleep,
        "/wake_up": sleeper.wake_up,
    }
    with serving(routes) as local:
        yield local


def test_to_sleep_and_back(
    server: LocalServer, sleeper: Sleeper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sleep", server.url, "--level", "2"]) == 0
    assert sleeper.level == 2
    asked = next(call for call in server.calls if call.method == "POST")
    assert sorted(query(asked)) == ["level=2", "mode=wait"]
    said = capsys.readouterr().err
    assert f"sleeps (level 2); `stoker wake {server.url}` wakes it" in said
    assert run(["wake", server.url]) == 0
    assert sleeper.level == 0
    assert run(["wake", server.url]) == 0
    said = capsys.readouterr().err
    assert "is awake\n" in said
    assert "was awake already" in said
    # The second one may wait for its requests to sleep, which nobody can see.
    assert [call.path for call in server.calls if call.method == "POST"][1:] == ["/wake_up"] * 2


@pytest.mark.parametrize(
    ("before", "asked", "said"), [(1, 2, "level 2"), (2, 1, "level 2"), (1, 1, "level 1")]
)
def test_who_sleeps_already_says_how_deep(
    before: int,
    asked: int,
    said: str,
    server: LocalServer,
    sleeper: Sleeper,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sleeper.level, sleeper.tells_level = before, True
    assert run(["sleep", server.url, "--level", str(asked)]) == 0
    assert f"sleeps ({said})" in capsys.readouterr().err


def test_vllm_sleeps_already_and_does_not_say_how_deep(
    server: LocalServer, sleeper: Sleeper, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper.level = 1
    assert run(["sleep", server.url, "--level", "2"]) == 0
    assert "sleeps already" in capsys.readouterr().err


def test_the_mode_is_passed_on_and_a_mistake_is_named(
    server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sleep", server.url, "--mode", "abort"]) == 0
    assert "mode=abort" in query(next(call for call in server.calls if call.method == "POST"))
    assert run(["sleep", server.url, "--mode", "now"]) == ExitCode.USAGE
    assert "use wait, abort, keep" in capsys.readouterr().err
    assert run(["sleep", server.url, "--level", "3"]) == ExitCode.USAGE


@pytest.mark.parametrize("status", [400, 500])
def test_one_that_was_started_without_the_mode_says_how_to_start_it(
    server: LocalServer, sleeper: Sleeper, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper.status = status
    assert run(["sleep", server.url]) == ExitCode.NO
    said = capsys.readouterr().err
    assert "cannot be put to sleep" in said
    assert "--enable-sleep-mode; vLLM needs VLLM_SERVER_DEV_MODE=1" in said


def test_one_without_the_endpoints_says_how_to_start_it(
    server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.routes.clear()
    assert run(["wake", server.url]) == ExitCode.NO
    assert "VLLM_SERVER_DEV_MODE=1" in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str], server: LocalServer) -> None:
    server.stop()
    assert run(["sleep", server.url]) == ExitCode.UNREACHABLE
