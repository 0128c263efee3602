"""The scheduler's box: which numbers it shows of which server."""

from __future__ import annotations

from app.client.metrics.sample import MetricsSample, read_sample
from tui.state.history import MetricHistory
from tui.widgets.charts.cache_panel import CachePanel

GUESSING = """
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} 400
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} 100
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}
"""


def guessing(time_s: float, drafts: int, tokens: int, accepted: int) -> MetricsSample:
    sample = read_sample(GUESSING.format(drafts=drafts, tokens=tokens, accepted=accepted), time_s)
    assert sample is not None
    return sample


def shown(*samples: MetricsSample) -> dict[str, str]:
    history = MetricHistory()
    for sample in samples:
        history.append(sample)
    panel = CachePanel()
    panel.snapshot = history.snapshot()
    texts = ["".join(text for text, _ in row) for row in panel.rows(22, 5)]
    assert all(len(text) == 22 for text in texts)
    return {text[:13].rstrip(): text[13:].strip() for text in texts}


def test_a_server_that_guesses_tokens_tells_how_many_were_kept() -> None:
    rows = shown(guessing(0, 10, 30, 30), guessing(1, 20, 60, 36))
    assert rows["drafts kept"] == "20.0 %"  # of those since the first sample
    assert "  since start" not in rows


def test_drafts_are_not_known_before_the_server_guesses_again() -> None:
    assert shown(guessing(0, 10, 30, 20), guessing(1, 10, 30, 20))["drafts kept"] == "-"


def test_without_guesses_the_hits_since_start_are_told() -> None:
    rows = shown(MetricsSample(0, "vllm", prefix_hit_rate=0.25))
    assert rows["  since start"] == "25.0 %"
    assert "drafts kept" not in rows
    assert shown()["  since start"] == "-"
