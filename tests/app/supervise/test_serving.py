"""`stoker serve --no-tui` as a process of its own, on the fake engine."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from app.errors import ExitCode, StokerError
from app.registry.server_registry import ServerRegistry
from app.supervise.steady_output import NOBODY_READS
from app.views.serve import read_report, say_warnings
from engine.machine.ports import free_port, is_port_free
from tests.fakes import serve_fake
from tests.fakes.records import record
from tests.waiting import is_running, wait_for


class Serving:
    """The process, its port and its state folder."""

    def __init__(
        self, state: Path, mode: str, timeout_s: float, wrapper: list[str], restarts: int
    ) -> None:
        self.port = free_port()
        self.state = state
        environment = {**os.environ, "STOKER_STATE_DIR": str(state)}
        words = [str(self.port), mode, str(timeout_s), str(restarts)]
        command = [*wrapper, sys.executable, serve_fake.__file__, "foreground", *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def wait_until_ready(self) -> list[psutil.Process]:
        """Wait for the line on stdout; the processes of the server."""
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        assert self.ready_line.startswith(f"ready at http://127.0.0.1:{self.port} (")
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "session_guard" not in " ".join(child.cmdline())]

    def end(self) -> tuple[int, str, str]:
        """Exit code, rest of stdout, stderr."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def records(self) -> list[dict[str, object]]:
        return [json.loads(path.read_text()) for path in self.state.glob("run/servers/*.json")]

    def log(self) -> str:
        (path,) = self.state.glob("logs/*.log")
        return path.read_text()


Serve = Callable[..., Serving]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[Serving] = []

    def start(
        mode: str, timeout_s: float = 60.0, wrapper: list[str] | None = None, restarts: int = 0
    ) -> Serving:
        started.append(Serving(tmp_path / "state", mode, timeout_s, wrapper or [], restarts))
        return started[-1]

    yield start
    for serving in started:
        if serving.process.poll() is None:
            serving.process.kill()
        serving.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_requested_stop_is_clean(number: signal.Signals, serve: Serve) -> None:
    serving = serve("grandchild")
    children = serving.wait_until_ready()
    (record,) = serving.records()
    assert record["url"] == f"http://127.0.0.1:{serving.port}"
    assert record["pid"] in [child.pid for child in children]

    serving.process.send_signal(number)
    code, _, err = serving.end()

    assert code == ExitCode.OK
    assert f"stopped: 2 processes ended, port {serving.port} free" in err
    assert "starting fake on" in err
    assert len(children) == 2
    assert not any(is_running(child) for child in children)
    assert is_port_free("127.0.0.1", serving.port)
    assert serving.records() == []


def test_a_background_job_of_a_script_obeys_ctrl_c_and_nohup_ignores_a_hangup(serve: Serve) -> None:
    # A shell without job control starts `command &` with SIGINT ignored.
    serving = serve("good", wrapper=["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh"])
    serving.wait_until_ready()
    serving.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        serving.process.wait(timeout=1)
    serving.process.send_signal(signal.SIGINT)
    assert serving.end()[0] == ExitCode.OK


def test_the_key_is_on_no_screen_in_no_log_and_no_argument(serve: Serve) -> None:
    serving = serve("good")
    (child,) = serving.wait_until_ready()
    arguments = " ".join(child.cmdline())
    record = serving.records()
    serving.process.send_signal(signal.SIGINT)
    _, out, err = serving.end()

    assert "the key is ***" in serving.log()
    shown = (serving.ready_line, out, err, serving.log(), arguments, str(record))
    assert not any("very-secret-key" in text for text in shown)


def test_a_failed_start_is_explained(serve: Serve) -> None:
    serving = serve("crash-at-start")
    code, out, err = serving.end()

    assert code == ExitCode.ENGINE_FAILED_TO_START
    assert out == ""
    assert "failed to start (exit status 1): the port is already in use by another process" in err
    assert err.count("failed to start") == 1
    assert "Address already in use" in err
    assert f"the whole log: {serving.state}" in err
    assert "Traceback" not in err
    assert serving.records() == []


def test_a_later_death_has_its_own_code(serve: Serve) -> None:
    serving = serve("good")
    (child,) = serving.wait_until_ready()
    child.kill()
    code, _, err = serving.end()

    assert code == ExitCode.ENGINE_DIED
    assert "died (killed by signal 9)" in err
    assert serving.records() == []


def test_a_start_that_takes_too_long_is_stopped(serve: Serve) -> None:
    serving = serve("never-ready", timeout_s=1.5)
    code, _, err = serving.end()

    assert code == ExitCode.TIMEOUT
    assert "not ready, and no progress for 1.5 s" in err
    assert "--startup-timeout" in err
    assert "was asked to stop" not in err, "the hang is told, not what the stop added to the log"


def test_a_signal_before_readiness_ends_the_start(serve: Serve) -> None:
    serving = serve("never-ready")
    wait_for(lambda: bool(serving.records()))

    serving.process.send_signal(signal.SIGINT)
    code, _, err = serving.end()

    assert code == ExitCode.INTERRUPTED
    assert "stopped: 1 process ended" in err


def test_a_second_ctrl_c_does_not_wait(serve: Serve) -> None:
    serving = serve("ignore-term")
    (child,) = serving.wait_until_ready()

    serving.process.send_signal(signal.SIGINT)
    serving.process.send_signal(signal.SIGTERM)
    code, _, _ = serving.end()

    assert code == ExitCode.OK
    assert not is_running(child)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_the_server_dies_with_a_killed_stoker(serve: Serve) -> None:
    serving = serve("ignore-term")
    (child,) = serving.wait_until_ready()

    serving.process.kill()
    serving.end()

    wait_for(lambda: not is_running(child))


def test_a_killed_server_is_served_again_and_the_rest_is_said(serve: Serve) -> None:
    serving = serve("good", restarts=1)
    for num_restarts in (0, 1):
        (child,) = serving.wait_until_ready()
        (record,) = serving.records()
        assert record["num_restarts"] == num_restarts
        child.kill()
    code, _, err = serving.end()

    assert code == ExitCode.ENGINE_DIED
    assert "restart 1 of 1 in 0.1 s" in err
    assert err.count("died (killed by signal 9)") == 2
    assert "not started again: 1 restarts in a row did not help" in err
    assert err.count("starting fake on") == 2
    assert "(usually " in err, "the first start is remembered"
    assert len(list(serving.state.glob("logs/*.log"))) == 2
    assert serving.records() == []


def test_a_lasting_cause_is_not_tried_again(serve: Serve) -> None:
    code, _, err = serve("crash-at-start", restarts=5).end()

    assert code == ExitCode.ENGINE_FAILED_TO_START
    assert "not started again: another start would fail in the same way" in err
    assert "restart 1" not in err


def test_a_reader_of_stdout_that_goes_away_does_not_end_the_server(serve: Serve) -> None:
    serving = serve("talk")
    (child,) = serving.wait_until_ready()
    out, err = serving.process.stdout, serving.process.stderr
    assert out is not None
    assert err is not None
    assert "prompt" in out.readline()
    out.close()
    said = next(line for line in err if "note: " in line)
    assert NOBODY_READS in said
    assert is_running(child)

    serving.process.send_signal(signal.SIGTERM)
    rest = err.read()
    assert serving.process.wait(timeout=60) == ExitCode.OK
    assert NOBODY_READS not in rest
    assert "stopped: 1 process ended" in rest


@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits are Linux's")
def test_a_disk_that_fills_up_does_not_end_the_server(serve: Serve) -> None:
    serving = serve("talk")
    (child,) = serving.wait_until_ready()
    nothing_more = (0, resource.RLIM_INFINITY)
    resource.prlimit(serving.process.pid, resource.RLIMIT_FSIZE, nothing_more)
    err = serving.process.stderr
    assert err is not None
    said = [
        next(line for line in err if f"warning: {what}" in line)
        for what in ("the log", "the record")
    ]
    assert all(os.strerror(errno.EFBIG) in line for line in said)
    assert is_running(child)
    assert not is_port_free("127.0.0.1", serving.port)

    serving.process.send_signal(signal.SIGTERM)
    code, _, rest = serving.end()
    assert code == ExitCode.OK
    assert "the record" not in rest, "it is said once"
    assert serving.records() == []


def test_a_hang_up_before_readiness_has_its_code(serve: Serve) -> None:
    serving = serve("never-ready")
    wait_for(lambda: bool(serving.records()))
    serving.process.send_signal(signal.SIGHUP)

    assert serving.end()[0] == ExitCode.HUNG_UP


def test_a_full_disk_at_the_start_is_one_clear_error(tmp_path: Path) -> None:
    registry = ServerRegistry(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StokerError, match="cannot be written into"):
            registry.add(record("tiny"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_start_says_on_the_screen_what_makes_it_slow(serve: Serve) -> None:
    serving = serve("slow-kernels")
    serving.wait_until_ready()
    serving.process.send_signal(signal.SIGINT)
    _, _, err = serving.end()

    assert "warning: our engine runs with the slower kernels of torch: no C++ compiler" in err
    assert "start again: apt install g++" in err


def test_a_background_start_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "x.log"
    line = "(APIServer pid=7) WARNING 10-03 12:00:00 [selection.py:64] Native CPU kernels are not"
    log.write_text(f"{line} used: there is no C++ compiler on the PATH (looked for g++).\n" * 2)
    say_warnings(read_report(log), "x")
    said = capsys.readouterr().err
    assert said.count("warning:") == 1
    assert "apt install g++" in said


def test_ctrl_z_does_not_leave_the_output_without_a_reader(serve: Serve) -> None:
    serving = serve("talk")
    serving.wait_until_ready()
    serving.process.send_signal(signal.SIGTSTP)
    err = serving.process.stderr
    assert err is not None
    assert "stoker serve --detach" in next(line for line in err if "Ctrl-Z" in line)
    assert psutil.Process(serving.process.pid).status() != psutil.STATUS_STOPPED
    serving.process.send_signal(signal.SIGTERM)
    assert serving.end()[0] == ExitCode.OK
