"""What `stoker serve` runs in a terminal after its command line is checked, on the fake engine."""

from __future__ import annotations

import dataclasses
import sys

from app.cli import exit_code_of
from app.commands.serve import _run_with_front
from app.selftest.run import fake_spec
from app.supervise.managed_server import ServerCare


def main() -> int:
    name, mode = sys.argv[1:]
    spec = dataclasses.replace(fake_spec(mode), shutdown_timeout_s=2.0)
    care = ServerCare(("--engine", "stoker"))
    return exit_code_of(lambda: _run_with_front(spec, name, "fake", 60.0, care), debug=False)


if __name__ == "__main__":
    sys.exit(main())
