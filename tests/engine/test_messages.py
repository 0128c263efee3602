"""Messages on their way: what one process writes the other one reads."""

from __future__ import annotations

import hashlib

import msgspec

from engine.messages import EngineCoreRequest, ImageInput
from engine.sampling_params import SamplingParams


def test_images_travel_with_their_pixels() -> None:
    pixels = bytes(range(48))
    digest = hashlib.sha256(pixels).digest()
    image = ImageInput(offset=2, num_tokens=4, digest=digest, pixels=pixels, shape=(3, 2, 2))
    request = EngineCoreRequest(
        "a", [5, 6, 9, 9, 9, 9, 7], SamplingParams(max_tokens=3), 0.0, images=(image,)
    )
    sent = msgspec.msgpack.encode(request)
    assert msgspec.msgpack.decode(sent, type=EngineCoreRequest) == request
    assert sent.count(pixels) == 1
    assert image.end == 6


def test_a_request_without_images_says_nothing_of_them() -> None:
    request = EngineCoreRequest("a", [5, 6], SamplingParams(max_tokens=3), 0.0)
    whole = EngineCoreRequest("a", [5, 6], SamplingParams(max_tokens=3), 0.0, images=())
    assert msgspec.msgpack.encode(request) == msgspec.msgpack.encode(whole)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=EngineCoreRequest) == whole
