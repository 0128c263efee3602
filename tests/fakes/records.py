"""Records of servers that are only told to run."""

from __future__ import annotations

import os
import time

from app.registry.server_registry import ServerRecord
from engine.machine.processes import process_identity


def record(name: str, *, pid: int | None = None, identity: str | None = None) -> ServerRecord:
    return ServerRecord(
        name=name,
        pid=os.getpid() if pid is None else pid,
        create_time=time.time(),
        identity=process_identity(os.getpid()) if identity is None else identity,
        supervisor_pid=os.getpid(),
        url="http://127.0.0.1:8000",
        model="m",
        engine="stoker",
        log_path="/tmp/x.log",
    )
