"""The bytes of an image that a request names: in a data: URI, or at an address on the network."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re

from engine.images.jobs import MAX_IMAGE_BYTES, ImageError
from engine.images.remote import MediaFetcher

_HEAD = re.compile(r"data:(?P<type>[^;,]*)(?P<options>(?:;[^;,]*)*),", re.IGNORECASE)
_LONGEST_HEAD = 256
_SHOWN = 60
_LINE_ENDS = str.maketrans("", "", "\r\n\t ")
_TOO_MANY = f"is larger than {MAX_IMAGE_BYTES >> 20} MiB, the limit; make it smaller"


async def image_bytes(url: str, fetcher: MediaFetcher) -> bytes:
    """What `url` names; ImageError says why it is not read."""
    scheme = url[:8].partition(":")[0].lower()
    if scheme == "data":
        return await asyncio.to_thread(data_uri_bytes, url)
    if scheme in ("http", "https"):
        return await fetcher.fetch(url)
    if scheme == "file":
        raise ImageError(
            "is a file of this machine, and none of those are read for a request; send its "
            "content as a data: URI"
        )
    raise ImageError(f"is no data: URI with base64, but {shortened(url)!r}")


def data_uri_bytes(url: str) -> bytes:
    """The content of a data: URI; its media type is not trusted, since the file itself says it."""
    head = _HEAD.match(url[:_LONGEST_HEAD])
    if head is None or "base64" not in head["options"].lower().split(";"):
        raise ImageError(f"must look like data:image/png;base64,... and begins {shortened(url)!r}")
    text = url[head.end() :]
    if len(text) > MAX_IMAGE_BYTES * 3 // 2:  # base64 with an end of line here and there
        raise ImageError(_TOO_MANY)
    try:
        data = base64.b64decode(text.translate(_LINE_ENDS), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"is no valid base64 ({error})") from error
    if not data:
        raise ImageError("is empty")
    if len(data) > MAX_IMAGE_BYTES:
        raise ImageError(_TOO_MANY)
    return data


def shortened(text: str) -> str:
    """The beginning of an address, for an error."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
