"""StepImages: how many images one step may send through the model's tower.

On a CPU a tower takes as long for one image as many steps of the decoder, and nobody gets a token
meanwhile.
"""

from __future__ import annotations

from engine.messages import ImageInput
from engine.sched.request import Request


class StepImages:
    """The images of the step that is being planned, each encoded once for all that have it.

    `most` is None where their number has no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._digests: set[bytes] = set()

    def begin(self) -> None:
        """A new step has none yet."""
        self._digests.clear()

    def fitted(self, request: Request, start: int, count: int) -> int:
        """How many of the `count` tokens from `start` on can be computed with the images that the
        step may still take: up to the first one too many.
        """
        if self._most is None:
            return count
        digests = self._digests.copy()
        for image in _within(request, start, count):
            digests.add(image.digest)
            if len(digests) > self._most:
                return max(0, image.offset - start)
        return count

    def note(self, request: Request, start: int, count: int) -> None:
        """These tokens are computed in the step."""
        if self._most is not None:
            self._digests.update(image.digest for image in _within(request, start, count))


def _within(request: Request, start: int, count: int) -> list[ImageInput]:
    end = start + count
    return [image for image in request.images if start < image.end and image.offset < end]
