"""The scheduler's lines on the engine page: what is told of CUDA graphs."""

from __future__ import annotations

from app.client.metrics.sample import MetricsSample, read_sample
from tui.state.history import MetricHistory
from tui.widgets.engine.step_panel import StepPanel

GRAPHS = """
stoker_device_steps_total{{engine="0",model_name="m"}} {steps}
stoker_graph_steps_total{{engine="0",model_name="m",mode="FULL"}} {full}
stoker_graph_steps_total{{engine="0",model_name="m",mode="PIECEWISE"}} {piecewise}
stoker_graph_tokens_total{{engine="0",model_name="m"}} {tokens}
stoker_graph_padding_tokens_total{{engine="0",model_name="m"}} {padding}
vllm:num_requests_running{{engine="0",model_name="m"}} 1
"""


def sample(
    time_s: float, *, steps: int, full: int, piecewise: int, tokens: int, padding: int
) -> MetricsSample:
    text = GRAPHS.format(
        steps=steps, full=full, piecewise=piecewise, tokens=tokens, padding=padding
    )
    found = read_sample(text, time_s)
    assert found is not None
    return found


def graph_line(*samples: MetricsSample) -> str:
    history = MetricHistory()
    for one in samples:
        history.append(one)
    panel = StepPanel()
    panel.snapshot = history.snapshot()
    lines = ["".join(text for text, _ in row) for row in panel.rows(100, 10)]
    return next(line for line in lines if line.startswith("graph")).removeprefix("graph").strip()


def test_hits_and_padding_are_those_of_the_window() -> None:
    first = sample(0, steps=10, full=0, piecewise=0, tokens=0, padding=0)
    second = sample(1, steps=20, full=6, piecewise=2, tokens=200, padding=50)
    assert graph_line(first, second) == (
        "80.0 % of steps replayed, 25.0 % of tokens padding; last 1 min"
    )


def test_a_server_without_new_steps_tells_its_whole_life() -> None:
    still = {"steps": 40, "full": 10, "piecewise": 0, "tokens": 20, "padding": 2}
    line = graph_line(sample(0, **still), sample(1, **still))
    assert line == "25.0 % of steps replayed, 10.0 % of tokens padding; since start"


def test_eager_steps_have_no_padding() -> None:
    first = sample(0, steps=1, full=0, piecewise=0, tokens=0, padding=0)
    second = sample(1, steps=3, full=0, piecewise=0, tokens=0, padding=0)
    assert graph_line(first, second) == "0.0 % of steps replayed; last 1 min"


def test_other_engines_do_not_tell() -> None:
    other = MetricsSample(0, "vllm", running=1.0)
    assert graph_line(other) == "n/a: no engine exports the graph it uses"
