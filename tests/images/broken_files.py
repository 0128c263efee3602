"""Two hundred ways in which an image of a request can be wrong, or made to do harm."""

from __future__ import annotations

import base64
import random
import struct
import zlib

from engine.images.jobs import MAX_IMAGE_BYTES
from tests.images.pictures import data_url, encoded, picture


def hostile_urls() -> list[str]:
    """Addresses that no image can be read from."""
    files = [*_cut_off(), *_damaged(), *_bombs(), *_no_images()]
    return [*(data_url(file) for file in files), *_wrong_urls()]


def _cut_off() -> list[bytes]:
    found = []
    for kind in ("PNG", "JPEG", "WEBP", "GIF"):
        whole = encoded(picture(80, 60), kind)
        found += [whole[: len(whole) * share // 20] for share in range(1, 16)]
    return found


def _damaged() -> list[bytes]:
    """Files with other bytes in place of their beginning."""
    rng, found = random.Random(5), []
    for kind in ("PNG", "GIF", "WEBP"):
        whole = encoded(picture(80, 60), kind)
        for _ in range(25):
            broken = bytearray(whole)
            for place in range(16):
                broken[place] = rng.randrange(256)
            found.append(bytes(broken))
    return found


def png(width: int, height: int, data: bytes = b"", *, extra: bytes = b"") -> bytes:
    """A file with a right header of this size, whatever it holds."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = _chunk(b"IDAT", zlib.compress(data, 9))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + extra + pixels + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _bombs() -> list[bytes]:
    """Small files that would be gigabytes, or never end."""
    sizes = [(100_000, 100_000), (30_000, 30_000), (1 << 31, 1), (1, 1 << 30), (9_000, 9_000)]
    zeros = bytes(1 << 20)
    packed_text = _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(80 << 20), 9))
    gif = bytearray(encoded(picture(80, 60), "GIF"))
    gif[6:10] = struct.pack("<HH", 65_535, 65_535)
    webp = b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + struct.pack("<I", 10)
    webp += b"\x00" * 4 + b"\xff\xff\xff" * 2
    jpeg = bytearray(encoded(picture(80, 60), "JPEG"))
    start = jpeg.index(b"\xff\xc0") + 5
    jpeg[start : start + 4] = struct.pack(">HH", 65_500, 65_500)
    return [
        *(png(width, height, zeros) for width, height in sizes),
        png(0, 5),
        png(5, 0),
        png(64, 64, b"\0" * 10, extra=packed_text),
        bytes(gif),
        webp,
        bytes(jpeg),
    ]


def _no_images() -> list[bytes]:
    rng = random.Random(7)
    others = ("BMP", "TIFF", "ICO", "PPM", "PDF", "TGA", "JPEG2000")
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    found = [encoded(picture(), kind) for kind in others]
    found += [svg, b"%!PS\n/x { x } def x", b"\0" * 100, b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a"]
    found += [b"P3\n9999999 9999999\n255\n", b"#define a_width 99999\n#define a_height 99999\n"]
    return found + [rng.randbytes(rng.randrange(1, 4_000)) for _ in range(20)]


def _wrong_urls() -> list[str]:
    whole = base64.b64encode(encoded(picture())).decode()
    return [
        "",
        "data:",
        "data:,",
        "data:image/png;base64,",
        "data:image/png;base64",
        f"data:image/png,{whole}",
        f"data:image/png;base64,{whole[:-3]}",
        f"data:image/png;base64,!{whole}",
        f"data:image/png;base64,{whole[:40]}\u00e9{whole[40:]}",
        f"data:image/png;base64,{whole[:40]}===={whole[40:]}",
        f"data:image/png;base64,{whole.replace('A', '-').replace('/', '_')}-_",
        f"data:{'a' * 500};base64,{whole}",
        data_url(bytes(MAX_IMAGE_BYTES + 1)),
        whole,
        *("file:///etc/passwd", "/etc/passwd", "FILE:///dev/zero", "ftp://a.example/x.png"),
        *(
            "http://127.0.0.1/x.png",
            "https://a.example/x.png",
            "http://[::1]/",
            "http://",
            "gopher:",
        ),
        *("javascript:alert(1)", "blob:x", "s3://bucket/key", "\0", "data:image/png;base64,\0"),
    ]
