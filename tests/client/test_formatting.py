from __future__ import annotations

import math

import pytest

from app.client import formatting
from app.client.metrics.histograms import Percentile
from tui.keys import key_text
from tui.widgets.charts.history_graph import bar, columns, graph_rows


@pytest.mark.parametrize(
    "text",
    [
        formatting.count(None),
        formatting.rate(None),
        formatting.percent(None),
        formatting.seconds(None),
        formatting.percentile(None),
        formatting.count(math.inf),
    ],
)
def test_unknown_is_a_dash(text: str) -> None:
    assert text == "-"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00 ms"),
        (0.00123, "1.23 ms"),
        (0.0411, "41.1 ms"),
        (0.6123, "612 ms"),
        (0.9999, "1.00 s"),
        (2.1625, "2.16 s"),
        (107.2, "107 s"),
        (123.4, "2 min 3 s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert formatting.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.25, "0.2"), (9.94, "9.9"), (9.96, "10"), (12345.6, "12,346")]
)
def test_rate(value: float, text: str) -> None:
    assert formatting.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.44, "0.4 s"), (12, "12 s"), (75, "75 s"), (135, "2 min 15 s"), (7300, "2 h 1 min")],
)
def test_age(value: float, text: str) -> None:
    assert formatting.age(value) == text


@pytest.mark.parametrize(
    ("found", "text", "interval"),
    [
        (Percentile(0.612, 0.5, 0.75, 9), "~612 ms", "(500,750]"),
        (Percentile(2.2, 1.0, 2.5, 9), "~2.20 s", "(1,2.5]"),
        (Percentile(1.02, 1.0, 1.05, 9), "1.02 s", ""),
        (Percentile(0.004, 0.0, 0.01, 9), "< 10.0 ms", ""),
        (Percentile(80.0, 80.0, math.inf, 9), "> 80.0 s", ""),
    ],
)
def test_percentiles_say_what_is_known(found: Percentile, text: str, interval: str) -> None:
    assert formatting.percentile(found) == text
    assert formatting.bucket(found) == interval


def test_graph_scales_to_its_peak_and_keeps_gaps() -> None:
    assert graph_rows([None, 0, None, 8, 16], 2) == ["    █", " ▁ ██"]
    assert graph_rows([2, 4], 1) == ["▄█"]
    assert graph_rows([0.25, 0.5], 1, top=1.0) == ["▂▄"]
    assert graph_rows([None] * 3, 1) == ["   "]
    assert graph_rows([1.0], 0) == []


def test_columns_are_stretches_of_time() -> None:
    dots = [(0, 0, 1), (0, 1, 2), (1, 2, None), (2, 3, 4), (3, 4, 6)]
    assert columns(dots, 4.0, 4) == [2, None, 4, 6]
    assert columns(dots, 8.0, 4) == [None, 1, 2, 5]  # two samples in one column: their mean
    assert columns(dots, 4.0, 8) == [2, 2, None, None, 4, 4, 6, 6]  # one sample in two columns
    assert columns([], 4.0, 3) == [None] * 3
    assert columns(dots, 4.0, 0) == []
    assert columns(dots[:1], 60.0, 3) == [None, None, 1]


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0, "▁▁▁▁"), (0.01, "▆▁▁▁"), (0.5, "▆▆▁▁"), (0.99, "▆▆▆▁"), (1, "▆▆▆▆"), (1.7, "▆▆▆▆")],
)
def test_bar_is_full_or_empty_only_at_the_ends(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn
    assert bar(None, 4) == "    "


def test_names_of_keys() -> None:
    assert key_text("q,ctrl+c,f10") == "q, Ctrl-C, F10"
    assert key_text("plus,question_mark,space") == "+, ?, Space"
