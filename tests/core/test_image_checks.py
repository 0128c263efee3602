"""Images that the tower cannot take are refused before they reach it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig, MultiModalConfig
from engine.core.image_checks import image_error
from engine.messages import EngineCoreRequest, ImageInput
from engine.model_families import VisionConfig
from engine.pooling_params import PoolingParams
from engine.sampling_params import SamplingParams
from tests.core.conftest import engine_config

IMAGE = ImageInput(2, 4, bytes(32), bytes(3 * 8 * 8 * 4), (3, 8, 8))
LATER = msgspec.structs.replace(IMAGE, offset=7)


@pytest.fixture(scope="module")
def config(wider_folder: Path) -> EngineConfig:
    plain = engine_config(wider_folder)
    vision = VisionConfig(image_token_id=9, tokens_per_image=4, image_size=8)
    return dataclasses.replace(
        plain,
        model=dataclasses.replace(plain.model, vision=vision),
        multimodal=MultiModalConfig(max_images=2),
    )


def asking(*images: ImageInput) -> EngineCoreRequest:
    return EngineCoreRequest("a", [9] * 11, SamplingParams(max_tokens=1), 0.0, images=images)


def test_what_fits_is_taken(config: EngineConfig) -> None:
    assert image_error(asking(), config) is None
    assert image_error(asking(IMAGE, LATER), config) is None


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ((IMAGE, IMAGE), "outside the prompt, or another image's"),
        ((LATER, IMAGE), "outside the prompt, or another image's"),
        ((msgspec.structs.replace(IMAGE, offset=8),), "outside the prompt"),
        ((msgspec.structs.replace(IMAGE, offset=-1),), "outside the prompt"),
        ((msgspec.structs.replace(IMAGE, num_tokens=5),), r"not one of \(3, 8, 8\) pixels"),
        ((msgspec.structs.replace(IMAGE, shape=(3, 4, 16)),), "not one of"),
        ((msgspec.structs.replace(IMAGE, pixels=b"short"),), "not one of"),
        ((msgspec.structs.replace(IMAGE, digest=b""),), "not one of"),
        ((IMAGE,) * 3, "has 3 images; at most 2"),
    ],
)
def test_what_does_not_fit_is_said(
    images: tuple[ImageInput, ...], said: str, config: EngineConfig
) -> None:
    assert re.search(said, image_error(asking(*images), config) or "")


def test_a_server_for_text_takes_none(config: EngineConfig) -> None:
    off = dataclasses.replace(config, multimodal=MultiModalConfig())
    blind = dataclasses.replace(config, model=dataclasses.replace(config.model, vision=None))
    assert image_error(asking(IMAGE), off) == "tiny takes no images here."
    assert image_error(asking(IMAGE), blind) == "tiny takes no images here."
    pooled = msgspec.structs.replace(asking(IMAGE), pooling=PoolingParams())
    assert image_error(pooled, config) == "Prompts with images have no embeddings."
