"""ImageReader: has files unpacked by a process of its own (`worker`), a few at a time."""

from __future__ import annotations

import asyncio

import msgspec

from engine.core.forked_jobs import JobAnswer
from engine.core.job_process import JobProcess, JobProcessEnded
from engine.images.jobs import LIMITS, ImageError, ImageReply, ImageSetup, ProcessedImage

_AT_A_TIME = 2
"""Each may take hundreds of MB for a moment."""


class ImageReader:
    """Makes pixels of the images of one model; the process starts with the first of them."""

    def __init__(self, setup: ImageSetup) -> None:
        self._process = JobProcess("images", setup, "unpacks images")
        self._seats = asyncio.Semaphore(_AT_A_TIME)

    async def read(self, data: bytes) -> ProcessedImage:
        """The pixels of one file; ImageError says why there are none."""
        async with self._seats:
            try:
                return _image_of(await self._process.do(data))
            except JobProcessEnded as error:
                raise ImageError("was not read: the process that does it ended; try again") from (
                    error
                )

    async def close(self) -> None:
        """End the process, if an image ever came."""
        await self._process.close()


def _image_of(answer: JobAnswer) -> ProcessedImage:
    if answer.body is None:
        if LIMITS.is_too_slow(answer.status):
            raise ImageError(f"takes more than {LIMITS.cpu_s} s to unpack; make it smaller")
        raise ImageError("cannot be unpacked: it is damaged, or takes too much memory")
    reply = msgspec.msgpack.decode(answer.body, type=ImageReply)
    if reply.image is None:
        raise ImageError(reply.error)
    return reply.image
