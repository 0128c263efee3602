"""ImageEncoder: what the images of a step's requests are to the decoder.

Keeps the images that are not computed yet. An image is never cut by a chunk, so what the tower
makes of it is held for the one step that needs it, once for all requests of the step that have it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from engine.kernels.step_batch import ImageTokens, StepBatch
from engine.messages import ImageInput
from engine.models.vision_tower import VisionTower
from engine.sched.scheduler_output import NewRequestData


class ImageEncoder:
    """Follows the requests like InputBatch; costs nothing while none has images.

    `tower` is None where no request brings any, and in pipeline stages behind the first: there the
    tokens of images are states like others, but for what they see.
    """

    def __init__(self, tower: VisionTower | None) -> None:
        self._tower = tower
        self._images: dict[str, tuple[ImageInput, ...]] = {}  # those with tokens to compute

    def add(self, request: NewRequestData) -> None:
        """Keep the images of a request that comes in full."""
        if request.images:
            self._images[request.req_id] = request.images

    def remove(self, req_ids: Sequence[str]) -> None:
        """Forget requests that have ended or were preempted."""
        for req_id in req_ids:
            self._images.pop(req_id, None)

    def with_images(self, batch: StepBatch, req_ids: Sequence[str]) -> StepBatch:
        """`batch` of these requests with the tokens of the images in it, which are let go."""
        if not self._images:
            return batch
        ends = batch.num_computed + np.diff(batch.query_start_loc)
        placed = [
            (place, image)
            for place, req_id in enumerate(req_ids)
            for image in self._take(req_id, int(ends[place]))
        ]
        if not placed:
            return batch
        return dataclasses.replace(batch, images=self._tokens(batch, placed))

    def _tokens(self, batch: StepBatch, placed: Sequence[tuple[int, ImageInput]]) -> ImageTokens:
        """`placed` are the images with their requests' places in the step."""
        spans = [_span(batch, place, image) for place, image in placed]
        key_ends = batch.positions + 1
        for (_, image), tokens in zip(placed, spans, strict=True):
            key_ends[tokens.start : tokens.stop] = image.end
        rows = np.full(len(batch.token_ids), -1, dtype=np.int64)
        if self._tower is None:
            return ImageTokens(np.zeros((0, 0), dtype=np.float32), rows, key_ends)
        rows[np.concatenate(spans)] = np.arange(sum(map(len, spans)))
        images = {image.digest: image for _, image in placed}
        encoded = {digest: self._tower.encode(image) for digest, image in images.items()}
        parts = [
            encoded[image.digest][-len(tokens) :]  # all, or what follows a cached beginning
            for (_, image), tokens in zip(placed, spans, strict=True)
        ]
        return ImageTokens(np.concatenate(parts), rows, key_ends)

    def _take(self, req_id: str, end: int) -> tuple[ImageInput, ...]:
        """Those that begin before `end`, which so are whole in the step."""
        images = self._images.get(req_id, ())
        count = sum(image.offset < end for image in images)
        if count:
            self._images[req_id] = images[count:]
        if count == len(images):
            self._images.pop(req_id, None)
        assert not count or images[count - 1].end <= end, "a chunk cuts an image"
        return images[:count]


def _span(batch: StepBatch, place: int, image: ImageInput) -> range:
    """The tokens of the step that are the image's: of one whose beginning was found in the prefix
    cache, the rest.
    """
    shift = int(batch.query_start_loc[place]) - int(batch.num_computed[place])
    start = max(image.offset, int(batch.num_computed[place]))
    return range(start + shift, image.end + shift)
