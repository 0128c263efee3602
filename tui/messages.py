"""What workers tell the screen. Past tense; each carries frozen data."""

from __future__ import annotations

from textual.message import Message

from app.client.debug.documents import DebugSample
from app.client.errors import ClientError
from app.client.metrics.sample import MetricsSample


class SampleArrived(Message):
    """A scrape worked, and this is what it brought."""

    def __init__(self, sample: MetricsSample) -> None:
        super().__init__()
        self.sample = sample


class Disconnected(Message):
    """A scrape failed; the next one comes after `retry_in_s`."""

    def __init__(self, error: ClientError, num_failures: int, retry_in_s: float) -> None:
        super().__init__()
        self.error = error
        self.reason = str(error)
        self.num_failures = num_failures
        self.retry_in_s = retry_in_s


class DebugArrived(Message):
    """The engine told what its scheduler, requests and blocks are doing."""

    def __init__(self, sample: DebugSample) -> None:
        super().__init__()
        self.sample = sample


class DebugFailed(Message):
    """The engine did not tell."""

    def __init__(self, error: ClientError) -> None:
        super().__init__()
        self.error = error


class CancelAsked(Message):
    """The user wants to end one request."""

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id


class ServerChosen(Message):
    """The user wants the dashboard of one server of the fleet."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class DetailsAsked(Message):
    """The user wants to see one request's walk."""

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id


class FilterAsked(Message):
    """The user wants to see some requests only."""


class NextEngineAsked(Message):
    """The user wants to look at the next replica of the server."""


class LogLinesArrived(Message):
    """The followed log has grown by `lines`."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines
