"""Where Stoker keeps files: cache (models), state (logs), runtime (records of running servers).

XDG folders through platformdirs; `STOKER_CACHE_DIR` and `STOKER_STATE_DIR` override. Every folder
is made private (0700) on first use.
"""

from __future__ import annotations

import os
from pathlib import Path

_APP = "stoker"


def cache_dir() -> Path:
    """Folder of everything that can be made again: models, downloads."""
    override = os.environ.get("STOKER_CACHE_DIR")
    if override:
        return _private(Path(override))
    import platformdirs

    return _private(platformdirs.user_cache_path(_APP, appauthor=False))


def state_dir() -> Path:
    """Folder of what this machine's runs left behind: logs."""
    override = os.environ.get("STOKER_STATE_DIR")
    if override:
        return _private(Path(override))
    import platformdirs

    return _private(platformdirs.user_state_path(_APP, appauthor=False))


def runtime_dir() -> Path:
    """Folder of what means nothing after a reboot; below the state folder where there is none."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and not os.environ.get("STOKER_STATE_DIR") and os.access(base, os.W_OK):
        return _private(Path(base) / _APP)
    return _private(state_dir() / "run")


def models_dir() -> Path:
    """Folder of the models that `stoker models` manages."""
    return _private(cache_dir() / "models")


def logs_dir() -> Path:
    """Folder of the raw engine logs."""
    return _private(state_dir() / "logs")


def _private(folder: Path) -> Path:
    folder = folder.expanduser().absolute()
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
