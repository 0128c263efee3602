"""--limit-mm-per-prompt: what it says, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engine.args import EngineArgs
from engine.env import HostDevice
from engine.errors import ConfigError
from engine.model_config import ModelConfig
from engine.model_families import VisionConfig
from engine.multimodal_limits import DEFAULT_IMAGES, parse_image_limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ('{"image": 0}', 0),
        ('{"image": 3, "video": 0}', 3),
        ('{"image": {"count": 5, "width": 512}}', 5),
        ('{"image": {"width": 512}}', DEFAULT_IMAGES),
        ('{"audio": 0}', None),
        ("{}", None),
        (None, None),
    ],
)
def test_the_number_of_images(text: str | None, limit: int | None) -> None:
    assert parse_image_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4", "no JSON object like"),
        ("image=4", "is no JSON"),
        ('{"images": 4}', "'images' is not known; use image, video, audio"),
        ('{"image": -1}', "from 0 to 999"),
        ('{"image": true}', "from 0 to 999"),
        ('{"image": "4"}', "from 0 to 999"),
        ('{"image": {"count": 1.5}}', "from 0 to 999"),
        ('{"video": 1}', "video inputs cannot be had"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_image_limit(text)


def seeing_model() -> ModelConfig:
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
    tower = {"image_size": 896, "patch_size": 14}
    raw = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    return ModelConfig.from_raw({**raw, "vision_config": tower}, {}, Path(), "tiny")


def max_images(model: ModelConfig, **flags: Any) -> int:
    args = EngineArgs(max_model_len=2048, **flags)
    host = HostDevice("cpu", "cpu", None)
    return args.create_engine_config(model, host).multimodal.max_images


def test_a_model_with_a_tower_takes_images_unless_it_is_told_otherwise() -> None:
    model = seeing_model()
    assert model.vision == VisionConfig(
        image_token_id=262_144, tokens_per_image=256, image_size=896
    )
    assert max_images(model) == DEFAULT_IMAGES
    assert max_images(model, limit_mm_per_prompt='{"image": 3}') == 3
    assert max_images(model, limit_mm_per_prompt='{"image": 0}') == 0
    assert max_images(model, runner="pooling") == 0
    blind = dataclasses.replace(model, vision=None)
    assert max_images(blind, limit_mm_per_prompt='{"image": 3}') == 0
    fallback = dataclasses.replace(model, implementation="transformers")
    assert max_images(fallback) == 0


def test_a_step_must_have_room_for_an_image() -> None:
    model = seeing_model()
    with pytest.raises(ConfigError, match=r"below the 256 tokens of an image.*at least 256"):
        max_images(model, max_num_batched_tokens=255)
    assert max_images(model, max_num_batched_tokens=256) == DEFAULT_IMAGES
    text = '{"image": 0}'
    assert max_images(model, max_num_batched_tokens=255, limit_mm_per_prompt=text) == 0
