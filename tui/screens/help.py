"""The help screen: keys, taken from the bindings themselves, and how to read what is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.keys import key_text

READING = (
    ("-", "the server does not expose this, or there is no data yet; it never means 0"),
    ("n/a", "the server does not export it; the reason stands beside it"),
    ("used", "KV blocks that requests hold; a block of vLLM's pool is kept empty by design"),
    ("reusable", "KV blocks that hold a prefix which a new request can reuse, free ones included"),
    ("▲ ✖", "a reading past its warning, its alarm; all of them stand in the head"),
    ("tok/s", "counter increase between two samples; a server restart is noted at the top"),
    ("~ < >", "estimate inside a wide histogram bucket; below the first, above the last bound"),
    ("n", "observations behind the three percentiles"),
    ("hits", "share of prompt tokens found in the prefix cache"),
    ("Tab", "goes from panel to panel; the help then explains that one"),
)


class HelpScreen(ModalScreen[None]):
    """Closes with Escape, q or the key that opened it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,h", "dismiss", "Back", id="help.close"),
    ]

    def __init__(
        self,
        bindings: Iterable[Binding],
        reading: Sequence[tuple[str, str]] = READING,
        title: str = "",
    ) -> None:
        super().__init__()
        self._title = title
        self._reading = reading
        self._key_bindings = [binding for binding in bindings if _meaning(binding)]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = f"Help: {self._title}" if self._title else "Help"
            box.border_subtitle = "Esc closes"
            keys = Static(self._keys(), id="help-keys")
            reading = Static(_reading(self._reading), id="help-reading")
            # Who asks about one panel wants to read about it before all the keys.
            yield from (reading, keys) if self._title else (keys, reading)

    def _keys(self) -> Table:
        meanings: dict[str, list[str]] = {}
        for binding in self._key_bindings:
            known = meanings.setdefault(key_text(binding.key), [])
            if (meaning := _meaning(binding)) not in known:
                known.append(meaning)
        meanings.setdefault("Ctrl-P", ["every command by name"])
        keys: dict[str, list[str]] = {}
        for key, known in meanings.items():
            keys.setdefault("; ".join(known), []).append(key)  # it means more in other panels
        table = _table()
        for meaning, same in keys.items():
            table.add_row(", ".join(same), meaning)
        return table


def _meaning(binding: Binding) -> str:
    return binding.tooltip or binding.description


def _reading(rows: Sequence[tuple[str, str]]) -> Table:
    table = _table()
    for term, meaning in rows:
        table.add_row(term, meaning)
    return table


def _table() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=15)
    table.add_column()
    return table
