"""Words of a `stoker serve` command line that may be kept in a record: a key may not."""

from __future__ import annotations

from collections.abc import Iterable

_KEY_FLAGS = ("--api-key", "--hf-token")


def without_api_key(words: Iterable[str]) -> tuple[str, ...]:
    """The words without `--api-key KEY` or `--api-key=KEY`."""
    kept: list[str] = []
    is_value = False
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if not is_value and flag not in _KEY_FLAGS:
            kept.append(word)
        is_value = not is_value and word.replace("_", "-") in _KEY_FLAGS
    return tuple(kept)
