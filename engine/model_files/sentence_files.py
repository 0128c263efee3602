"""What sentence-transformers writes beside a model: how its hidden states become one vector.

Reads modules.json and the small files that it names; the weights of its dense layers stay unread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from engine.errors import CorruptModelError, ModelError
from engine.model_files.bounds import of_type, shown, whole_number
from engine.model_files.json_objects import read_json, read_json_list, read_optional_json

_MOST_FEATURES = 1 << 20
_LONGEST = 1 << 31
_POOLING = {
    "cls": "CLS",
    "lasttoken": "LAST",
    "max": "MAX",
    "mean": "MEAN",
    "mean_sqrt_len_tokens": "MEAN_SQRT_LEN",
    "weightedmean": "WEIGHTED_MEAN",
}
_OLD_POOLING = {  # one switch for each way
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_HARMLESS = ("Dropout", "Normalize")  # vectors get length 1 in any case
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
"""Classes of torch.nn that a dense layer may end with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFile:
    """A linear layer over the pooled vector; its weights lie in `folder`/model.safetensors."""

    folder: str
    in_features: int
    out_features: int
    activation: str
    has_residual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFiles:
    """`pooling_type` is a word of PoolingParams, None where there are no such files.

    `prompts` are put before a text by name, `default_prompt` where none is named; the pooling
    leaves their tokens out unless `pools_prompt`. Texts are lowered first if `lowers_case`.
    """

    pooling_type: str | None = None
    pools_prompt: bool = True
    dense: tuple[DenseFile, ...] = ()
    prompts: dict[str, str] | None = None
    default_prompt: str | None = None
    max_seq_length: int | None = None
    lowers_case: bool = False


def read_sentence_files(folder: Path) -> SentenceFiles:
    """Of a model folder; all defaults where it has no modules.json.

    Raises CorruptModelError for damage, ModelError for modules that this engine cannot run.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return SentenceFiles()
    settings = read_optional_json(folder / "config_sentence_transformers.json")
    transformer = read_optional_json(folder / "sentence_bert_config.json")
    prompts = _prompts(settings, folder)
    default = settings.get("default_prompt_name")
    what = f"{folder}/config_sentence_transformers.json: default_prompt_name"
    if default is not None and of_type(default, what, str, "a text") not in prompts:
        raise CorruptModelError(
            f"{what} is {shown(default)}, and its prompts are {', '.join(prompts) or 'none'}."
        )
    return SentenceFiles(
        **_modules(path),
        prompts=prompts,
        default_prompt=default,
        max_seq_length=_max_seq_length(folder, transformer),
        lowers_case=transformer.get("do_lower_case") is True,
    )


def _modules(path: Path) -> dict[str, Any]:
    """Pooling and dense layers, in the order of modules.json."""
    pooling: dict[str, Any] = {}
    dense = []
    for number, (kind, folder) in enumerate(_listed(path)):
        if number == 0:
            _require_transformer(path, kind, folder)
        elif kind == "Pooling":
            pooling = _pooling(path.parent / folder / "config.json")
        elif kind == "Dense" and pooling:
            dense.append(_dense(path.parent, folder))
        elif kind not in _HARMLESS:
            raise ModelError(
                f"{path} has the module {kind} at place {number}, which this engine cannot run; it "
                "runs a Transformer, a Pooling, then Dense and Normalize."
            )
    if not pooling:
        raise ModelError(
            f"{path} names no Pooling, so it does not say what the vector of a text is."
        )
    return {**pooling, "dense": tuple(dense)}


def _listed(path: Path) -> list[tuple[str, str]]:
    """(class, folder) of each module; a folder lies inside the model's."""
    found = []
    for entry in read_json_list(path):
        module = of_type(entry, f"{path}: a module", dict, "an object")
        kind = of_type(module.get("type"), f"{path}: type", str, "a text").rpartition(".")[2]
        folder = of_type(module.get("path", ""), f"{path}: path", str, "a text")
        if PurePosixPath(folder).is_absolute() or ".." in PurePosixPath(folder).parts:
            raise CorruptModelError(f"{path}: the path {folder!r} leads out of the model's folder.")
        found.append((kind, folder))
    return found


def _require_transformer(path: Path, kind: str, folder: str) -> None:
    if kind != "Transformer" or folder not in ("", "."):
        raise ModelError(
            f"{path} begins with {kind} in {folder or 'the folder itself'}; this engine runs "
            "models that begin with a Transformer whose config.json lies in the model's folder."
        )


def _pooling(path: Path) -> dict[str, Any]:
    config = read_json(path)
    words = config.get("pooling_mode")
    if words is None:
        words = [word for switch, word in _OLD_POOLING.items() if config.get(switch)] or ["mean"]
    what = f"{path}: pooling_mode"
    listed = [words] if isinstance(words, str) else of_type(words, what, list, "a list")
    words = [of_type(word, what, str, "a text") for word in listed]
    if len(words) != 1 or words[0] not in _POOLING:
        raise ModelError(
            f"{path} pools by {' and '.join(words)}; this engine pools by one of "
            f"{', '.join(_POOLING)}."
        )
    return {
        "pooling_type": _POOLING[words[0]],
        "pools_prompt": config.get("include_prompt") is not False,
    }


def _dense(model_folder: Path, folder: str) -> DenseFile:
    path = model_folder / folder / "config.json"
    config = read_json(path)
    activation = str(config.get("activation_function", "torch.nn.Tanh")).rpartition(".")[2]
    reads = config.get("module_input_name", "sentence_embedding")
    if activation not in ACTIVATIONS or reads != "sentence_embedding":
        raise ModelError(
            f"{path}: a dense layer over {reads} with {activation} is not supported; those over "
            f"sentence_embedding with {', '.join(ACTIVATIONS)} are."
        )
    return DenseFile(
        folder=folder,
        in_features=whole_number(
            config.get("in_features"), f"{path}: in_features", 1, _MOST_FEATURES
        ),
        out_features=whole_number(
            config.get("out_features"), f"{path}: out_features", 1, _MOST_FEATURES
        ),
        activation=activation,
        has_residual=config.get("use_residual") is True,
    )


def _prompts(settings: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """By name; one that is null says nothing."""
    source = f"{folder}/config_sentence_transformers.json: prompts"
    given = of_type(settings.get("prompts") or {}, source, dict, "an object")
    return {
        name: of_type(text or "", f"{source}.{name}", str, "a text") for name, text in given.items()
    }


def _max_seq_length(folder: Path, transformer: Mapping[str, Any]) -> int | None:
    """Newer files have it as the tokenizer's length, where a huge number stands for none."""
    length = transformer.get("max_seq_length")
    if length is None:
        tokenizer = read_optional_json(folder / "tokenizer_config.json")
        length = tokenizer.get("model_max_length")
        if not isinstance(length, int) or length >= _LONGEST:
            return None
    return whole_number(length, f"{folder}: max_seq_length", 1, _LONGEST)
