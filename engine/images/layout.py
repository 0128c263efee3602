"""Where the images of a prompt stand in its text, and then among its tokens.

Follows transformers' Gemma3Processor: the chat template writes one word for each image, and in its
place come the soft tokens between two marks, with an empty line on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import RequestError
from engine.frontend.tokenizer import Tokenizer, read_tokenizer_config, token_text
from engine.model_families import VisionConfig
from engine.model_files.json_objects import read_optional_json


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """`placeholder` is what a template writes for an image, `expansion` what the model reads."""

    placeholder: str
    expansion: str
    soft_token_id: int
    num_tokens: int

    def expand(self, prompt: str, num_images: int, param: str) -> str:
        """The prompt with all tokens of its images; RequestError where a message names the word."""
        found = prompt.count(self.placeholder)
        if found != num_images:
            raise RequestError(
                f"The prompt has {found} places for an image (`{self.placeholder}`), and "
                f"{num_images} came. Leave that word out of the texts, and put images into "
                "messages of the user.",
                param=param,
            )
        return prompt.replace(self.placeholder, self.expansion)

    def offsets(self, token_ids: Sequence[int], num_images: int, param: str) -> list[int]:
        """Place of each image's first soft token; RequestError where a text has such tokens."""
        starts = [
            place
            for place, token_id in enumerate(token_ids)
            if token_id == self.soft_token_id
            and (place == 0 or token_ids[place - 1] != self.soft_token_id)
        ]
        total = token_ids.count(self.soft_token_id)
        if len(starts) != num_images or total != num_images * self.num_tokens:
            raise RequestError(
                "A text of the request has the token that stands for a part of an image; leave it "
                "out.",
                param=param,
            )
        return starts


def read_layout(folder: Path, tokenizer: Tokenizer, vision: VisionConfig) -> ImageLayout | str:
    """The layout of a model's images, or what of its files is missing for it."""
    (soft,) = tokenizer.token_strings([vision.image_token_id])
    config = read_optional_json(folder / "config.json")
    named = read_tokenizer_config(folder)
    begin = _mark("boi_token", named, config, tokenizer)
    end = _mark("eoi_token", named, config, tokenizer)
    if not (soft and begin and end):
        return (
            "the model's tokenizer lacks the tokens that images begin with, consist of, or end with"
        )
    length = read_optional_json(folder / "processor_config.json").get("image_seq_length", 256)
    if length != vision.tokens_per_image:
        return (
            f"the model's processor_config.json gives an image {length} tokens, and its "
            f"config.json {vision.tokens_per_image}"
        )
    return ImageLayout(
        placeholder=begin,
        expansion=f"\n\n{begin}{soft * vision.tokens_per_image}{end}\n\n",
        soft_token_id=vision.image_token_id,
        num_tokens=vision.tokens_per_image,
    )


def _mark(
    role: str, named: dict[str, Any], config: dict[str, Any], tokenizer: Tokenizer
) -> str | None:
    """The text of a mark: of tokenizer_config.json, or the id that config.json has for it."""
    nested = ("model_specific_special_tokens", "extra_special_tokens")
    for source in (named, *map(named.get, nested)):
        text = token_text(source.get(role)) if isinstance(source, dict) else None
        if text is not None:
            return text
    token_id = config.get(f"{role}_index", config.get(f"{role}_id"))
    return tokenizer.token_strings([token_id])[0] if isinstance(token_id, int) else None
