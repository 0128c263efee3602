"""Whether the images of a request are such as the model's tower takes.

The API server makes them so; one that does not fit would end EngineCore with all its requests.
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.messages import EngineCoreRequest, ImageInput
from engine.model_families import VisionConfig

_DIGEST_BYTES = 32


def image_error(request: EngineCoreRequest, config: EngineConfig) -> str | None:
    """What is wrong with the request's images, for a person, or None."""
    if not request.images:
        return None
    most, vision = config.multimodal.max_images, config.model.vision
    if vision is None or not most:
        return f"{config.model.served_name} takes no images here."
    if request.pooling is not None:
        return "Prompts with images have no embeddings."
    if len(request.images) > most:
        return f"The prompt has {len(request.images)} images; at most {most} are allowed."
    before = 0
    for image in request.images:
        if not (before <= image.offset and image.end <= len(request.prompt_token_ids)):
            return "An image's tokens are outside the prompt, or another image's."
        if not _is_for(vision, image):
            return f"An image is not one of {vision.pixel_shape} pixels, as the model takes them."
        before = image.end
    return None


def _is_for(vision: VisionConfig, image: ImageInput) -> bool:
    return (
        image.num_tokens == vision.tokens_per_image
        and tuple(image.shape) == vision.pixel_shape
        and len(image.pixels) == vision.pixel_bytes
        and len(image.digest) == _DIGEST_BYTES
    )
