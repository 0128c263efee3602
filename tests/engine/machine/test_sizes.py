from __future__ import annotations

import pytest

from engine.machine.sizes import human_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (12, "12 B"),
        (2048, "2.0 KiB"),
        (269_000_000, "256.5 MiB"),
        (24 << 30, "24.00 GiB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert human_bytes(count) == text
