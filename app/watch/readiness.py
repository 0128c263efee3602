"""A start as it is watched: ready, gone, late or no longer wanted, and whether anything moves.

Ready is a token that came back after /health was good. A server without text generation
(embeddings only) is ready with /health; it refuses the question.
"""

from __future__ import annotations

import enum
import http.client
import re
import threading
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from app.client.errors import ClientError, error_code
from app.client.transport import connection_errors, open_client
from app.launch.engines import STOKER
from app.launch.launch_specs import LaunchSpec
from engine.env import PROBE_SALT
from engine.machine.ports import uds_answers_http
from engine.machine.processes import is_running
from logparse import (
    Event,
    FactFound,
    LogReport,
    Outcome,
    PhaseFinished,
    PhaseStarted,
    ProgressMade,
    ServerReady,
)

_POLL_S = 0.1
_HEALTH_TIMEOUT_S = 1.0
_TOKEN_TIMEOUT_S = 60.0  # the first step may compile, on a CPU for a while
_MOMENT_S = 0.1
_NO_SUCH_METHOD = 501
_SLEEPS, _ASLEEP_CODE = 503, "server_asleep"
# A download counts bytes (`45%|####   | 1.2G/2.6G`), so that only its percentage can be used.
_BAR_IN_UNITS = re.compile(r"(?P<title>[^|%\r]{0,80}?)[: ]*\b(?P<percent>\d{1,3})%\|[^|]{0,200}\|")
_OWN_PROGRESS = re.compile(
    r"\] (?P<what>Downloading|Converting) (?P<name>\S{1,200}): (?P<percent>\d{1,3})% "
    r"\((?P<amount>[^)]{1,60})\)"
)
_STEPS = (PhaseStarted, PhaseFinished, FactFound, ServerReady)


class StartOutcome(enum.Enum):
    """How the wait for a server ended."""

    READY = "ready"
    EXITED = "exited"
    TIMED_OUT = "timed out"
    STOP_REQUESTED = "stop requested"


def wait_until_ready(
    *,
    is_ready: Callable[[], bool],
    is_alive: Callable[[], bool],
    is_stop_requested: Callable[[], bool],
    timeout_s: float,
    still_s: Callable[[], float],
    on_tick: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> StartOutcome:
    """Ask again and again; a server that is gone is never ready, whoever answers on its port.

    `still_s` says for how long nothing has moved: that, not the time since the start, is limited.
    """
    while True:
        on_tick()
        if is_stop_requested():
            return StartOutcome.STOP_REQUESTED
        if not is_alive():
            return StartOutcome.EXITED
        if is_ready() and is_alive():
            return StartOutcome.READY
        if still_s() >= timeout_s:
            return StartOutcome.TIMED_OUT
        sleep(_POLL_S)


class NodeProbe:
    """Of a node without an API server, which says itself when the server of node 0 has it."""

    def __init__(self, report: Callable[[], LogReport]) -> None:
        self._report = report

    def is_ready(self) -> bool:
        return self._report().outcome is Outcome.READY


class ReadyProbe:
    """Ask `is_ready` again and again; a thread waits for the token, the caller a moment at most."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._has_answered = False
        self._asking: threading.Thread | None = None

    def is_ready(self) -> bool:
        """True from the first token on, as long as /health agrees."""
        if not _is_healthy(self._spec):
            return False
        if not self._has_answered and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, name="ready-probe", daemon=True)
            self._asking.start()
            self._asking.join(_MOMENT_S)
        return self._has_answered

    def _ask(self) -> None:
        self._has_answered = answers_one_token(self._spec)


def _is_healthy(spec: LaunchSpec) -> bool:
    """Asked ten times a second while the server wants every core: no client is set up for it."""
    if spec.uds is not None:
        return uds_answers_http(spec.uds, _HEALTH_TIMEOUT_S, b"HTTP/1.1 200")
    parts = urlsplit(spec.url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=_HEALTH_TIMEOUT_S
    )
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def answers_one_token(spec: LaunchSpec, timeout_s: float = _TOKEN_TIMEOUT_S) -> bool:
    """True when one token came, or when this server generates no text at all, or sleeps."""
    body: dict[str, object] = {"prompt": "Hello", "max_tokens": 1, "temperature": 0}
    if spec.served_name is not None:
        body["model"] = spec.served_name
    if spec.engine == STOKER:
        body["cache_salt"] = PROBE_SALT
    client = open_client(spec.url, api_key=spec.api_key, timeout_s=timeout_s)
    try:
        with connection_errors(spec.url), client:
            response = client.post("/v1/completions", json=body)
    except ClientError:
        return False
    if response.status_code == _SLEEPS and error_code(response.text) == _ASLEEP_CODE:
        return True  # somebody put it to sleep meanwhile
    return response.status_code < 500 or response.status_code == _NO_SUCH_METHOD


class ProgressClock:
    """Feed it what each line told. Lines that tell nothing are no progress: a hung start prints.

    A start that waits for another one moves as long as that process lives.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        is_alive: Callable[[int], bool] = is_running,
    ) -> None:
        self._clock = clock
        self._is_alive = is_alive
        self._moved_at = clock()
        self._bar: tuple[str, int, int] | None = None
        self._waits_for: int | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the log showed progress."""
        if self.waits_for_pid is not None:
            self._moved_at = self._clock()
        return self._clock() - self._moved_at

    @property
    def waits_for_pid(self) -> int | None:
        """The living process whose start has to get through before this one goes on."""
        pid = self._waits_for
        return pid if pid is not None and self._is_alive(pid) else None

    def note(self, events: Iterable[Event]) -> None:
        """Take the events of one line."""
        for event in events:
            if isinstance(event, ProgressMade):
                bar = (event.text, event.done, event.total)
                if bar == self._bar:
                    continue
                self._bar = bar
            elif not isinstance(event, _STEPS):
                continue
            self._moved_at = self._clock()
            self._waits_for = waited_for(event)


def waited_for(event: Event) -> int | None:
    """The pid that a start says it waits for; None when the line told something else."""
    if not isinstance(event, FactFound) or event.key != "waits_for_pid":
        return None
    return event.value if isinstance(event.value, int) else None


def bar_in_units(line: str, line_number: int) -> ProgressMade | None:
    """The state that a bar with units, or a line of our engine, tells last, in percent."""
    if (own := _OWN_PROGRESS.search(line)) is not None:
        title = f"{own['what'].lower()} {own['name']}, {own['amount']}"
        return ProgressMade(line_number, title, int(own["percent"]), 100)
    if "%|" not in line:
        return None
    found = list(_BAR_IN_UNITS.finditer(line))
    if not found:
        return None
    title = found[-1]["title"].strip()
    return ProgressMade(line_number, title, int(found[-1]["percent"]), 100)
