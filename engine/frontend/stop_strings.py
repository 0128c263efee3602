"""Finds stop strings in text that arrives in pieces. Knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopCheck:
    """Text that may be shown now, and the stop string that ended the request, if one did."""

    text: str
    stop: str | None = None


class StopStringMatcher:
    """Holds text back as long as it may be the beginning of a stop string.

    The stop string that is complete first wins (the longer one when two end together), so the
    result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""

    def feed(self, text: str) -> StopCheck:
        """Take the next piece; after a check with a `stop` nothing more may be fed."""
        if not self._stops:
            return StopCheck(text)
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            start, stop = match
            self._held = ""
            return StopCheck(
                text[: start + len(stop)] if self._include_stop else text[:start], stop
            )
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return StopCheck(text[: len(text) - keep])

    def flush(self) -> str:
        """The text held back, once the request has ended for another reason."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [(text.find(stop), stop) for stop in self._stops]
        hits = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not hits:
            return None
        _, start, stop = min(hits)
        return start, stop

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of `text` with which some stop string begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
