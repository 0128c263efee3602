"""What workers tell the screen. Past tense; each carries frozen data."""

from __future__ import annotations

from textual.message import Message

from app.client.metrics import MetricsSample


class SampleArrived(Message):
    """A scrape worked."""

    def __init__(self, sample: MetricsSample) -> None:
        super().__init__()
        self.sample = sample


class Disconnected(Message):
    """A scrape failed; the next one comes after `retry_in_s`."""

    def __init__(self, reason: str, num_failures: int, retry_in_s: float) -> None:
        super().__init__()
        self.reason = reason
        self.num_failures = num_failures
        self.retry_in_s = retry_in_s


class LogLinesArrived(Message):
    """The followed log has grown by `lines`."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines
