"""Runs what `stoker serve --no-tui` runs after its command line is checked, on the fake engine."""

from __future__ import annotations

import sys
from pathlib import Path

from app.cli import exit_code_of
from app.commands.serve import _run
from app.launch.launch_specs import LaunchSpec
from app.supervise.managed_server import ServerCare
from app.supervise.restart_policy import RestartPolicy


def main() -> int:
    port, mode, timeout = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    restarts = int(sys.argv[4])
    policy = RestartPolicy(is_on=restarts > 0, max_restarts=restarts, first_delay_s=0.1)
    care = ServerCare(restart=policy)
    engine = str(Path(__file__).with_name("fake_engine.py"))
    spec = LaunchSpec(
        engine="fake",
        argv=(sys.executable, engine, "--port", str(port), "--mode", mode),
        model="fake",
        host="127.0.0.1",
        port=port,
        shutdown_timeout_s=60.0,  # for a machine that is busy; a stubborn one is hurried
        secrets={"STOKER_API_KEY": "very-secret-key"},
    )
    return exit_code_of(lambda: _run(spec, None, "fake", timeout, care), debug=False)


if __name__ == "__main__":
    sys.exit(main())
