"""Files of a tiny Gemma 3 that takes images: one token per byte, and images of four soft tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tiny_model import byte_tokenizer

SPECIAL = (
    *("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
    *("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
)
EOS, BOS, BOI, EOI, SOFT = 256, 257, 260, 261, 262
VOCAB = 264
SIDE = 28
TOKENS_PER_IMAGE = 4

CHAT_TEMPLATE = """{{ bos_token }}
{%- set opening = namespace(text="") -%}
{%- for message in messages -%}
  {%- if message.role == "system" -%}
    {%- set words = message.content if message.content is string else message.content[0].text -%}
    {%- set opening.text = words ~ "\\n\\n" -%}
  {%- else -%}
    {{- "<start_of_turn>" ~ ("model" if message.role == "assistant" else message.role) ~ "\\n" -}}
    {{- opening.text -}}
    {%- set opening.text = "" -%}
    {%- if message.content is string -%}
      {{- message.content | trim -}}
    {%- else -%}
      {%- for part in message.content -%}
        {{- "<start_of_image>" if part.type == "image" else part.text | trim -}}
      {%- endfor -%}
    {%- endif -%}
    {{- "<end_of_turn>\\n" -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<start_of_turn>model\\n" -}}{%- endif -%}"""


def config_of(**changes: Any) -> dict[str, Any]:
    """Its config.json."""
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "mm_tokens_per_image": TOKENS_PER_IMAGE,
        "boi_token_index": BOI,
        "eoi_token_index": EOI,
        "image_token_index": SOFT,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "dtype": "float32",
        "text_config": {
            "model_type": "gemma3_text",
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "max_position_embeddings": 1024,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": SIDE,
            "patch_size": 7,
        },
        **changes,
    }


def write_seeing_files(folder: Path, **changes: Any) -> Path:
    """Everything but the weights; `changes` are of config.json. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer(SPECIAL).save(str(folder / "tokenizer.json"))
    documents: dict[str, Any] = {
        "config": config_of(**changes),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<eos>",
            "bos_token": "<bos>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
        "processor_config": {
            "processor_class": "Gemma3Processor",
            "image_seq_length": TOKENS_PER_IMAGE,
        },
        "preprocessor_config": {
            "image_processor_type": "Gemma3ImageProcessor",
            "processor_class": "Gemma3Processor",
            "size": {"height": SIDE, "width": SIDE},
            "resample": 2,
            "rescale_factor": 1 / 255,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
            **dict.fromkeys(("do_convert_rgb", "do_pan_and_scan"), None),
        },
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def processed(processor: Any, messages: Any, tensors: str = "np") -> Any:
    """What transformers' own processor makes of a chat that is to be answered."""
    return processor.apply_chat_template(
        messages,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors=tensors,
    )


def write_seeing_model(folder: Path) -> Any:
    """The whole model, with random weights in float32; returns transformers' own of it."""
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    torch.manual_seed(7)
    config = {**config_of(), "initializer_range": 0.15}
    for part in ("text_config", "vision_config"):
        config[part] = {**config[part], "initializer_range": 0.15}
    model: Any = Gemma3ForConditionalGeneration(Gemma3Config.from_dict(config))
    model.train(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # transformers starts them at 0 and 1
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    model.save_pretrained(folder)
    write_seeing_files(folder)
    return model
