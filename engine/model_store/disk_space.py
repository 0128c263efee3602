"""Whether a disk has room for what is about to be written; asked before a byte is fetched."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine.errors import ModelStoreError
from engine.machine.sizes import human_bytes

OWN_CACHE_ELSEWHERE = "name another disk by STOKER_CACHE_DIR=FOLDER"
HUB_CACHE_ELSEWHERE = (
    "name another disk by HF_HOME=FOLDER (or HF_HUB_CACHE=FOLDER, for the models alone)"
)
"""What an error advises, by what was to be written."""


def require_room(what: str, needed_bytes: int, folder: Path, advice: str) -> None:
    """ModelStoreError with both figures when `folder` has too little; it need not be there yet."""
    place = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(place).free
    if free < needed_bytes:
        raise ModelStoreError(
            f"{what} needs {human_bytes(needed_bytes)} of disk; {folder} has "
            f"{human_bytes(free)} free",
            hint=f"free some space, or {advice}",
        )
