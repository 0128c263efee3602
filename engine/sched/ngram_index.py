"""Where the newest tokens of a text stood before: the lookup behind drafts without a model."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

_KEY_TOKENS = 3
_KEY_BITS = 21  # of one token; vocabularies are smaller
_MOST_PLACES = 6  # earlier places that are compared, the newest first


class NgramIndex:
    """Places of every run of tokens in a growing list of tokens, which the caller keeps.

    A match shorter than `least` is none; of longer ones no more than `most` tokens are compared.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = max(least, most)
        longest = min(self._most, _KEY_TOKENS)
        widths = dict.fromkeys((longest, min(least, _KEY_TOKENS)))
        self._runs = [_Runs(width) for width in widths]  # the longest first: they find more
        self._num_indexed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what was appended since; a run is known once a token stands behind it."""
        for runs in self._runs:
            runs.extend(tokens, self._num_indexed)
        self._num_indexed = len(tokens)

    def find(self, tokens: Sequence[int], text: Sequence[int]) -> tuple[int, int]:
        """Where in `tokens`, the indexed list, `text` goes on, and how many tokens agree before.

        `text` may be the list itself. Of several places the one with the longest agreement, the
        newest of these; (0, 0) without one.
        """
        for runs in self._runs:
            best, longest = 0, max(self._least, runs.width) - 1
            for place in runs.places(text):
                agreed = self._agreement(tokens, place, text)
                if agreed > longest:
                    best, longest = place, agreed
            if best:
                return best, longest
        return 0, 0

    def _agreement(self, tokens: Sequence[int], place: int, text: Sequence[int]) -> int:
        count, end, most = 0, len(text), min(self._most, place, len(text))
        while count < most and tokens[place - 1 - count] == text[end - 1 - count]:
            count += 1
        return count


class _Runs:
    """Where the runs of one width end, each with the earlier one of the same tokens."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._newest: dict[int, int] = {}  # key -> where its newest run ends
        self._before = array("i")  # place -> where the run before it with the same key ends

    def extend(self, tokens: Sequence[int], start: int) -> None:
        """Take in what stands from `start` on."""
        newest, before, width = self._newest, self._before, self.width
        before.extend([0] * (len(tokens) - len(before)))
        for end in range(max(start, width), len(tokens)):
            key = _key(tokens, end, width)
            before[end] = newest.get(key, 0)
            newest[key] = end

    def places(self, text: Sequence[int]) -> Iterator[int]:
        """Ends of the newest runs that are equal to the last tokens of `text`."""
        if len(text) < self.width:
            return
        place = self._newest.get(_key(text, len(text), self.width), 0)
        for _ in range(_MOST_PLACES):
            if not place:
                return
            yield place
            place = self._before[place]


def _key(tokens: Sequence[int], end: int, width: int) -> int:
    key = 0
    for token in tokens[end - width : end]:
        key = key << _KEY_BITS | token
    return key


def continuation(tokens: Sequence[int], place: int, count: int) -> list[int]:
    """`count` tokens from `place` on; a list that ends before goes round in a circle."""
    found = list(tokens[place : place + count])
    period = len(tokens) - place
    while len(found) < count:
        found.append(found[len(found) - period])
    return found
