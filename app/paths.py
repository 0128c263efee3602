"""Where Stoker keeps files: cache (models), state (logs), runtime (records of running servers).

XDG folders through platformdirs; `STOKER_CACHE_DIR` and `STOKER_STATE_DIR` override. Every folder
is made private (0700) on first use.
"""

from __future__ import annotations

import os
from pathlib import Path

from app.errors import ExitCode, StokerError

_APP = "stoker"
_CACHE = "STOKER_CACHE_DIR"
_STATE = "STOKER_STATE_DIR"


def cache_dir() -> Path:
    """Folder of everything that can be made again: models, downloads."""
    from engine.env import user_cache_dir

    return _private(user_cache_dir(), _CACHE)


def state_dir() -> Path:
    """Folder of what this machine's runs left behind: logs."""
    override = os.environ.get(_STATE)
    if override:
        return _private(Path(override), _STATE)
    import platformdirs

    return _private(platformdirs.user_state_path(_APP, appauthor=False), _STATE)


def runtime_dir() -> Path:
    """Folder of what means nothing after a reboot; below the state folder where there is none."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and not os.environ.get(_STATE) and os.access(base, os.W_OK):
        return _private(Path(base) / _APP, "XDG_RUNTIME_DIR")
    return _private(state_dir() / "run", _STATE)


def models_dir() -> Path:
    """Folder of the models that `stoker models` manages."""
    return _private(cache_dir() / "models", _CACHE)


def logs_dir() -> Path:
    """Folder of the raw engine logs."""
    folder = _private(state_dir() / "logs", _STATE)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StokerError(
            f"cannot write into {folder}",
            hint=f"choose another place with {_STATE}",
            exit_code=ExitCode.USAGE,
        )
    return folder


def _private(folder: Path, variable: str) -> Path:
    """The folder, made if need be; `variable` is what the user can set to have another one."""
    folder = folder.expanduser().absolute()
    if not folder.is_dir():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StokerError(
                f"cannot make the folder {folder}: {error.strerror}",
                hint=f"choose another place with {variable}",
                exit_code=ExitCode.USAGE,
            ) from error
    return folder
