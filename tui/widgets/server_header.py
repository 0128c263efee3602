"""Two lines at the top: which server, which model, and whether the numbers are fresh."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.widget import Widget

from tui import formatting

ENGINE_NAMES = {
    "stoker": "Stoker",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "tgi": "TGI",
}


class Connection(enum.Enum):
    """What the header says about the server; the value is the text, sign first."""

    CONNECTING = "○ connecting"
    LIVE = "● live"
    STARTING = "○ starting"
    PAUSED = "▮▮ paused"
    DISCONNECTED = "✖ disconnected, retrying"


@dataclass(frozen=True, slots=True)
class HeaderState:
    """What the two lines show. `age_s` is that of the sample on screen, None without one."""

    url: str
    interval_s: float
    connection: Connection = Connection.CONNECTING
    model: str | None = None
    engine: str | None = None
    age_s: float | None = None
    reason: str = ""
    num_restarts: int = 0
    activity: str = ""
    version: str | None = None
    uptime_s: float | None = None
    num_back: int = 0  # samples between the picture and the newest one


class ServerHeader(Widget):
    """Draws a HeaderState; the class `-disconnected` colours it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"header--model", "header--dim", "header--state"}

    def __init__(self, state: HeaderState) -> None:
        super().__init__(id="header")
        self.state = state

    def show(self, state: HeaderState) -> None:
        """Draw another state."""
        self.state = state
        self.set_class(state.connection is Connection.DISCONNECTED, "-disconnected")
        self.set_class(state.connection is Connection.PAUSED, "-paused")
        self.refresh()

    def render(self) -> Text:
        """Both lines; the left parts give way to the right ones."""
        state = self.state
        if state.connection is Connection.DISCONNECTED:
            # The reason needs the whole lower line, so the age moves up.
            status = f"{state.connection.value} · {_sample_age(state)}"
            upper = self._line(_model(state), status, "model", "state")
            lower = self._line(state.reason, "", "dim", "dim")
        else:
            status = " · ".join(part for part in (state.connection.value, state.activity) if part)
            upper = self._line(_model(state), status, "model", "state")
            lower = self._line(state.url, _freshness(state), "dim", "dim")
        return Text("\n").join([upper, lower])

    def _line(self, left: str, right: str, left_part: str, right_part: str) -> Text:
        room = max(0, self.size.width - len(right) - (2 if right else 0))
        text = Text(left, self.get_component_rich_style(f"header--{left_part}"), no_wrap=True)
        text.truncate(room, overflow="ellipsis", pad=True)
        text.append("  " if right else "")
        text.append(right, self.get_component_rich_style(f"header--{right_part}"))
        return text


def _model(state: HeaderState) -> str:
    engine = ENGINE_NAMES.get(state.engine or "", state.engine)
    return "  ".join(part for part in (state.model or "stoker top", engine, state.version) if part)


def _freshness(state: HeaderState) -> str:
    parts = []
    if state.num_back:
        parts.append(f"{state.num_back} back")
    if state.num_restarts:
        parts.append(f"{state.num_restarts} restart{'s' if state.num_restarts > 1 else ''} seen")
    if state.uptime_s is not None:
        parts.append(f"up {formatting.uptime(state.uptime_s)}")
    parts += [_sample_age(state), f"every {formatting.interval(state.interval_s)}"]
    return " · ".join(parts)


def _sample_age(state: HeaderState) -> str:
    if state.age_s is None:
        return "no sample yet"
    return f"sample {formatting.age(max(0.0, state.age_s))} old"
