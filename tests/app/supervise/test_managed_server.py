"""A node without an API server: ready by its own word, listening nowhere, ended when stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from app.launch.engines import STOKER
from app.launch.launch_specs import LaunchSpec
from app.registry.server_registry import ServerRegistry
from app.supervise.ending import StopTimes
from app.supervise.managed_server import ManagedServer
from app.watch.readiness import StartOutcome
from tests.waiting import is_running, wait_for

_LINE = (
    "(Node_1 pid=7) INFO 10-03 12:00:00 [headless.py:1] Node serves node 0 at 10.0.0.1 with "
    "Worker_TP1."
)
_NODE = f"import time; print({_LINE!r}, flush=True); time.sleep(600)"


def test_a_node_is_ready_when_node_0_has_it_and_is_not_left_stopped(tmp_path: Path) -> None:
    spec = LaunchSpec(
        engine=STOKER,
        argv=(sys.executable, "-c", _NODE),
        model="m",
        host="10.0.0.1",
        port=8000,
        shutdown_timeout_s=0.0,
        node_rank=1,
    )
    server = ManagedServer(
        spec,
        name="m-node-1",
        log_path=tmp_path / "node.log",
        registry=ServerRegistry(tmp_path / "servers"),
        times=StopTimes(grace_s=0.1, group_s=0.1),
    )
    server.start()
    try:
        outcome = server.wait_until_ready(60.0, lambda: False, lambda: None)
        assert outcome is StartOutcome.READY
        server.begin_service()
        assert server.halt() is None
        process = psutil.Process(server._supervisor.pid)
        process.suspend()
        wait_for(lambda: server.halt() == "its process is stopped by a signal or a debugger")
    finally:
        report = server.stop()
    assert report.is_clean
    assert not is_running(process)
