"""Runs what `stoker serve --detach` runs after its command line is checked, on the fake engine."""

from __future__ import annotations

import sys

from app.cli import exit_code_of
from app.commands.serve import _run_detached
from app.selftest.run import fake_spec
from app.supervise.managed_server import ServerCare
from app.supervise.restart_policy import RestartPolicy


def main() -> int:
    name, mode, *delay = sys.argv[1:]
    policy = RestartPolicy()
    if delay:
        delay_s = float(delay[0])
        policy = RestartPolicy(is_on=True, first_delay_s=delay_s, longest_delay_s=delay_s)
    care = ServerCare(("--engine", "stoker"), is_background=True, stall_s=1.0, restart=policy)
    spec = fake_spec(mode)
    return exit_code_of(lambda: _run_detached(spec, name, "fake", 60.0, care), debug=False)


if __name__ == "__main__":
    sys.exit(main())
