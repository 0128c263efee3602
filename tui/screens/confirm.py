"""Questions over the screen; Escape and Enter on its own mean no, or stay."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

_LEAVE_KEYS = "s: stop the server    d: detach, it runs on in the background    Esc: stay"


class ConfirmScreen(ModalScreen[bool]):
    """Dismissed with True by `y` only."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("n,escape,enter,q", "answer(False)", "No", id="confirm.no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield _box("Sure?", self._question, "y: yes    n, Esc: no")

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)


class LeaveScreen(ModalScreen[str | None]):
    """The server has requests and its owner leaves: "quit", "detach", or None to stay."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "answer('quit')", "Stop", id="leave.stop"),
        Binding("d", "answer('detach')", "Detach", id="leave.detach"),
        Binding("n,escape,enter,q", "stay", "Stay", id="leave.stay"),
    ]

    def __init__(self, num_requests: int | None) -> None:
        super().__init__()
        self._num_requests = num_requests

    def compose(self) -> ComposeResult:
        yield _box("Leave", _sentence(self._num_requests), _LEAVE_KEYS)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)

    def action_stay(self) -> None:
        self.dismiss(None)


def _sentence(num_requests: int | None) -> str:
    if num_requests is None:
        return "The server may have requests: it does not tell."
    requests = "1 request is" if num_requests == 1 else f"{num_requests} requests are"
    return f"{requests} in the server."


def _box(title: str, text: str, keys: str) -> Vertical:
    lines = Static(text, markup=False), Static(keys, id="confirm-keys", markup=False)
    box = Vertical(*lines, id="confirm")
    box.border_title = title
    return box
