from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.client.metrics.histograms import Histogram, Percentile

BOUNDS = (0.1, 0.5, 1.0, math.inf)


def histogram(*counts: float) -> Histogram:
    return Histogram(BOUNDS, counts, 0.0)


def test_interpolates_inside_the_bucket() -> None:
    found = histogram(0, 10, 20, 20).percentile(0.25)
    assert found is not None
    assert found.value == pytest.approx(0.3)
    assert (found.lower, found.upper, found.n) == (0.1, 0.5, 20)


def test_first_bucket_starts_at_zero() -> None:
    assert histogram(4, 4, 4, 4).percentile(0.5) == Percentile(0.05, 0.0, 0.1, 4)


def test_overflow_bucket_only_knows_its_lower_bound() -> None:
    assert histogram(0, 0, 0, 3).percentile(0.5) == Percentile(1.0, 1.0, math.inf, 3)


def test_no_observations_have_no_percentile() -> None:
    assert histogram(0, 0, 0, 0).percentile(0.5) is None


def test_difference_and_restart() -> None:
    earlier, later = histogram(1, 2, 3, 4), histogram(2, 4, 6, 8)
    assert later.since(earlier).counts == (1, 2, 3, 4)
    assert earlier.since(later) == earlier
    assert later.since(None) == later
    assert later.since(Histogram((1.0, math.inf), (1, 1), 0.0)) == later


observations = st.lists(st.floats(0, 3), min_size=1, max_size=50)


@given(observations, st.floats(0.01, 1))
def test_the_true_percentile_lies_in_the_reported_bucket(
    values: list[float], fraction: float
) -> None:
    counts = tuple(float(sum(v <= bound for v in values)) for bound in BOUNDS)
    found = Histogram(BOUNDS, counts, sum(values)).percentile(fraction)
    rank = max(1, math.ceil(fraction * len(values) - 1e-9))
    truth = sorted(values)[rank - 1]
    assert found is not None
    assert found.lower <= truth <= found.upper
    assert found.lower <= found.value <= found.upper
    assert found.n == len(values)
