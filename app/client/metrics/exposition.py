"""Parser of the Prometheus text format. Knows the syntax, no metric name.

Lines that cannot be read are counted in `Exposition.num_skipped`, never fatal: one odd line
must not blank a dashboard.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.client.metrics.histograms import Histogram

_SAMPLE = re.compile(
    r"""\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*
        (?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?
        \s*(?P<value>[^\s]+)
        (?:\s+-?[\d.eE+]+)?          # time stamp
        (?:\s+\#.*)?\s*$             # exemplar of OpenMetrics
    """,
    re.VERBOSE,
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|Inf|NaN)", re.I)
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}


_MOST_SERIES = 50_000


class SeriesValue(NamedTuple):
    """One line: the value of a name under its labels."""

    labels: Mapping[str, str]
    value: float


Once = Callable[[Iterable[SeriesValue]], list[SeriesValue]]
KnownSeries = dict[str, tuple[str, Mapping[str, str]]]
"""Name and labels by the text before a value: a server repeats them in every scrape."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """One scrape: samples by name in file order, and the declared type of each family."""

    samples: Mapping[str, tuple[SeriesValue, ...]]
    types: Mapping[str, str]
    num_skipped: int = 0

    def has_prefix(self, prefix: str) -> bool:
        """Whether any sample's name starts with `prefix`."""
        return any(name.startswith(prefix) for name in self.samples)

    def get(self, name: str) -> tuple[SeriesValue, ...]:
        """The samples called `name`, or that name with the `_total` of counters."""
        return self.samples.get(name) or self.samples.get(f"{name}_total") or ()

    def histogram(self, name: str, once: Once = list) -> Histogram | None:
        """The histogram `name`, summed over every label but `le`; None when it is absent.

        `once` leaves out series that repeat others.
        """
        counts: dict[float, float] = {}
        for sample in once(self.samples.get(f"{name}_bucket", ())):
            bound = _number(sample.labels.get("le", ""))
            if bound is not None and not math.isnan(sample.value):
                counts[bound] = counts.get(bound, 0.0) + sample.value
        if not counts:
            return None
        bounds = tuple(sorted(counts))
        sums = [sample.value for sample in once(self.samples.get(f"{name}_sum", ()))]
        return Histogram(bounds, tuple(counts[bound] for bound in bounds), sum(sums))


def parse_exposition(text: str, known: KnownSeries | None = None) -> Exposition:
    """Parse the text of one GET /metrics; `known` is kept between the scrapes of one server."""
    known = {} if known is None or len(known) > _MOST_SERIES else known
    samples: dict[str, list[SeriesValue]] = {}
    types: dict[str, str] = {}
    num_skipped = 0
    for line in text.split("\n"):
        head, _, number = line.rpartition(" ")
        series, value = known.get(head), _number(number)
        if series is not None and value is not None:
            samples.setdefault(series[0], []).append(SeriesValue(series[1], value))
        elif line.lstrip().startswith("#"):
            _note_type(line, types)
        elif line.strip() and not _note_sample(line, samples, known):
            num_skipped += 1
    frozen = {name: tuple(found) for name, found in samples.items()}
    return Exposition(frozen, types, num_skipped)


def with_label(text: str, name: str, value: str) -> str:
    """The text of a scrape with one more label in every sample."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "\n".join(_labelled(line, f'{name}="{escaped}"') for line in text.splitlines())


def _labelled(line: str, label: str) -> str:
    match = None if line.lstrip().startswith("#") else _SAMPLE.match(line)
    if match is None:
        return line
    labels = (match["labels"] or "").rstrip().removesuffix(",")
    all_labels = f"{labels},{label}" if labels else label
    return f"{match['name']}{{{all_labels}}} {line[match.start('value') :]}"


def _note_type(line: str, types: dict[str, str]) -> None:
    words = line.lstrip()[1:].split()
    if len(words) == 3 and words[0] == "TYPE":
        types[words[1]] = words[2]


def _note_sample(line: str, samples: dict[str, list[SeriesValue]], known: KnownSeries) -> bool:
    match = _SAMPLE.match(line)
    if not match:
        return False
    value = _number(match["value"])
    labels = _labels(match["labels"] or "")
    if value is None or labels is None:
        return False
    samples.setdefault(match["name"], []).append(SeriesValue(labels, value))
    head, _, number = line.rpartition(" ")
    # A time stamp or an exemplar after the value would be read as the value next time.
    if match.end("value") == len(line) and number == match["value"]:
        known[head] = match["name"], labels
    return True


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    position = 0
    while position < len(text) and text[position:].strip():
        match = _LABEL.match(text, position)
        if not match:
            return None
        labels[match[1]] = _ESCAPE.sub(lambda m: _UNESCAPED.get(m[1], m[1]), match[2])
        position = match.end()
    return labels


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def finite_number(text: str) -> float | None:
    """A number as the format writes them; None for anything else, infinity and NaN too."""
    number = _number(text)
    return number if number is not None and math.isfinite(number) else None
