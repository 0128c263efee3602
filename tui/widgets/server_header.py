"""Two lines at the top: which server, which model, and whether the numbers are fresh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size

from app.client import formatting
from app.client.metrics.names import ENGINE_NAMES
from app.client.thresholds import Level
from tui.state.server_view import Connection
from tui.widgets.rows import Row, RowWidget

_ALERT_PARTS = {Level.OK: "dim", Level.WARN: "warn", Level.ALARM: "alarm"}
_ROOM_FOR_PACE = 100


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
    position: str = ""  # in a recording, with its date
    alert: str = ""  # what is not as it should be, the worst first
    alert_level: Level = Level.OK


class ServerHeader(RowWidget):
    """Draws a HeaderState; the class `-disconnected` colours it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"header--{part}" for part in ("model", "dim", "state", "warn", "alarm")
    }

    STYLES = "header"

    def __init__(self, state: HeaderState) -> None:
        super().__init__(id="header")
        self.state = state

    def show(self, state: HeaderState) -> None:
        self.state = state
        self.set_class(state.connection is Connection.DISCONNECTED, "-disconnected")
        self.set_class(state.connection is Connection.PAUSED, "-paused")
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        """Both lines; the left parts give way to the right ones."""
        state = self.state
        if state.connection is Connection.DISCONNECTED:
            # The reason needs the whole lower line, so the age moves up.
            status = f"{state.connection.value} · {_sample_age(state)}"
            upper = _line(_model(state), status, "model", "state", width)
            lower = _line(state.reason, "", "dim", "dim", width)
        else:
            parts = (state.connection.value, state.position, state.activity)
            status = " · ".join(part for part in parts if part)
            upper = _line(_model(state), status, "model", "state", width)
            lower = _lower(state, width)
        return [upper, lower]


def _lower(state: HeaderState, width: int) -> Row:
    """The address and what is wrong; without room for both, an alarm is worth more."""
    freshness = _freshness(state, width)
    if not state.alert:
        return _line(state.url, freshness, "dim", "dim", width)
    room = width - len(freshness) - 2
    part = _ALERT_PARTS[state.alert_level]
    address = f"{state.url}  "
    fits = cell_len(address) + cell_len(state.alert) <= room
    if state.alert_level is Level.ALARM and not fits:
        return _line(state.alert, freshness, part, "dim", width)
    shown = address if cell_len(address) < room else ""
    rest = _line(state.alert if shown else state.url, freshness, part, "dim", width - len(shown))
    return ((shown, "dim"), *rest)


def _line(left: str, right: str, left_part: str, right_part: str, width: int) -> Row:
    """Cut on the left side where there is no room for both."""
    room = max(0, width - len(right) - (2 if right else 0))
    if cell_len(left) > room:
        left = f"{set_cell_size(left, room - 1)}…" if room else ""
    shown = set_cell_size(left, room)
    return (shown, left_part), (f"  {right}" if right else "", right_part)


def _model(state: HeaderState) -> str:
    engine = ENGINE_NAMES.get(state.engine or "", state.engine)
    return "  ".join(part for part in (state.model or "stoker top", engine, state.version) if part)


def _freshness(state: HeaderState, width: int) -> str:
    parts = []
    if state.num_back:
        parts.append(f"{state.num_back} back")
    if state.num_restarts:
        parts.append(f"{state.num_restarts} restart{'s' if state.num_restarts > 1 else ''} seen")
    if state.uptime_s is not None:
        parts.append(f"up {formatting.uptime(state.uptime_s)}")
    parts.append(_sample_age(state))
    if width >= _ROOM_FOR_PACE or not state.alert:
        parts.append(f"every {formatting.interval(state.interval_s)}")
    return " · ".join(parts)


def _sample_age(state: HeaderState) -> str:
    if state.age_s is None:
        return "no sample yet"
    return f"sample {formatting.age(max(0.0, state.age_s))} old"
