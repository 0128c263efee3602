"""ImageInputs: from the image parts of a chat to what the engine gets, or why there is none of it.

Owns the limit per prompt and the words of every refusal; reading and unpacking are `engine.images`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import RequestError
from engine.frontend.chat_template import ChatTemplate, ReadContent, content_parts, plain_text
from engine.frontend.tokenizer import Tokenizer
from engine.images.jobs import ImageError, ImageSetup
from engine.images.layout import ImageLayout, read_layout
from engine.images.reader import ImageReader
from engine.images.remote import MediaFetcher
from engine.images.sources import image_bytes
from engine.messages import ImageInput
from engine.server.http.body_limits import MAX_BODY_BYTES
from engine.server.image_room import ImageRoom, ImageShare
from engine.server.protocol import Message

_IMAGE_BODY_BYTES = 64 << 20
"""Of a request where images are taken: several of them, as base64."""

_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, slots=True)
class ImageReading:
    """What reads the images of a model: where they stand, who unpacks and who fetches them."""

    layout: ImageLayout
    reader: ImageReader
    max_images: int
    bytes_each: int  # of an image, unpacked
    room: ImageRoom
    fetcher: MediaFetcher = field(default_factory=MediaFetcher)


@dataclass(frozen=True, slots=True)
class PromptImages:
    """Images of one prompt, and the room that they have until its request ends."""

    inputs: tuple[ImageInput, ...] = ()
    share: ImageShare | None = None

    def leave(self) -> None:
        """The request has ended."""
        if self.share is not None:
            self.share.leave()


NO_IMAGES = PromptImages()


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """What a server does with images; without `reading` it refuses them, for `obstacle`."""

    reading: ImageReading | None = None
    obstacle: str = "this model reads text alone"

    @property
    def max_body_bytes(self) -> int:
        """Largest body of a request."""
        return MAX_BODY_BYTES if self.reading is None else _IMAGE_BODY_BYTES

    @property
    def read_content(self) -> ReadContent:
        """How a message's content goes to the chat template."""
        return plain_text if self.reading is None else content_parts

    def urls(self, messages: Sequence[Message], param: str) -> list[str]:
        """Where the images of a chat are, in their order; RequestError for more than are taken."""
        found = [url for message in messages for url in message.image_urls()]
        if found and self.reading is None:
            raise RequestError(
                f"Images are not taken: {self.obstacle}.", param=param, code="unsupported"
            )
        if self.reading is not None and len(found) > (most := self.reading.max_images):
            raise RequestError(
                f"At most {most} image(s) may be provided in one prompt, and {len(found)} came; "
                "send fewer, or start the server with "
                f"--limit-mm-per-prompt '{{\"image\": {len(found)}}}'.",
                param=param,
            )
        return found

    def expand(self, prompt: str, num_images: int, param: str) -> str:
        """The rendered prompt with the tokens of its images; as it is where there are none."""
        if self.reading is None or not num_images:
            return prompt
        return self.reading.layout.expand(prompt, num_images, param)

    async def inputs(
        self, urls: Sequence[str], token_ids: Sequence[int], param: str, num_samples: int = 1
    ) -> PromptImages:
        """The images of a prompt for the engine, which gets them with each of the samples.

        RequestError says which of them is not read; ApiError (429) that others take all room.
        """
        if self.reading is None or not urls:
            return NO_IMAGES
        layout = self.reading.layout
        offsets = layout.offsets(token_ids, len(urls), param)
        unpacked = len(urls) * num_samples * self.reading.bytes_each
        share = self.reading.room.take(unpacked + sum(map(len, urls)), param)
        found = []
        for number, (url, offset) in enumerate(zip(urls, offsets, strict=True), 1):
            try:
                data = await image_bytes(url, self.reading.fetcher)
                image = await self.reading.reader.read(data)
            except ImageError as error:
                raise RequestError(
                    f"Image {number} of the request {error}.", param=param
                ) from error
            found.append(
                ImageInput(offset, layout.num_tokens, image.digest, image.pixels, image.shape)
            )
        share.num_bytes = unpacked  # the texts are let go with the request's body
        return PromptImages(tuple(found), share)

    async def close(self) -> None:
        """End what unpacks images."""
        if self.reading is not None:
            await self.reading.reader.close()


def image_inputs(
    config: EngineConfig,
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    domains: Sequence[str] = (),
    num_servers: int = 1,
) -> ImageInputs:
    """What a server of this model takes; `domains` are the hosts that images are fetched from.

    `num_servers` API servers share the machine.
    """
    obstacle = _obstacle(config, template)
    if obstacle is not None:
        return ImageInputs(obstacle=obstacle)
    vision, folder = config.model.vision, Path(config.model.path)
    assert vision is not None, "else there is an obstacle"
    layout = read_layout(folder, tokenizer, vision)
    if isinstance(layout, str):
        return ImageInputs(obstacle=layout)
    assert template is not None, "as before"
    if not _has_place(template, layout):
        return ImageInputs(obstacle="the model's chat template has no place for them")
    bytes_each, most = vision.pixel_bytes, config.multimodal.max_images
    return ImageInputs(
        ImageReading(
            layout,
            ImageReader(ImageSetup(str(folder), vision.pixel_shape)),
            most,
            bytes_each,
            ImageRoom.of_machine(num_servers, most * bytes_each + _IMAGE_BODY_BYTES),
            MediaFetcher(tuple(domains)),
        )
    )


def _obstacle(config: EngineConfig, template: ChatTemplate | None) -> str | None:
    model = config.model
    if model.vision is None:
        return f"{model.served_name} ({model.architecture}) is served as a model of text alone"
    if model.implementation != "stoker":
        return f"{model.served_name} runs on transformers' code, which takes text alone here"
    if not config.multimodal.max_images:
        return "this server was started with --limit-mm-per-prompt '{\"image\": 0}'"
    if template is None:
        return "the model has no chat template, and images are a part of a chat"
    if not any((Path(model.path) / name).is_file() for name in _PROCESSOR_FILES):
        return f"the model's folder holds no {_PROCESSOR_FILES[0]}, which says how to prepare them"
    if importlib.util.find_spec("PIL") is None:
        return "Pillow is not installed beside the engine, which unpacks them: pip install pillow"
    return None


def _has_place(template: ChatTemplate, layout: ImageLayout) -> bool:
    parts = [{"type": "image"}, {"type": "text", "text": "a"}]
    try:
        prompt = template.render([{"role": "user", "content": parts}])
    except RequestError:
        return False
    return prompt.count(layout.placeholder) == 1
