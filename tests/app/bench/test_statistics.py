from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.statistics import (
    mean_estimate,
    paired_ratio,
    percentile,
    t_quantile,
    unpaired_ratio,
)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=50),
    st.sampled_from((0.0, 50.0, 90.0, 99.0, 100.0)),
)
def test_percentiles_equal_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_mean_and_its_interval() -> None:
    # mean 11, standard deviation 1, error 1/sqrt(3), t(2) = 4.303
    estimate = mean_estimate([10.0, 11.0, 12.0])

    assert (estimate.value, estimate.n) == (11.0, 3)
    assert estimate.low == pytest.approx(11 - 4.303 / math.sqrt(3))
    assert estimate.high == pytest.approx(11 + 4.303 / math.sqrt(3))


def test_one_value_has_no_interval() -> None:
    assert (mean_estimate([5.0]).low, mean_estimate([5.0]).high) == (None, None)


def test_the_quantile_falls_towards_the_normal_one() -> None:
    values = [t_quantile(freedom) for freedom in range(1, 200)]

    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.972, abs=0.005)


def test_a_paired_ratio_ignores_what_both_rounds_share() -> None:
    theirs = [10.0, 20.0, 40.0]

    ratio = paired_ratio([3 * value for value in theirs], theirs)

    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((3, 3, 3))


def test_no_ratio_to_nothing() -> None:
    assert paired_ratio([1.0], [0.0]) is None
    assert paired_ratio([], []) is None
    assert unpaired_ratio([1.0], []) is None


def test_rounds_that_have_nothing_in_common_have_a_wide_interval() -> None:
    rounds = [1e-200, 1e200]
    ratio = unpaired_ratio(rounds, rounds)
    assert ratio is not None
    assert ratio.value == pytest.approx(1.0)
    assert (ratio.low or 0.0) > 0.0
    assert math.isfinite(ratio.high or math.inf)


def test_an_unpaired_ratio_has_welchs_interval() -> None:
    new, old = [math.exp(v) for v in (1.0, 1.2)], [math.exp(v) for v in (0.0, 0.2)]

    ratio = unpaired_ratio(new, old)

    # Both variances are 0.02 on 2 values, so 2 degrees of freedom and an error of sqrt(0.02).
    assert ratio is not None
    assert ratio.low is not None
    assert math.log(ratio.value) == pytest.approx(1.0)
    assert math.log(ratio.low) == pytest.approx(1.0 - 4.303 * math.sqrt(0.02))
