"""What the API server and the process that unpacks images say to each other, and their limits."""

from __future__ import annotations

import msgspec

from engine.core.forked_jobs import JobLimits

MAX_IMAGE_BYTES = 20 << 20
"""Of one file, as it was sent."""

MAX_IMAGE_PIXELS = 64_000_000
"""Of one image, unpacked: more than telephones take, and 250 MB of memory."""

LIMITS = JobLimits(cpu_s=10, wall_s=120, room_bytes=2 << 30)
"""Of the child that unpacks one image; the largest take a second, and half of that memory."""


class ImageError(Exception):
    """An image that is not read; `str()` says why, as the end of a sentence about it."""


class ImageSetup(msgspec.Struct, array_like=True, frozen=True):
    """Whose processor makes pixels of images: the model's folder, and the shape that it takes."""

    folder: str
    shape: tuple[int, int, int]


class ProcessedImage(msgspec.Struct, array_like=True, frozen=True):
    """What the tower sees of an image: little-endian float32 in the order of `shape`.

    `digest` is SHA-256 of pixels and shape (channels, height, width).
    """

    pixels: bytes
    shape: tuple[int, int, int]
    digest: bytes


class ImageReply(msgspec.Struct, array_like=True, frozen=True):
    """An image, or why it was not read."""

    image: ProcessedImage | None
    error: str = ""
