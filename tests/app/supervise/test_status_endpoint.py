"""The supervisor's own pages: what each state answers, and that they are served from the start."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from app.client.metrics.exposition import parse_exposition
from app.errors import ExitCode, StokerError
from app.registry.server_registry import ServerRegistry
from app.registry.states import RECORDED_STATES
from app.selftest.run import fake_spec
from app.supervise.managed_server import ManagedServer, ServerCare
from app.supervise.status_endpoint import StatusEndpoint
from app.supervise.status_pages import Page, SupervisorStatus, page
from engine.machine.ports import free_port

STATUS = SupervisorStatus(
    name="one",
    engine="vllm",
    model='odd "name"\n',
    state="ready",
    detail=None,
    phase=None,
    is_started=True,
    is_process_alive=True,
    num_restarts=2,
    uptime_s=12.5,
    progress_age_s=None,
    log_lost_bytes=7,
)
PROBES = ("/startupz", "/readyz", "/livez")


def codes(**changed: object) -> tuple[int, ...]:
    status = replace(STATUS, **changed)  # type: ignore[arg-type]
    return tuple(page(path, status).code for path in PROBES)


def test_each_state_has_its_answers() -> None:
    starting = codes(state="starting", is_started=False, phase="compilation")
    seen = {state: codes(state=state) for state in RECORDED_STATES if state != "starting"}

    assert starting == (503, 503, 200)
    assert seen == {
        "ready": (200, 200, 200),
        "idle": (200, 200, 200),
        "busy": (200, 200, 200),
        "asleep": (200, 503, 200),
        "stalled": (200, 503, 503),
        "draining": (200, 503, 200),
        "backing off": (200, 503, 200),
        "restarting": (200, 503, 200),
        "failed": (200, 503, 503),
    }
    assert codes(is_process_alive=False) == (200, 200, 503)
    assert codes(state="backing off", is_process_alive=False)[2] == 200


def test_the_body_says_why() -> None:
    stalled = replace(STATUS, state="stalled", detail="no step for 60 s\nmore")
    assert page("/livez", stalled).body == "stalled: no step for 60 s\n"
    assert page("/favicon.ico", STATUS).code == 404


def test_metrics_carry_phase_state_and_restarts() -> None:
    starting = replace(STATUS, state="starting", phase="serving", progress_age_s=3.25)
    samples = parse_exposition(page("/metrics", starting).body).samples

    phases = {one.labels["phase"]: one.value for one in samples["stoker_supervisor_phase"]}
    assert [name for name, value in phases.items() if value] == ["serving"]
    assert len(phases) == 5
    states = {one.labels["state"]: one.value for one in samples["stoker_supervisor_state"]}
    assert [name for name, value in states.items() if value] == ["starting"]
    assert samples["stoker_supervisor_restarts_total"][0].value == 2
    assert samples["stoker_supervisor_uptime_seconds"][0].value == 12.5
    assert samples["stoker_supervisor_progress_age_seconds"][0].value == 3.25
    assert samples["stoker_log_lost_bytes_total"][0].value == 7
    assert samples["stoker_engine_info"][0].labels["model"] == 'odd "name"\n'
    assert "progress_age" not in page("/metrics", STATUS).body


@pytest.fixture
def endpoint() -> Iterator[StatusEndpoint]:
    opened = StatusEndpoint(lambda path: Page(200, "text/plain", path))
    yield opened
    opened.close()


def ask_socket(path: Path, page: str) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        return client.get(f"http://supervisor{page}")


def test_socket_and_port_answer_until_they_are_closed(
    tmp_path: Path, endpoint: StatusEndpoint
) -> None:
    port, path = free_port(), tmp_path / "s.sock"
    endpoint.open_port(port)
    where = endpoint.open_socket(path)

    assert where.stat().st_mode & 0o777 == 0o600
    assert ask_socket(where, "/readyz?x").text == "/readyz"
    assert httpx.get(f"http://127.0.0.1:{port}/livez").text == "/livez"
    assert httpx.head(f"http://127.0.0.1:{port}/livez").content == b""
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert silent.fileno() > 0
        assert httpx.get(f"http://127.0.0.1:{port}/livez").text == "/livez", "nobody waits for it"
    endpoint.close()
    assert not where.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/livez")


def test_a_path_that_no_socket_can_have_gets_another_place(
    tmp_path: Path, endpoint: StatusEndpoint
) -> None:
    where = endpoint.open_socket(tmp_path / ("long" * 40) / "s.sock")

    assert ask_socket(where, "/x").text == "/x"
    endpoint.close()
    assert not where.parent.exists()


def test_a_port_in_use_is_refused_by_name(endpoint: StatusEndpoint) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StokerError, match=f"--status-port {port} cannot be used") as caught:
            endpoint.open_port(port)
    assert caught.value.exit_code is ExitCode.ENGINE_FAILED_TO_START


def test_a_server_answers_probes_from_its_start_to_its_end(tmp_path: Path) -> None:
    registry, port = ServerRegistry(tmp_path / "servers"), free_port()
    care = ServerCare(status_port=port)
    server = ManagedServer(
        fake_spec("hold:2"), name="x", log_path=tmp_path / "x.log", registry=registry, care=care
    )
    server.start()
    (record,) = registry.all()
    assert record.status_url == f"http://127.0.0.1:{port}"
    assert record.status_socket is not None
    path = Path(record.status_socket)

    assert [ask_socket(path, probe).status_code for probe in PROBES] == [503, 503, 200]
    assert httpx.get(f"{record.status_url}/readyz").text == "starting\n"
    assert "stoker_supervisor_progress_age_seconds" in ask_socket(path, "/metrics").text
    assert server.stop().is_clean
    assert list((tmp_path / "servers").iterdir()) == []


def test_a_start_without_its_port_leaves_nothing(tmp_path: Path) -> None:
    registry = ServerRegistry(tmp_path / "servers")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = ManagedServer(
            fake_spec("good"),
            name="x",
            log_path=tmp_path / "x.log",
            registry=registry,
            care=ServerCare(status_port=other.getsockname()[1]),
        )
        with pytest.raises(StokerError):
            server.start()

    assert not server.is_alive()
    assert registry.all() == ()
