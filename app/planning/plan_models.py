"""Finds what `stoker plan MODEL` means: a folder, a GGUF file, a built-in shape, a hub id.

Reads config.json and headers only; downloads no weights.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from app.errors import ExitCode, StokerError, UsageError
from app.planning.builtin_shapes import BUILTIN_SHAPES
from app.planning.model_shapes import ModelShape
from app.planning.shape_reading import read_shape
from app.planning.weight_counts import count_weights, recorded_weights
from app.planning.weight_headers import folder_weights, weights_of_headers
from app.planning.weight_sizes import Weights
from engine.errors import ModelError
from engine.model_files.checkpoint import INDEX_NAME
from engine.model_files.config_values import read_config

# Words of models that share a name with a shape and have another one.
_SISTERS = frozenset(
    {"vl", "omni", "next", "moe", "vision", "mini", "multimodal", "eagle", "flash", "asr", "tts"}
)
# Words of checkpoints whose weights are packed: their size is not that of the shape.
_PACKED = re.compile(
    r"awq|gptq|fp8|fp4|int[48]|[248]bit|w\da\d|gguf|bnb|mlx|exl|quant|qat|lora|adapter",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """`command_name` is what an engine's command line takes; `is_gguf` needs llama.cpp."""

    shape: ModelShape
    weights: Weights
    command_name: str
    is_gguf: bool = False


def find_planned_model(text: str) -> PlannedModel:
    """The model; StokerError says what is wrong with it or what it could have been."""
    try:
        return _find(text)
    except ModelError as error:
        raise UsageError(str(error).rstrip(".")) from error


def _find(text: str) -> PlannedModel:
    path = Path(text).expanduser()
    if path.is_dir():
        return _from_folder(path, text, text)
    if path.is_file():
        return _from_file(path)
    if (builtin := _builtin_of_name(text)) is not None:
        return _from_shape(builtin)
    from engine.machine.hub import is_hub_id

    if is_hub_id(text):
        return _from_hub(text)
    near = difflib.get_close_matches(text.lower(), BUILTIN_SHAPES, n=1, cutoff=0.5)
    raise UsageError(
        f"no such model: {text}",
        hint=f"did you mean {near[0]}? `stoker plan --shapes` lists the built-in shapes"
        if near
        else "give a folder, a .gguf file, a Hugging Face id, or one of `stoker plan --shapes`",
    )


def shape_by_model_name(name: str) -> ModelShape | None:
    """The built-in shape that a server's model name stands for, where that is certain.

    Names are compared word by word, so that qwen3-4b is never qwen3-14b.
    """
    words = _words(name.rstrip("/").rsplit("/", 1)[-1])
    best: tuple[int, str] | None = None
    for key in BUILTIN_SHAPES:
        wanted = _words(key)
        if wanted <= words and (best is None or len(wanted) > best[0]):
            best = (len(wanted), key)
    if best is None or (best[1] == "mistral-7b" and "v0.1" in words):  # that one has windows
        return None
    if words & (_SISTERS - _words(best[1])):
        return None
    return read_shape(BUILTIN_SHAPES[best[1]].config, best[1])


def _words(text: str) -> frozenset[str]:
    """`Meta-Llama-3.1-8B-Instruct` -> meta, llama, 3.1, 8b, instruct; `Qwen3` -> qwen, 3."""
    words: list[str] = []
    for word in text.lower().replace("_", "-").split("-"):
        letters = word.rstrip("0123456789.")
        if letters.isalpha() and len(letters) > 1 and letters != word:
            words += [letters, word[len(letters) :]]
        else:
            words.append(word)
    return frozenset(words)


def _builtin_of_name(text: str) -> str | None:
    """The built-in shape of this name, which may be that of its repository without the owner."""
    name = text.lower()
    if name in BUILTIN_SHAPES:
        return name
    ids = ((key, shape.hub_id.lower().partition("/")[2]) for key, shape in BUILTIN_SHAPES.items())
    return next((key for key, repository in ids if repository == name), None)


def builtin_of_hub_id(repo_id: str) -> str | None:
    """The built-in shape whose weights lie under this id."""
    wanted = repo_id.lower()
    return next((n for n, shape in BUILTIN_SHAPES.items() if shape.hub_id.lower() == wanted), None)


def _from_shape(name: str) -> PlannedModel:
    builtin = BUILTIN_SHAPES[name]
    shape = read_shape(builtin.config, name)
    recorded = builtin.recorded
    weights = recorded_weights(shape, recorded) if recorded else count_weights(shape)
    return PlannedModel(shape, weights, builtin.hub_id)


def _from_folder(folder: Path, text: str, name: str) -> PlannedModel:
    config = folder / "config.json"
    if not config.is_file():
        ggufs = sorted(path.name for path in folder.glob("*.gguf"))
        raise UsageError(
            f"{folder} holds no config.json; it is no model folder",
            hint=f"it holds {ggufs[0]}: give that file" if ggufs else None,
        )
    shape = read_shape(read_config(config), name)
    if any(path.name == INDEX_NAME or path.suffix in _WEIGHT_FILES for path in folder.iterdir()):
        return PlannedModel(shape, folder_weights(folder, shape), text)
    counted = count_weights(shape)
    basis = f"{counted.basis} in config.json: the folder holds no weights"
    return PlannedModel(shape, dataclasses.replace(counted, basis=basis), text)


_WEIGHT_FILES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf"})


def _from_file(path: Path) -> PlannedModel:
    if path.suffix != ".gguf":
        raise UsageError(
            f"{path} is no model that can be planned with",
            hint="give its folder" if path.suffix == ".safetensors" else "give a .gguf file",
        )
    from app.planning.gguf_shape import read_gguf

    shape, weights = read_gguf(path)
    return PlannedModel(shape, weights, str(path), is_gguf=True)


def _from_hub(repo_id: str) -> PlannedModel:
    """From the hub's cache where it is complete, else config and headers by range request."""
    from engine.model_store.files import find_hub_model

    if (folder := find_hub_model(repo_id)) is not None:
        return _from_folder(folder, repo_id, repo_id)
    try:
        return _from_repository(repo_id)
    except StokerError as error:
        if error.exit_code != ExitCode.UNREACHABLE:
            raise
        # Offline or gated: its shape may be known here.
        if (name := builtin_of_hub_id(repo_id)) is not None:
            return _from_shape(name)
        if (name := _sister_of_hub_id(repo_id)) is not None:
            return _as_sister(repo_id, name)
        raise


def _sister_of_hub_id(repo_id: str) -> str | None:
    """The built-in shape of which this is another training by the same owner, as the name says."""
    owner, _, name = repo_id.partition("/")
    shape = None if _PACKED.search(name) else shape_by_model_name(name)
    if shape is None:
        return None
    is_same_owner = BUILTIN_SHAPES[shape.name].hub_id.lower().startswith(f"{owner.lower()}/")
    return shape.name if is_same_owner else None


def _as_sister(repo_id: str, name: str) -> PlannedModel:
    found = _from_shape(name)
    basis = f"{found.weights.basis}, as a relative of {name}: the hub could not be asked"
    return PlannedModel(found.shape, dataclasses.replace(found.weights, basis=basis), repo_id)


def _from_repository(repo_id: str) -> PlannedModel:
    from app.planning.hub_files import open_repository

    repository = open_repository(repo_id)
    shape = read_shape(repository.config(), repo_id)
    headers = repository.safetensors_headers()
    basis = f"headers of {len(headers)} safetensors file(s) on the hub"
    return PlannedModel(shape, weights_of_headers(headers, shape, basis), repo_id)
