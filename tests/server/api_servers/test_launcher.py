"""The watch over the children of a server with several API servers, with children of the test's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from engine.args import EngineArgs
from engine.core.core_process import ChildProcess
from engine.server.api_servers import launcher as launcher_module
from engine.server.api_servers.control import Control, CoordinatorDown
from engine.server.api_servers.launcher import Launcher, _Child
from engine.server.http.binding import bind_socket

TIMEOUT_S = 60
ENDS = (sys.executable, "-c", "")
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    made = Launcher("model", EngineArgs(api_server_count=2), bind_socket("127.0.0.1", 0))
    yield made
    await made.shutdown()


def child(launcher: Launcher, name: str, number: int | None, *command: str) -> _Child:
    """Such a child, that runs a command of its own."""
    address = launcher._addresses.control(0 if number is None else number, 1)
    control = Control(launcher._context, address, binds=True)
    made = _Child(name, number, control, ChildProcess(command))
    launcher._children[name] = made
    return made


async def test_the_api_servers_learn_that_the_coordinator_is_gone(launcher: Launcher) -> None:
    coordinator = child(launcher, "DPCoordinator", None, *ENDS)
    server = child(launcher, "ApiServer_1", 1, *SLEEPS)
    server.is_told = True
    theirs = Control(launcher._context, launcher._addresses.control(1, 1), binds=False)
    await asyncio.wait_for(asyncio.shield(coordinator.exit), TIMEOUT_S)
    await launcher._bury(coordinator)
    try:
        assert await asyncio.wait_for(theirs.receive(), TIMEOUT_S) == CoordinatorDown()
    finally:
        theirs.close()


async def test_nothing_is_started_again_once_the_server_stops(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    def absent(word: str, *_words: str) -> list[str]:
        starts.append(word)
        launcher._is_stopping = True  # while it is being started
        return ["/absent/program"]

    monkeypatch.setattr(launcher_module, "engine_command", absent)
    coordinator = child(launcher, "DPCoordinator", None, *ENDS)
    await asyncio.wait_for(launcher._watch(coordinator), TIMEOUT_S)
    assert starts == ["coordinator"]


async def test_a_child_that_cannot_be_started_leaves_no_socket(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    controls: list[Control] = []

    class Kept(Control):
        def close(self) -> None:
            controls.append(self)
            super().close()

    monkeypatch.setattr(launcher_module, "Control", Kept)
    monkeypatch.setattr(launcher_module, "engine_command", lambda *_: ["/absent/program"])
    with pytest.raises(FileNotFoundError):
        launcher._spawn("ApiServer_0", 0)
    assert [control._socket.closed for control in controls] == [True]
