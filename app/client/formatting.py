"""Numbers as text, one form for every screen and command. Unknown is "-", never 0."""

from __future__ import annotations

import math

from app.client.metrics.histograms import Percentile
from engine.machine.sizes import human_bytes as human_bytes

UNKNOWN = "-"
_LONGEST_IN_S = 119.5
# A bucket is worth showing when the estimate may be off by more than this share.
_WIDE_BUCKET = 0.1


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{round(value):,}"


def rate(value: float | None) -> str:
    """Something per second: one decimal below ten, whole above."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.1f}" if 0 < value < 9.95 else f"{round(value):,}"


def percent(share: float | None) -> str:
    """A share of 1 as per cent."""
    return UNKNOWN if share is None or not math.isfinite(share) else f"{share * 100:.1f} %"


def seconds(value: float | None) -> str:
    """A duration with three digits in ms or s; from two minutes on as an age is written."""
    if value is None:
        return UNKNOWN
    if value >= _LONGEST_IN_S:
        return age(value)
    if value < 0.9995:
        return f"{_three_digits(value * 1000)} ms"
    return f"{_three_digits(value)} s"


def age(value_s: float) -> str:
    """How old something is; in seconds below two minutes."""
    if value_s < _LONGEST_IN_S:
        return f"{value_s:.1f} s" if value_s < 10 else f"{value_s:.0f} s"
    minutes, rest = divmod(round(value_s), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def window(value_s: float) -> str:
    """A stretch of whole minutes or hours."""
    if value_s < 60:
        return f"{value_s:.0f} s"
    return f"{value_s / 60:.0f} min" if value_s < 3600 else f"{value_s / 3600:.0f} h"


def uptime(value_s: float) -> str:
    """How long a server has been up, in its two largest units."""
    minutes, seconds_left = divmod(int(max(0.0, value_s)), 60)
    hours, minutes_left = divmod(minutes, 60)
    if value_s < _LONGEST_IN_S:
        return f"{int(max(0.0, value_s))} s"
    if not hours:
        return f"{minutes} min {seconds_left} s"
    days, hours_left = divmod(hours, 24)
    return f"{days} d {hours_left} h" if days else f"{hours} h {minutes_left} min"


def interval(value_s: float) -> str:
    """A refresh interval without needless zeros."""
    return f"{value_s:g} s"


def percentile(found: Percentile | None) -> str:
    """The estimate; `~` if its bucket is wide, `<` or `>` where only one bound is known."""
    if found is None:
        return UNKNOWN
    if math.isinf(found.upper):
        return f"> {seconds(found.lower)}"
    if found.lower <= 0:
        return f"< {seconds(found.upper)}"
    return f"{'~' if is_wide(found) else ''}{seconds(found.value)}"


def bucket(found: Percentile | None) -> str:
    """The bucket of a wide estimate as `(lower,upper]`, in the unit of the estimate."""
    if found is None or math.isinf(found.upper) or found.lower <= 0 or not is_wide(found):
        return ""
    factor = 1000 if found.value < 0.9995 else 1
    return f"({found.lower * factor:g},{found.upper * factor:g}]"


def is_wide(found: Percentile) -> bool:
    """Whether the bucket leaves the estimate vague."""
    return found.upper - found.lower > _WIDE_BUCKET * found.value


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
