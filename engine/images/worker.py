"""The process that unpacks images: Pillow reads them, the model's own processor makes pixels.

Each file is read in a child with limits: see `engine.core.forked_jobs`. A job's body is the file,
an answer's an ImageReply. Only transformers' processors over Pillow and numpy run here, no torch.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from io import BytesIO
from typing import TYPE_CHECKING, Any

import msgspec

from engine.core.forked_jobs import serve_jobs
from engine.images.jobs import (
    LIMITS,
    MAX_IMAGE_PIXELS,
    ImageError,
    ImageReply,
    ImageSetup,
    ProcessedImage,
)

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


class ImageProcessor:
    """What makes pixels of the files of one model's prompts."""

    def __init__(self, setup: ImageSetup) -> None:
        from transformers import AutoImageProcessor

        processors: Any = AutoImageProcessor
        self._shape = setup.shape
        self._processor = processors.from_pretrained(
            setup.folder, backend="pil", local_files_only=True, trust_remote_code=False
        )
        # As Gemma3Processor has it: what the file of the image processor says does not count.
        is_cropping = hasattr(self._processor, "do_pan_and_scan")
        self._settings = {"do_pan_and_scan": False} if is_cropping else {}

    def process(self, data: bytes) -> ProcessedImage:
        """The pixels of one file; ImageError says why there are none."""
        import numpy as np

        image = decode_image(data)
        found = self._processor(images=[image], return_tensors="np", **self._settings)
        pixels = np.asarray(found["pixel_values"][0], dtype="<f4")
        if pixels.shape != self._shape:
            raise ImageError(
                f"cannot be used: the model's processor makes {pixels.shape} numbers of it, and "
                f"its tower takes {self._shape}"
            )
        raw = pixels.tobytes()
        digest = hashlib.sha256(struct.pack("<3q", *self._shape))
        digest.update(raw)
        return ProcessedImage(raw, self._shape, digest.digest())


def decode_image(data: bytes) -> Image:
    """The first picture of a file, upright and in RGB, as transformers' `load_image` gives it.

    Its size is known from the file's beginning, and is checked before anything is unpacked.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
        _check_size(image.size)
        image.load()
        _check_size(image.size)
        ImageOps.exif_transpose(image, in_place=True)  # without a copy, as images may be large
        return image if image.mode == "RGB" else image.convert("RGB")
    except UnidentifiedImageError as error:
        raise ImageError(
            "is no PNG, JPEG, WebP or GIF file, or its beginning is damaged"
        ) from error
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise whatever a damaged file leads them to
        raise ImageError(f"is damaged or cut off ({error})") from error


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MAX_IMAGE_PIXELS:
        raise ImageError(
            f"has {width} x {height} pixels; at most {MAX_IMAGE_PIXELS // 1_000_000} million are "
            "read, so make it smaller"
        )


def main() -> int:
    """Serve until stdin is closed."""
    return serve_jobs(_load, _process, LIMITS)


def _load(payload: bytes) -> ImageProcessor | str:
    """The model's processor, or why there is none."""
    # transformers uses torch where it finds it, which takes seconds and memory for nothing.
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # about just that
    try:
        from PIL import Image

        Image.MAX_IMAGE_PIXELS = None  # the size is checked here, with a limit of our own
        return ImageProcessor(msgspec.msgpack.decode(payload, type=ImageSetup))
    except Exception as error:  # whatever is wrong with it, every image says so
        return f"cannot be used: the model's image processor does not load ({error})"


def _process(processor: ImageProcessor | str, body: bytes) -> bytes:
    if isinstance(processor, str):
        return msgspec.msgpack.encode(ImageReply(None, processor))
    try:
        reply = ImageReply(processor.process(body))
    except ImageError as error:
        reply = ImageReply(None, str(error))
    except MemoryError:
        reply = ImageReply(None, "takes too much memory once unpacked")
    return msgspec.msgpack.encode(reply)
