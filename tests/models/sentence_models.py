"""Tiny random models with the files of sentence-transformers, which is also their oracle."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_VOCABULARY = (
    *_SPECIAL,
    *string.ascii_lowercase,
    *(f"##{char}" for char in string.ascii_lowercase),
    *string.digits,
    *":|,.",
)
_SHAPE: Mapping[str, Any] = {
    "vocab_size": len(_VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "initializer_range": 0.15,
    "pad_token_id": 0,
}
GEMMA: Mapping[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "use_bidirectional_attention": True,
}


def save_encoder(folder: Path, config_class: str, **changes: Any) -> None:
    """A headless model with that class of transformers' configurations, and its tokenizer."""
    torch.manual_seed(3)
    config = getattr(transformers, config_class)(**{**_SHAPE, **changes})
    auto_model: Any = transformers.AutoModel
    save_with_tokenizer(folder, auto_model.from_config(config))


def save_with_tokenizer(folder: Path, model: Any) -> None:
    """Weights away from 0 and 1, where norms and biases start."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name.lower():
            torch.nn.init.normal_(parameter, mean=0.3, std=0.3)
    model.save_pretrained(folder)
    _tokenizer(96).save_pretrained(folder)


def sentence_transformer(
    folder: Path, target: Path, *modules: Any, prompts: dict[str, str] | None = None, **more: Any
) -> Any:
    """`modules` behind the model of `folder`, saved to `target` and read again from there."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    made = SentenceTransformer(
        modules=[Transformer(str(folder)), *modules], prompts=prompts, device="cpu", **more
    )
    made.save_pretrained(str(target), create_model_card=False)
    return SentenceTransformer(str(target), device="cpu")


def _tokenizer(max_length: int) -> Any:
    fast = Tokenizer(
        models.WordPiece({word: n for n, word in enumerate(_VOCABULARY)}, unk_token="[UNK]")
    )
    fast.normalizer = normalizers.BertNormalizer()
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer_class: Any = transformers.PreTrainedTokenizerFast
    return tokenizer_class(
        tokenizer_object=fast,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=max_length,
    )
