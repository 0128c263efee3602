"""Arithmetic of a benchmark: percentiles, means and ratios with their 95 % intervals.

Standard library only. An interval of fewer than two values does not exist and is None.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179),
    *(2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064),
    *(2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = 1.960
_MOST_LOG = 700.0  # what a float has room for on both sides of 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval, whose ends are None when `n` is below two."""

    value: float
    low: float | None
    high: float | None
    n: int


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile of non-empty `values`, linear between the two nearest of them."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean of non-empty `values`."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None, len(values))
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = t_quantile(len(values) - 1) * error
    return Estimate(mean, mean - half, mean + half, len(values))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate | None:
    """Geometric mean of ours/theirs, round by round; None where a value is not positive."""
    if not ours or min(*ours, *theirs) <= 0:
        return None
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    return _exponential(mean_estimate(logs))


def unpaired_ratio(new: Sequence[float], old: Sequence[float]) -> Estimate | None:
    """Ratio of the geometric means of two separate runs, with Welch's interval."""
    if not new or not old or min(*new, *old) <= 0:
        return None
    logs = [[math.log(value) for value in values] for values in (new, old)]
    difference = statistics.fmean(logs[0]) - statistics.fmean(logs[1])
    n = min(len(new), len(old))
    if n < 2:
        return _exponential(Estimate(difference, None, None, n))
    parts = [statistics.variance(values) / len(values) for values in logs]
    half = t_quantile(_welch_freedom(parts, [len(new), len(old)])) * math.sqrt(sum(parts))
    return _exponential(Estimate(difference, difference - half, difference + half, n))


def t_quantile(freedom: float) -> float:
    """Student's t at 97.5 %; between whole degrees of freedom, the wider one."""
    index = max(1, math.floor(freedom + 1e-9))  # 2 may come as 1.9999999
    return _T[index - 1] if index <= len(_T) else _NORMAL + 2.5 / index


def _welch_freedom(parts: Sequence[float], sizes: Sequence[int]) -> float:
    below = sum(part * part / (size - 1) for part, size in zip(parts, sizes, strict=True))
    return sum(parts) ** 2 / below if below > 0 else min(sizes) - 1


def _exponential(estimate: Estimate) -> Estimate:
    low = None if estimate.low is None else _exp(estimate.low)
    high = None if estimate.high is None else _exp(estimate.high)
    return Estimate(_exp(estimate.value), low, high, estimate.n)


def _exp(value: float) -> float:
    """Never 0 or infinite, whatever an interval of two unlike rounds comes to."""
    return math.exp(max(-_MOST_LOG, min(_MOST_LOG, value)))
