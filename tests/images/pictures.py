"""Image files of many kinds, made with Pillow."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image


def picture(width: int = 40, height: int = 30, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Random pixels, the same for the same seed."""
    rng = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 1 << 16, (height, width), dtype=np.uint16))
    colours = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
    return colours if mode == "RGB" else colours.convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def data_url(file: bytes) -> str:
    """The address that holds the file: as PNG, though readers tell its format by the content."""
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def rotated_jpeg(orientation: int) -> bytes:
    """A file whose EXIF says that it lies on a side."""
    image = picture(48, 20)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, "JPEG", exif=exif)
