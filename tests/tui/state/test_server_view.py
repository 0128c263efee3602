"""What the header says of a server as a whole."""

from __future__ import annotations

import pytest

from app.client.metrics.sample import MetricsSample
from tui.state.history import MetricHistory
from tui.state.server_view import ServerView


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("awake", "idle"),
        ("weights_offloaded", "asleep, level 1"),
        ("discard_all", "asleep, level 2"),
        (None, "idle"),
    ],
)
def test_a_server_that_sleeps_is_not_called_idle(state: str | None, word: str) -> None:
    history = MetricHistory()
    history.append(MetricsSample(1.0, "vllm", running=0, waiting=0, sleep_state=state))
    assert ServerView(history.snapshot(), None, None).activity(None) == word
