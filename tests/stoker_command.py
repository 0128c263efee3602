"""The command `stoker` in a process of its own, from this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.places import ROOT

PROGRAM = (sys.executable, "-c", "from app.cli import main; main()")
_PATIENCE_S = 60


def run_stoker(
    *words: str, variables: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Its exit code, stdout and stderr; `variables` are added to the environment."""
    return subprocess.run(
        [*PROGRAM, *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        timeout=_PATIENCE_S,
        check=False,
    )
