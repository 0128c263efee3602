from __future__ import annotations

import pytest

from app.watch.start_words import without_api_key


@pytest.mark.parametrize(
    "words",
    [
        ["m", "--api-key", "secret", "--port", "1"],
        ["m", "--api-key=secret", "--port", "1"],
        ["m", "--api_key", "secret", "--port", "1"],
        ["m", "--port", "1", "--api-key"],
        ["--hf-token", "secret", "m", "--port", "1"],
    ],
)
def test_a_key_is_dropped_with_its_flag(words: list[str]) -> None:
    assert without_api_key(words) == ("m", "--port", "1")


def test_a_key_file_is_kept() -> None:
    assert without_api_key(["--api-key-file", "k"]) == ("--api-key-file", "k")
