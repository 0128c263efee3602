"""LoRA adapters as peft saves them: what a folder holds, and whether it goes with the model.

Reads adapter_config.json and the header of adapter_model.safetensors, never a weight; that is
`engine.models.lora`'s. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError, ModelError, ModelNotFoundError
from engine.model_config import ModelConfig
from engine.model_files.bounds import of_type, real_number, shown
from engine.model_files.json_objects import read_json
from engine.model_files.safetensors_header import read_header

MOST_LORA_RANK = 512
"""The highest that vLLM takes."""

_CONFIG, _WEIGHTS, _PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")
_LAYER = re.compile(r"(?:model\.)?(?:language_model\.)?(?:model\.)?layers\.(\d{1,6})\.(.+)")
_NUMBERS = ("F32", "F16", "BF16")
_LARGEST = 1e9
_LONGEST_PATTERN = 200
_LONGEST_NAME = 300  # of a module, which the patterns are tried on
_REPEATED_GROUP = re.compile(r"\)[*+{]|(?:[*+}].*){5}")


@dataclass(frozen=True, slots=True)
class LoraRequest:
    """An adapter by its name. `lora_id` counts loads from 1: a name that is loaded again, perhaps
    with other weights, has another one. `path` is an absolute folder.
    """

    name: str
    lora_id: int
    path: str


@dataclass(frozen=True, slots=True)
class AdapterModule:
    """Two matrices beside one linear of the model: A [rank, inputs] and B [outputs, rank].

    `name` is the linear's in the model (`model.layers.0.mlp.up_proj`), `a` and `b` are the tensors'
    in the file. `scaling` multiplies their product.
    """

    name: str
    rank: int
    inputs: int
    outputs: int
    scaling: float
    a: str
    b: str

    @property
    def place(self) -> tuple[int, str] | None:
        """The number of the layer and the rest of the name; None outside of the layers."""
        found = _LAYER.fullmatch(self.name)
        return None if found is None else (int(found[1]), found[2])


def absolute_folder(path: str) -> str:
    """`path` from the root on; a `~` that is no user's home stays as it is, a folder's name."""
    with contextlib.suppress(ValueError):  # of characters that no name has
        path = os.path.expanduser(path)
    return os.path.abspath(path)


def adapter_weights(folder: Path) -> Path:
    """The file with the matrices."""
    return folder / _WEIGHTS


def read_adapter(folder: Path, max_rank: int) -> list[AdapterModule]:
    """The modules of the adapter in `folder`, in the order of their names.

    Raises ModelNotFoundError for missing files, CorruptModelError for damaged ones, ModelError for
    an adapter of another kind and for a rank above `max_rank`.
    """
    _require_files(folder)
    config = read_json(folder / _CONFIG)
    _require_plain_lora(config, folder)
    modules = list(_modules(folder, config))
    if not modules:
        raise CorruptModelError(f"{folder / _WEIGHTS} holds no lora_A and lora_B tensors.")
    highest = max(modules, key=lambda module: module.rank)
    if highest.rank > max_rank:
        raise ModelError(
            f"The adapter in {folder} has rank {highest.rank} ({highest.name}), above "
            f"--max-lora-rank {max_rank}; start the server with --max-lora-rank {highest.rank}."
        )
    return modules


def require_fitting(modules: list[AdapterModule], model: ModelConfig, folder: Path) -> None:
    """Raise ModelError for an adapter that was made for another model than `model`, which our own
    code runs.
    """
    shapes = linear_shapes(model)
    for module in modules:
        place = module.place
        expected = shapes.get(place[1]) if place else None
        if place is None or expected is None:
            raise ModelError(
                f"The adapter in {folder} changes {module.name}, which {model.architecture} here "
                f"cannot have adapted; these can: {', '.join(short_names(shapes))}."
            )
        if place[0] >= model.num_hidden_layers:
            raise ModelError(
                f"The adapter in {folder} changes layer {place[0]}, and {model.served_name} has "
                f"{model.num_hidden_layers}: it was made for another model."
            )
        if (module.outputs, module.inputs) != expected:
            raise ModelError(
                f"The adapter in {folder} was made for another model: its {module.name} maps "
                f"{module.inputs} to {module.outputs} values, that of {model.served_name} "
                f"{expected[1]} to {expected[0]}."
            )


def linear_shapes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """[outputs, inputs] of each linear of a decoder layer that can have an adapter, by its name in
    the layer; those of experts cannot.
    """
    hidden, inner = model.hidden_size, model.intermediate_size
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    attention = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
    }
    if model.experts is not None:
        return attention
    return attention | {
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def short_names(shapes: Mapping[str, object]) -> list[str]:
    """The last part of each module's name, as peft's `target_modules` has them."""
    return [name.rpartition(".")[2] for name in shapes]


def _require_files(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelNotFoundError(f"No such adapter folder: {folder}.")
    if not (folder / _CONFIG).is_file():
        raise ModelNotFoundError(f"{folder} holds no {_CONFIG}; it is no adapter's folder.")
    if (folder / _WEIGHTS).is_file():
        return
    if (folder / _PICKLE).is_file():
        raise ModelError(
            f"{folder} holds its weights only as a pickle ({_PICKLE}), which is refused: loading "
            f"one can run any code. Save the adapter with peft's save_pretrained again."
        )
    raise ModelNotFoundError(f"{folder} holds no {_WEIGHTS}.")


def _require_plain_lora(config: Mapping[str, Any], folder: Path) -> None:
    kind = str(config.get("peft_type", "LORA")).upper()
    found = None
    if kind != "LORA":
        found = f"of the kind {kind}"
    elif config.get("use_dora"):
        found = "a DoRA (use_dora)"
    elif config.get("bias", "none") != "none":
        found = f"one that changes biases (bias {shown(config['bias'])})"
    elif config.get("modules_to_save"):
        found = f"one with whole modules of its own (modules_to_save {config['modules_to_save']})"
    elif config.get("layer_replication"):
        found = "one that repeats layers (layer_replication)"
    elif config.get("target_parameters"):
        found = "one of bare parameters (target_parameters)"
    if found is not None:
        raise ModelError(f"The adapter in {folder} is {found}; only plain LoRA is supported.")


def _modules(folder: Path, config: Mapping[str, Any]) -> Iterator[AdapterModule]:
    path = folder / _WEIGHTS
    header = read_header(path)
    sides: dict[str, dict[str, str]] = {}
    for name, entry in header.items():
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise ModelError(
                f"{path} holds the tensor {shown(name)}, which is none of a plain LoRA adapter."
            )
        if entry.dtype not in _NUMBERS or len(entry.shape) != 2:
            raise ModelError(
                f"{path}: {shown(name)} is {entry.dtype} {list(entry.shape)}; matrices of "
                f"{', '.join(_NUMBERS)} are read."
            )
        sides.setdefault(found["module"], {})[found["side"]] = name
    for stored, names in sorted(sides.items()):
        if len(stored) > _LONGEST_NAME:
            raise CorruptModelError(
                f"{path}: {shown(stored)} is the name of a module in {len(stored)} characters; it "
                f"can have {_LONGEST_NAME}."
            )
        if len(names) != 2:
            raise CorruptModelError(f"{path} has only one of the two matrices of {shown(stored)}.")
        (rank, inputs), (outputs, other) = (header[names[side]].shape for side in "AB")
        if rank != other or rank == 0:
            raise CorruptModelError(
                f"{path}: the matrices of {shown(stored)} have the ranks {rank} and {other}."
            )
        module = stored.removeprefix("base_model.model.")
        scaling = _scaling(config, module, rank, folder)
        yield AdapterModule(module, rank, inputs, outputs, scaling, names["A"], names["B"])


def _scaling(config: Mapping[str, Any], module: str, rank: int, folder: Path) -> float:
    """peft's rule: alpha through the rank, or through its root for rank-stabilised LoRA."""
    what = f"{folder / _CONFIG}: lora_alpha"
    alpha: Any = config.get("lora_alpha", 8)
    patterns = config.get("alpha_pattern") or {}
    of_type(patterns, f"{folder / _CONFIG}: alpha_pattern", dict, "an object")
    for pattern, value in patterns.items():
        if _names(pattern, module, folder):
            alpha = value
            break
    number = real_number(alpha, what, -_LARGEST, _LARGEST)
    return number / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _names(pattern: str, module: str, folder: Path) -> bool:
    """Whether a key of `alpha_pattern`, an expression for the end of a name, means `module`."""
    if module.endswith(f".{pattern}"):
        return True
    try:
        # Nested repetitions may take for ever, even on a short name.
        if len(pattern) > _LONGEST_PATTERN or _REPEATED_GROUP.search(pattern):
            raise ValueError("it is too long, or repeats a group")
        return re.match(rf"(?:.*\.)?(?:{pattern})$", module) is not None
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise CorruptModelError(
            f"{folder / _CONFIG}: alpha_pattern {shown(pattern)} is not read: {error}."
        ) from error


def parse_lora_module(text: str) -> tuple[str, str]:
    """`name=path`, or vLLM's JSON object with `name` and `path`; ValueError says what is wrong."""
    if text.lstrip().startswith("{"):
        return _from_json(text)
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise ValueError(f"{text!r} is not of the form NAME=PATH")
    return name, path


def _from_json(text: str) -> tuple[str, str]:
    try:
        document = json.loads(text)
        name, path = document["name"], document["path"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f'{text!r} is no JSON object like {{"name": "sql", "path": "/adapters/sql"}}'
        ) from error
    if not isinstance(name, str) or not isinstance(path, str) or not name or not path:
        raise ValueError(f"{text!r}: name and path must be texts")
    return name, path
