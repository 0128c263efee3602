"""A yes-or-no question over the screen; Escape and Enter on its own mean no."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static


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
        with Vertical(id="confirm") as box:
            box.border_title = "Sure?"
            yield Static(self._question, markup=False)
            yield Static("y: yes    n, Esc: no", id="confirm-keys", markup=False)

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(is_yes)
