"""How every screen looks: a dark and a light theme, the terminal's own 16 colours, plain ASCII.

`Appearance` is what a command line asks for, `StyledApp` the base of all our applications.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from rich.cells import cell_len
from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from app.client.terminal import is_terminal_gone, watch_terminal

STOKER_THEME = Theme(
    name="stoker",
    primary="#ff9e3b",
    secondary="#7fb4ca",
    accent="#ff9e3b",
    foreground="#d8dee9",
    background="#12151b",
    surface="#171b23",
    panel="#1f2530",
    success="#98bb6c",
    warning="#e6c384",
    error="#e46876",
    dark=True,
    variables={
        "footer-key-foreground": "#ff9e3b",
        "footer-description-foreground": "#a7b0c0",
        "footer-background": "#171b23",
        "border": "#3b4454",
        "border-blurred": "#3b4454",
    },
)

LIGHT_THEME = Theme(
    name="stoker-light",
    primary="#b34d00",
    secondary="#00607a",
    accent="#b34d00",
    foreground="#1d2330",
    background="#fbfaf7",
    surface="#f1efe9",
    panel="#e6e3da",
    success="#3d6b1f",
    warning="#8a5a00",
    error="#b3243a",
    dark=False,
    variables={
        "footer-key-foreground": "#b34d00",
        "footer-description-foreground": "#4a5160",
        "footer-background": "#f1efe9",
        "border": "#b9b4a6",
        "border-blurred": "#b9b4a6",
    },
)

THEMES = {"dark": "stoker", "light": "stoker-light", "16": "ansi-dark"}
"""What --theme takes, and the Textual theme behind it."""

# One cell for one cell, so that nothing moves.
_ASCII = str.maketrans(
    {
        **dict(zip(" ▁▂▃▄▅▆▇█", " _.:-=+*#", strict=True)),
        **dict(zip("░▒▓◆·", ".:%@.", strict=True)),
        **dict(zip("─━│┃╭╮╰╯┌┐└┘├┤┬┴┼", "--||+++++++++++++", strict=True)),
        **dict(zip("▔▎▏▕▊▌▐▖▗▘▝", "-||||||....", strict=True)),
        **dict(zip("●○▲▮✖✓✗…→←↑↓×≥≤", "*o!|x+x.><^vx><", strict=True)),
        **dict(zip("▸▾⚠•▪‣⭑◦▉", ">v!*->*o|", strict=True)),
        **dict(
            zip("\N{EN DASH}\N{EM DASH}“”\N{LEFT SINGLE QUOTATION MARK}", '--""\'', strict=True)
        ),
        "°": "o",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    }
)


@dataclass(frozen=True, slots=True)
class Appearance:
    """`theme` is a key of THEMES. NO_COLOR takes the colours out of any of them."""

    theme: str = "dark"
    is_ascii: bool = False

    @classmethod
    def chosen(
        cls, environ: Mapping[str, str], theme: str | None = None, is_ascii: bool | None = None
    ) -> Appearance:
        """What was asked for, else STOKER_THEME and STOKER_ASCII, else what the terminal shows."""
        named = theme or environ.get("STOKER_THEME", "")
        if is_ascii is None:
            is_ascii = bool(environ.get("STOKER_ASCII")) or not _shows_unicode()
        return cls(named if named in THEMES else "dark", is_ascii)


_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class EndedBySignal(Exception):
    """A signal ended the application; `exit_code` is 128 and its number."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"ended by signal {exit_code - 128}")
        self.exit_code = exit_code


class StyledApp(App[str]):
    """The base of our applications; each calls `wear` before its first screen.

    A signal ends the application as its user would, so that the terminal is as it was; the return
    code is then 128 and its number.
    """

    owns_signals: bool = True
    """Off where whoever runs the application has handlers of its own."""

    def __init__(self, appearance: Appearance | None = None) -> None:
        super().__init__()
        self.appearance = appearance or Appearance.chosen(os.environ)
        self._handlers: dict[signal.Signals, Any] = {}  # those from before

    def _on_mount(self) -> None:
        loop = asyncio.get_running_loop()

        def handle(number: int, frame: FrameType | None) -> None:
            """Also while the loop stands on a terminal that is gone, which takes nothing more."""
            if is_terminal_gone():
                os._exit(128 + number)
            loop.call_soon_threadsafe(self._end_by, number)

        for number in _SIGNALS if self.owns_signals else ():
            with contextlib.suppress(ValueError):  # not in the main thread
                self._handlers[number] = signal.signal(number, handle)
        if self.owns_signals:
            watch_terminal(lambda: handle(signal.SIGHUP, None))

    def _on_unmount(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _end_by(self, number: int) -> None:
        self.exit(return_code=128 + number)

    def run_to_end(self) -> str | None:
        """Run; EndedBySignal once the terminal is restored after one."""
        result = self.run()
        if (self.return_code or 0) > 128:
            raise EndedBySignal(self.return_code or 0)
        return result

    def wear(self, appearance: Appearance) -> None:
        """Look like that from now on."""
        self.appearance = appearance
        self.register_theme(STOKER_THEME)
        self.register_theme(LIGHT_THEME)
        self.theme = THEMES[appearance.theme]

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's, and ours that leaves ASCII only."""
        filters = super().get_line_filters()
        return [*filters, AsciiFilter()] if self.appearance.is_ascii else filters


class AsciiFilter(LineFilter):
    """Replaces what a terminal without Unicode cannot show; unknown characters become `?`."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(to_ascii(segment.text), segment.style, segment.control) for segment in segments
        ]


def _shows_unicode() -> bool:
    """By the encoding of stdout; a test or a pipe without one counts as able."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return encoding.lower().replace("-", "") in ("utf8", "utf16", "utf32")


def to_ascii(text: str) -> str:
    """As many cells as before."""
    return text if text.isascii() else "".join(_ascii_cells(text.translate(_ASCII)))


def _ascii_cells(text: str) -> Iterator[str]:
    for char in text:
        yield char if char.isascii() else "?" * cell_len(char)
