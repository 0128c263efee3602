"""Which safetensors files make up a checkpoint, and whether they are whole. No tensor is read."""

from __future__ import annotations

from pathlib import Path

from engine.errors import CorruptModelError, ModelError, RefusedFormatError
from engine.model_files.bounds import of_type, shown
from engine.model_files.json_objects import parse_json, read_json
from engine.model_files.safetensors_header import Header, read_header

INDEX_NAME = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_SECOND_COPY = "consolidated"  # Mistral's own format, beside the files of transformers


def checkpoint_headers(folder: Path) -> dict[Path, Header]:
    """The shards in name order, each checked to be complete, with what its header says.

    Raises RefusedFormatError when there are only pickles, else CorruptModelError.
    """
    return {path: read_header(path) for path in _files(folder)}


def checkpoint_files(folder: Path) -> list[Path]:
    """The same without the headers."""
    return list(checkpoint_headers(folder))


def index_files(text: bytes, source: str) -> list[str]:
    """Names of the files in a model.safetensors.index.json, sorted."""
    return _named_files(parse_json(text, source), source)


def _files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not files:
        raise _no_weights(folder)
    index = folder / INDEX_NAME
    if not index.is_file():
        return [path for path in files if _SECOND_COPY not in path.name] or files
    names = set(_named_files(read_json(index), str(index)))
    missing = sorted(names - {path.name for path in files})
    if missing:
        raise CorruptModelError(
            f"{folder} lacks {len(missing)} of the {len(names)} files that {INDEX_NAME} names: "
            f"{', '.join(missing[:5])}. Download the model again."
        )
    return [path for path in files if path.name in names]


def _named_files(document: dict[str, object], source: str) -> list[str]:
    what = f"{source} is damaged: weight_map"
    weight_map = of_type(document.get("weight_map"), what, dict, "an object")
    names = sorted({of_type(name, what, str, "a file's name") for name in weight_map.values()})
    for name in names:
        if name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
            raise CorruptModelError(f"{what} names {shown(name)}, which is no file of its folder.")
    return names


def _no_weights(folder: Path) -> ModelError:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not pickles:
        ggufs = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f" It holds {ggufs[0]}: give that file instead." if ggufs else ""
        return CorruptModelError(
            f"{folder} holds no *.safetensors file, so there are no weights to load.{hint}"
        )
    return RefusedFormatError(
        f"{folder} holds weights only as pickle files ({', '.join(pickles[:3])}). They are "
        "refused, because loading a pickle can run any code that is inside it. Use the model's "
        "safetensors version or a .gguf file, or convert it with transformers' save_pretrained on "
        "a machine that you can spare."
    )
