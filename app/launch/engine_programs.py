"""Our engine's programs besides its server: whether they can run, and the one that gets a model."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from app.errors import ExitCode, StokerError
from engine.machine.children import engine_command
from engine.machine.secrets import HUB_SECRETS, child_environment

ENGINE_PACKAGES = ("torch", "safetensors", "tokenizers", "fastapi", "uvicorn", "zmq", "msgspec")


def require_engine_extra() -> None:
    """Raise StokerError with the install command unless the [engine] extra is there."""
    missing = [name for name in ENGINE_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise StokerError(
            "this command needs the engine extra",
            hint=f"pip install 'stoker[engine]' (not installed: {', '.join(missing)})",
        )


def resolve_model(model: str) -> Path:
    """Let the engine find or download MODEL; it talks on stderr, its last line is the folder."""
    done = subprocess.run(
        engine_command("resolve", model),
        env=child_environment(*HUB_SECRETS),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        # The engine has already said on stderr what is wrong with the model.
        code = ExitCode.USAGE if done.returncode == ExitCode.USAGE else ExitCode.NO
        raise StokerError(f"the model {model} cannot be used", exit_code=code)
    return Path(lines[-1])
