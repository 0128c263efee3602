"""ImageRoom: how much memory the images of all requests may take, and the answer to one too many.

Unpacked they are large, and each is held until its request ends, here and in EngineCore, where it
may have to be computed anew. Without a bound many requests, or many samples of one, would take all
memory of the machine.
"""

from __future__ import annotations

import weakref

from engine.errors import RequestError
from engine.machine.memory import free_ram_bytes
from engine.server.admission import try_later

MOST_BYTES = 4 << 30
_SHARE_OF_FREE = 4  # what is counted once here is held twice, by two processes
_MIB = 1 << 20


class ImageShare:
    """What the images of one request take. One that is forgotten is free again."""

    __slots__ = ("__weakref__", "_shares", "num_bytes")

    def __init__(self, shares: weakref.WeakSet[ImageShare], num_bytes: int) -> None:
        self._shares = shares
        self.num_bytes = num_bytes
        shares.add(self)

    def leave(self) -> None:
        """The images are not needed any more."""
        self._shares.discard(self)


class ImageRoom:
    """Room for `most_bytes` of images, as one API server's part of what the machine has."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._shares: weakref.WeakSet[ImageShare] = weakref.WeakSet()

    @classmethod
    def of_machine(cls, num_servers: int, at_least: int) -> ImageRoom:
        """A quarter of the memory that is free now, shared by all API servers; `at_least` is what
        one request may ask for.
        """
        most = min(MOST_BYTES, free_ram_bytes() // _SHARE_OF_FREE) // num_servers
        return cls(max(most, at_least))

    @property
    def num_bytes(self) -> int:
        """What all requests have taken."""
        return sum(share.num_bytes for share in self._shares)

    def take(self, num_bytes: int, param: str) -> ImageShare:
        """Room for a request's images: ApiError (429) while others have it, RequestError where the
        whole room is too small.
        """
        if num_bytes > self._most:
            raise RequestError(
                f"The images of this request take {num_bytes // _MIB} MiB for all its samples, and "
                f"this server has {self._most // _MIB} MiB for images. Send fewer images, or "
                "lower n.",
                param=param,
            )
        taken = self.num_bytes
        if taken + num_bytes > self._most:
            raise try_later(
                f"The images of other requests take {taken // _MIB} of the {self._most // _MIB} "
                f"MiB that this server has for them, and these take {num_bytes // _MIB} MiB"
            )
        return ImageShare(self._shares, num_bytes)
