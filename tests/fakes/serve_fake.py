"""What `stoker serve` runs after its command line is checked, on a fake engine.

`foreground PORT MODE TIMEOUT RESTARTS` is `--no-tui`, on `fake_engine`. On the engine of the
selftest, `detached NAME MODE [DELAY]` is `--detach`, `terminal NAME MODE` the way with a dashboard.
`service MODE TIMEOUT CARE` is `--no-tui` as a service manager starts it, CARE a JSON object of
ServerCare's fields; `selftest:MODE` takes the selftest's engine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from app.cli import exit_code_of
from app.commands.prepared_start import PreparedStart, run_detached, run_here, run_with_front
from app.launch.launch_specs import LaunchSpec
from app.selftest.run import fake_spec
from app.supervise.managed_server import ServerCare
from app.supervise.restart_policy import RestartPolicy
from app.supervise.service_notify import ServiceManager
from engine.machine.ports import free_port

_ENGINE = Path(__file__).with_name("fake_engine.py")
_SERVE_ARGS = ("--engine", "stoker")


def fake_engine_spec(port: int, mode: str, shutdown_timeout_s: float) -> LaunchSpec:
    """`fake_engine` in one of its modes, with a key."""
    return LaunchSpec(
        engine="fake",
        argv=(sys.executable, str(_ENGINE), "--port", str(port), "--mode", mode),
        model="fake",
        host="127.0.0.1",
        port=port,
        shutdown_timeout_s=shutdown_timeout_s,
        secrets={"STOKER_API_KEY": "very-secret-key"},
    )


def _foreground(port: str, mode: str, timeout: str, restarts: str) -> int:
    limit = int(restarts)
    policy = RestartPolicy(is_on=limit > 0, max_restarts=limit, first_delay_s=0.1)
    spec = fake_engine_spec(int(port), mode, 60.0)  # for a busy machine; a stubborn one is hurried
    return run_here(PreparedStart(spec, ServerCare(restart=policy), "fake", float(timeout)))


def _service(mode: str, timeout: str, care: str) -> int:
    chosen = json.loads(care)
    if "endpoint_file" in chosen:
        chosen["endpoint_file"] = Path(chosen["endpoint_file"])
    managed = ServerCare(service=ServiceManager.from_environment(os.environ), **chosen)
    own = mode.startswith("selftest:")
    spec = fake_spec(mode.removeprefix("selftest:")) if own else None
    spec = spec or fake_engine_spec(free_port(), mode, 60.0)
    return run_here(PreparedStart(spec, managed, "fake", float(timeout)))


def _detached(name: str, mode: str, delay: str | None = None) -> int:
    policy = RestartPolicy()
    if delay is not None:
        policy = RestartPolicy(is_on=True, first_delay_s=float(delay), longest_delay_s=float(delay))
    care = ServerCare(_SERVE_ARGS, is_background=True, stall_s=1.0, restart=policy)
    return run_detached(PreparedStart(fake_spec(mode), care, "fake", 60.0, name))


def _terminal(name: str, mode: str) -> int:
    spec = dataclasses.replace(fake_spec(mode), shutdown_timeout_s=2.0)
    return run_with_front(PreparedStart(spec, ServerCare(_SERVE_ARGS), "fake", 60.0, name))


def main() -> int:
    way, *words = sys.argv[1:]
    ways: dict[str, Callable[..., int]] = {
        "foreground": _foreground,
        "service": _service,
        "detached": _detached,
        "terminal": _terminal,
    }
    return exit_code_of(lambda: ways[way](*words), debug=False)


if __name__ == "__main__":
    sys.exit(main())
