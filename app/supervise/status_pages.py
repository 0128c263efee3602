"""What the supervisor's own endpoint answers: /startupz, /readyz, /livez for probes, and /metrics.

Pure: from what is known to status code and text; `status_endpoint` does the serving.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app import __version__
from app.registry.states import RECORDED_STATES, ServerState
from logparse import PHASE_NAMES

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_TEXT = "text/plain; charset=utf-8"
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
PATHS = ("/startupz", "/readyz", "/livez", "/metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus:
    """A server as its supervisor sees it. What is not known, or has no meaning now, is None.

    `progress_age_s` is the time since the start, or a busy engine, moved; `is_started` stays true
    once this start has been ready.
    """

    name: str
    engine: str
    model: str
    state: str
    detail: str | None
    phase: str | None
    is_started: bool
    is_process_alive: bool
    num_restarts: int
    uptime_s: float
    progress_age_s: float | None
    log_lost_bytes: int
    engine_version: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """An HTTP answer of the supervisor's own endpoint."""

    code: int
    content_type: str
    body: str


def page(path: str, status: SupervisorStatus) -> Page:
    """The answer to GET `path`."""
    if path == "/metrics":
        return Page(200, _EXPOSITION, _exposition(status))
    is_yes = {
        "/startupz": status.is_started,
        "/readyz": ServerState(status.state).serves,
        "/livez": _is_alive(status),
    }.get(path)
    if is_yes is None:
        return Page(404, _TEXT, f"no such page; there are {', '.join(PATHS)}\n")
    return Page(200 if is_yes else 503, _TEXT, f"{_words(status)}\n")


def state_text(status: SupervisorStatus) -> str:
    """All of it in one line, for a log."""
    moved = status.progress_age_s
    parts = (
        f"state of {status.name}: {_words(status)}",
        f"{status.engine} with {status.model}",
        f"up for {status.uptime_s:.0f} s",
        f"{status.num_restarts} restarts",
        "" if moved is None else f"moved {moved:.0f} s ago",
        f"{status.log_lost_bytes} bytes of the log lost" if status.log_lost_bytes else "",
    )
    return "; ".join(part for part in parts if part)


def _is_alive(status: SupervisorStatus) -> bool:
    """Waiting for its next start it is looked after: who restarts it now would end the waiting."""
    if status.state == ServerState.BACKING_OFF:
        return True
    return status.is_process_alive and ServerState(status.state).is_well


def _words(status: SupervisorStatus) -> str:
    what = status.detail or status.phase
    return f"{status.state}: {what.splitlines()[0]}" if what else status.state


def _exposition(status: SupervisorStatus) -> str:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Once(Collector):
        def collect(self) -> Iterable[Metric]:
            return _metrics(status)

    registry = CollectorRegistry()
    registry.register(Once())
    return generate_latest(registry).decode()


def _metrics(status: SupervisorStatus) -> list[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    def gauge(name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(f"stoker_supervisor_{name}", text, value)

    def one_of(name: str, text: str, values: Iterable[str], now: str | None) -> Metric:
        metric = GaugeMetricFamily(f"stoker_supervisor_{name}", text, labels=[name])
        for value in values:
            metric.add_metric([value], float(value == now))
        return metric

    restarts = CounterMetricFamily(
        "stoker_supervisor_restarts", "Starts after the first.", status.num_restarts
    )
    lost = CounterMetricFamily(
        "stoker_log_lost_bytes", "Bytes of the log that were dropped.", status.log_lost_bytes
    )
    version = status.engine_version or ""
    engine = {"engine": status.engine, "version": version, "model": status.model}
    metrics: list[Metric] = [
        InfoMetricFamily("stoker_build", "This supervisor.", {"version": __version__}),
        InfoMetricFamily("stoker_engine", "What it runs.", engine),
        one_of("state", "1 for the state of the server.", RECORDED_STATES, status.state),
        one_of("phase", "1 for the running part of a start.", PHASE_NAMES, status.phase),
        gauge("uptime_seconds", "Age of the supervisor.", status.uptime_s),
        restarts,
        lost,
    ]
    if status.progress_age_s is not None:
        text = "Time since the start, or a busy engine, moved."
        metrics.append(gauge("progress_age_seconds", text, status.progress_age_s))
    return metrics
