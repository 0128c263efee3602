"""Cumulative histograms as servers expose them: difference, sum, percentiles with their bucket."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Percentile:
    """An estimate, and the bucket `(lower, upper]` that the true value lies in.

    `n` is the number of observations. In the last bucket `upper` is infinite and `value` equals
    `lower`: the truth is somewhere above it.
    """

    value: float
    lower: float
    upper: float
    n: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` observations were at most `bounds[i]`; the last bound is normally infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def n(self) -> int:
        """How many observations there are."""
        return round(self.counts[-1]) if self.counts else 0

    @property
    def mean(self) -> float | None:
        """Of all observations; None without any, or where the server tells no sum."""
        return self.sum / self.n if self.n and math.isfinite(self.sum) and self.sum else None

    def is_continued_by(self, later: Histogram) -> bool:
        """Whether `later` can be the same histogram further on (no restart in between)."""
        return self.bounds == later.bounds and all(
            after >= before for before, after in zip(self.counts, later.counts, strict=True)
        )

    def since(self, earlier: Histogram | None) -> Histogram:
        """What came after `earlier`; everything, if the server restarted in between."""
        if earlier is None or not earlier.is_continued_by(self):
            return self
        # Most buckets stay as they were: one shared zero instead of an object for each.
        counts = tuple(b - a or 0.0 for a, b in zip(earlier.counts, self.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum - earlier.sum)

    def plus(self, later: Histogram) -> Histogram:
        """Both together; only `later` if its buckets are others."""
        if self.bounds != later.bounds:
            return later
        counts = tuple(a + b for a, b in zip(self.counts, later.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum + later.sum)

    def percentile(self, fraction: float) -> Percentile | None:
        """Linear interpolation inside the bucket that holds the `fraction`; None without data."""
        if self.n == 0:
            return None
        rank = fraction * self.counts[-1]
        lower = (min(0.0, self.bounds[0]), 0.0)
        for before, (bound, count) in pairwise(
            [lower, *zip(self.bounds, self.counts, strict=True)]
        ):
            # An empty bucket holds nothing, so its bounds say nothing about the value.
            if count >= rank and count > before[1]:
                return _interpolate(before, (bound, count), rank, self.n)
        return None


def _interpolate(
    before: tuple[float, float], after: tuple[float, float], rank: float, n: int
) -> Percentile:
    lower, upper = before[0], after[0]
    if math.isinf(upper):
        return Percentile(lower, lower, upper, n)
    share = (rank - before[1]) / (after[1] - before[1])
    return Percentile(lower + (upper - lower) * share, lower, upper, n)
