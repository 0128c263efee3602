"""Gets a model that the command `stoker` brings by itself, by that command: one way to make it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from engine.errors import ModelNotFoundError
from engine.machine.secrets import child_environment

# The command lies beside the engine, whatever else is called `app` on this machine.
_COMMAND = Path(__file__).resolve().parents[2] / "stoker_launcher.py"


def fetch_builtin(name: str, say: Callable[[str], None]) -> None:
    """`stoker models pull NAME`; ModelNotFoundError with its words when that cannot be done."""
    command = [sys.executable, str(_COMMAND), "models", "pull", name]
    complaints = []
    with subprocess.Popen(
        command,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            kind, _, text = line.strip().partition(": ")
            if kind in ("error", "hint"):
                complaints.append(text)
            elif kind != "next":
                say(line.rstrip())
    if process.returncode != 0:
        reason = (
            "; ".join(text.rstrip(".") for text in complaints)
            or f"the command ended with code {process.returncode}"
        )
        raise ModelNotFoundError(f"Cannot get the model {name}: {reason}")
