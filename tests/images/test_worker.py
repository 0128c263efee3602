"""What is made of image files equals what transformers' own processor makes of them."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.images.jobs import MAX_IMAGE_PIXELS, ImageError, ImageSetup
from engine.images.worker import ImageProcessor, decode_image
from tests.images.pictures import data_url, encoded, picture, rotated_jpeg
from tests.seeing_model import SIDE, processed, write_seeing_files

transformers = pytest.importorskip("transformers")

FILES: dict[str, bytes] = {
    "png": encoded(picture()),
    "palette": encoded(picture(mode="P")),
    "alpha": encoded(picture(mode="RGBA")),
    "grey": encoded(picture(mode="L")),
    "one bit": encoded(picture(mode="1")),
    "16 bits": encoded(picture(mode="I;16")),
    "jpeg": encoded(picture(), "JPEG"),
    "cmyk": encoded(picture(mode="CMYK"), "JPEG"),
    "webp": encoded(picture(), "WEBP"),
    "gif": encoded(picture(), "GIF"),
    "moving gif": encoded(
        picture(), "GIF", save_all=True, append_images=[picture(seed=1), picture(seed=2)]
    ),
    "moving webp": encoded(picture(), "WEBP", save_all=True, append_images=[picture(seed=1)]),
    "one pixel": encoded(picture(1, 1)),
    "strip": encoded(picture(700, 2)),
    **{f"turned {number}": rotated_jpeg(number) for number in range(1, 9)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_files(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def processor(folder: Path) -> ImageProcessor:
    return ImageProcessor(ImageSetup(str(folder), (3, SIDE, SIDE)))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return transformers.AutoProcessor.from_pretrained(folder)


@pytest.mark.parametrize("kind", FILES)
def test_pixels_are_those_of_transformers(
    processor: ImageProcessor, reference: Any, kind: str
) -> None:
    content = [{"type": "image", "url": data_url(FILES[kind])}, {"type": "text", "text": "x"}]
    expected = processed(reference, [{"role": "user", "content": content}])["pixel_values"]
    image = processor.process(FILES[kind])
    found = np.frombuffer(image.pixels, "<f4").reshape(image.shape)
    assert expected.shape == (1, *image.shape)
    assert np.array_equal(expected[0], found)
    assert image.digest == hashlib.sha256(struct.pack("<3q", *image.shape) + image.pixels).digest()


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif"])
def test_a_file_that_is_cut_off_is_refused(kind: str) -> None:
    data = FILES[kind]
    for length in range(0, len(data) * 3 // 4, max(1, len(data) // 12)):
        with pytest.raises(ImageError, match=r"damaged|is no PNG"):
            decode_image(data[:length])


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "ICO", "PPM", "PDF"])
def test_other_formats_are_refused(kind: str) -> None:
    with pytest.raises(ImageError, match="is no PNG, JPEG, WebP or GIF file"):
        decode_image(encoded(picture(), kind))


def test_an_image_of_too_many_pixels_is_refused_before_it_is_unpacked() -> None:
    bomb = bytearray(encoded(Image.new("1", (8, 8))))
    width = 60_000
    bomb[16:24] = struct.pack(">II", width, MAX_IMAGE_PIXELS // width + 1)
    with pytest.raises(ImageError, match=r"is damaged|has 60000 x 1067 pixels; at most 64 million"):
        decode_image(bytes(bomb))


def test_another_shape_than_the_towers_is_said(folder: Path) -> None:
    other = ImageProcessor(ImageSetup(str(folder), (3, 56, 56)))
    with pytest.raises(ImageError, match=r"makes \(3, 28, 28\) numbers of it"):
        other.process(FILES["png"])
