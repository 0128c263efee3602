"""GGUF tokenizer metadata -> tokenizer.json and tokenizer_config.json.

Byte-level BPE (`gpt2`) is built with the tokenizers library. SentencePiece (`llama`) goes through
transformers' own GGUF reader, imported late.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError
from engine.models.gguf_file import GGUFFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

# Word patterns as the models' own tokenizer.json files state them; they differ in how digits group.
_WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS = {"llama-bpe": r"\p{N}{1,3}", "qwen2": r"\p{N}"}
_PLAIN = ("gpt-2", "default")
_DIGIT_SPLITTING = "smollm"


def write_tokenizer(file: GGUFFile, source: Path, folder: Path) -> None:
    """Write the two files into `folder`. Raises ModelError for tokenizers that are not known."""
    model = file.require("tokenizer.ggml.model")
    if model == "gpt2":
        build_bpe_tokenizer(file).save(str(folder / "tokenizer.json"))
    elif model == "llama":
        _convert_with_transformers(source, folder)
    else:
        raise ModelError(f"{file.path}: tokenizer {model!r} is not supported; gpt2 and llama are.")
    config = json.dumps(_tokenizer_config(file), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def build_bpe_tokenizer(file: GGUFFile) -> Tokenizer:
    """A byte-level BPE tokenizer with the pre-tokenizer that `tokenizer.ggml.pre` names."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    pre = str(file.get("tokenizer.ggml.pre", "default"))
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    merges = [_pair(merge) for merge in file.require("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=pre == "llama-bpe",
        )
    )
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, file)
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_tokens(tokenizer, file, tokens)
    if file.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        _prepend_bos(tokenizer, file, tokens)
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _pre_tokenizer(pre: str, file: GGUFFile) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if pre in _PLAIN:
        return ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == _DIGIT_SPLITTING:
        return Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    if pre in _DIGITS:
        pattern = Regex(_WORD_PATTERN.replace("DIGITS", _DIGITS[pre]))
        bytes_only = ByteLevel(add_prefix_space=False, use_regex=False)
        return Sequence([Split(pattern, behavior="isolated"), bytes_only])
    known = ", ".join((*_PLAIN, _DIGIT_SPLITTING, *_DIGITS))
    raise ModelError(
        f"{file.path}: pre-tokenizer {pre!r} is not known (known: {known}), so its text would be "
        "cut wrongly. Use the model's safetensors version."
    )


def _add_special_tokens(tokenizer: Tokenizer, file: GGUFFile, tokens: list[str]) -> None:
    from tokenizers import AddedToken

    kinds = file.require("tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    plain = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])


def _prepend_bos(tokenizer: Tokenizer, file: GGUFFile, tokens: list[str]) -> None:
    from tokenizers.processors import TemplateProcessing

    number = int(file.require("tokenizer.ggml.bos_token_id"))
    bos = tokens[number]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, number)]
    )


def _convert_with_transformers(source: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))


def _tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(file.require_setting("context_length")),
    }
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    for ours, theirs in names.items():
        number = file.get(f"tokenizer.ggml.{theirs}_token_id")
        if number is not None and 0 <= int(number) < len(tokens):
            config[f"{ours}_token"] = tokens[int(number)]
    template = file.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config
