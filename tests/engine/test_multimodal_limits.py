"""--limit-mm-per-prompt: what it says, and what is refused."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from engine.multimodal_limits import DEFAULT_IMAGES, parse_image_limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ('{"image": 0}', 0),
        ('{"image": 3, "video": 0}', 3),
        ('{"image": {"count": 5, "width": 512}}', 5),
        ('{"image": {"width": 512}}', DEFAULT_IMAGES),
        ('{"audio": 0}', None),
        ("{}", None),
        (None, None),
    ],
)
def test_the_number_of_images(text: str | None, limit: int | None) -> None:
    assert parse_image_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4", "no JSON object like"),
        ("image=4", "is no JSON"),
        ('{"images": 4}', "'images' is not known; use image, video, audio"),
        ('{"image": -1}', "from 0 to 999"),
        ('{"image": true}', "from 0 to 999"),
        ('{"image": "4"}', "from 0 to 999"),
        ('{"image": {"count": 1.5}}', "from 0 to 999"),
        ('{"video": 1}', "video inputs cannot be had"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_image_limit(text)
