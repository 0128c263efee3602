from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.client.metrics.exposition import KnownSeries, parse_exposition

TEXT = """\
# HELP vllm:x Something with a # in it
# TYPE vllm:x counter
vllm:x_total{engine="0",model_name="a \\"b\\" \\\\ c\\nd}"} 1.5e+03
vllm:x_total{engine="1",} 2 1700000000
up 1
nothing NaN
most +Inf
least -Inf
small 1e-7
# EOF
"""


def test_samples_labels_and_types() -> None:
    exposition = parse_exposition(TEXT)
    first, second = exposition.get("vllm:x")
    assert first.value == 1500.0
    assert first.labels == {"engine": "0", "model_name": 'a "b" \\ c\nd}'}
    assert (second.value, second.labels) == (2.0, {"engine": "1"})
    assert exposition.types == {"vllm:x": "counter"}
    assert exposition.num_skipped == 0


def test_special_numbers() -> None:
    samples = parse_exposition(TEXT).samples
    assert math.isnan(samples["nothing"][0].value)
    assert samples["most"][0].value == math.inf
    assert samples["least"][0].value == -math.inf
    assert samples["small"][0].value == 1e-7


@pytest.mark.parametrize(
    "junk",
    ["<html>", "name", 'a{b="c} 1', "a{b=c} 1", "9a 1", "a one", "a 1_000", 'a{b="c"}', "a 0x10"],
)
def test_junk_is_skipped_and_counted(junk: str) -> None:
    exposition = parse_exposition(f"before 1\n{junk}\nafter 2\n")
    assert exposition.num_skipped == 1
    assert [s.value for name in ("before", "after") for s in exposition.get(name)] == [1, 2]


def test_crlf_and_exemplars() -> None:
    exposition = parse_exposition('a_bucket{le="1"} 3 # {trace="x"} 0.5\r\nb 2\r\n')
    assert exposition.samples["a_bucket"][0].value == 3
    assert exposition.samples["b"][0].value == 2


def test_histogram_sums_over_labels_and_sorts_bounds() -> None:
    text = "\n".join(
        f'h_bucket{{engine="{engine}",le="{le}"}} {count}'
        for engine in (0, 1)
        for le, count in (("+Inf", 5), ("0.5", 1), ("1.0", 3))
    )
    histogram = parse_exposition(text + "\nh_sum 9\nh_count 10\n").histogram("h")
    assert histogram is not None
    assert histogram.bounds == (0.5, 1.0, math.inf)
    assert list(histogram.counts) == [2, 6, 10]
    assert histogram.n == 10
    assert parse_exposition(text).histogram("other") is None


label_text = st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), label_text))
def test_labels_survive_a_round_trip(labels: dict[str, str]) -> None:
    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    inner = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    (sample,) = parse_exposition(f"metric{{{inner}}} 7\n").samples["metric"]
    assert sample.labels == labels
    assert sample.value == 7


@given(st.text(max_size=200))
def test_any_text_is_survived(text: str) -> None:
    parse_exposition(text)


def test_known_series_change_nothing() -> None:
    known: KnownSeries = {}
    lines = ('a{le="x y"} 1', "b 2", "c 3 1700000000", 'd{x="1"} 4 # {t="z"} 0.5', "a 1", "junk {")
    text = "\n".join(lines)
    first = parse_exposition(text, known)
    assert set(known) == {'a{le="x y"}', "b", "a"}
    assert parse_exposition(text, known) == first == parse_exposition(text)
    moved = parse_exposition(text.replace("b 2", "b NaN").replace('y"} 1', 'y"} oops'), known)
    assert moved.num_skipped == first.num_skipped + 1
    assert math.isnan(moved.samples["b"][0].value)
    assert [sample.labels for sample in moved.samples["a"]] == [{}]
