"""What to do with a server that has requests, when its owner leaves the dashboard."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

_KEYS = "s: stop the server    d: detach, it runs on in the background    Esc: stay"


class LeaveScreen(ModalScreen[str | None]):
    """Dismissed with "quit", "detach", or None: stay."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "answer('quit')", "Stop", id="leave.stop"),
        Binding("d", "answer('detach')", "Detach", id="leave.detach"),
        Binding("n,escape,enter,q", "stay", "Stay", id="leave.stay"),
    ]

    def __init__(self, num_requests: int | None) -> None:
        super().__init__()
        self._num_requests = num_requests

    def compose(self) -> ComposeResult:
        """The box of `ConfirmScreen`, with three answers."""
        with Vertical(id="confirm") as box:
            box.border_title = "Leave"
            yield Static(_sentence(self._num_requests), markup=False)
            yield Static(_KEYS, id="confirm-keys", markup=False)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)

    def action_stay(self) -> None:
        self.dismiss(None)


def _sentence(num_requests: int | None) -> str:
    if num_requests is None:
        return "The server may have requests: it does not tell."
    requests = "1 request is" if num_requests == 1 else f"{num_requests} requests are"
    return f"{requests} in the server."
