"""What `stoker serve` says beside the start: dry run, incomplete logs, arguments to repeat."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.commands import serve as serve_command
from app.errors import ExitCode
from app.launch.engine_launch import EnginePlace
from app.registry.server_registry import ServerRegistry
from app.selftest.run import fake_spec
from app.supervise.managed_server import ManagedServer
from app.views.serve import warn_of_incomplete_log
from engine.model_store.progress import OnProgress, StoreProgress
from tests.engine.chat_templates import FAMILIES
from tests.fakes.programs import program
from tests.stoker_command import run_stoker

FULL = Path("/dev/full")


def stoker(state: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_stoker(*words, variables={"STOKER_STATE_DIR": str(state), **variables})


def test_a_dry_run_prints_the_command_without_the_key(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    done = stoker(
        tmp_path, "serve", str(model), "--dry-run", "--drain", "20", STOKER_API_KEY="hush"
    )

    assert done.returncode == 0, done.stderr
    assert f"serve {model} --served-model-name" in done.stdout
    assert "--shutdown-timeout=20.0" in done.stdout
    assert "hush" not in done.stdout + done.stderr
    assert not (tmp_path / "run" / "servers").exists()


def test_the_parsers_that_vllm_gets_are_said(tmp_path: Path) -> None:
    model, vllm = tmp_path / "model", program(tmp_path / "bin" / "vllm")
    model.mkdir()
    (model / "chat_template.jinja").write_text(FAMILIES["qwen3"].source)
    path = f"{vllm.parent}{os.pathsep}{os.environ['PATH']}"
    done = stoker(tmp_path, "serve", "--engine", "vllm", str(model), "--dry-run", PATH=path)

    assert done.returncode == 0, done.stderr
    assert "--enable-auto-tool-choice --tool-call-parser=hermes" in done.stdout
    assert "--reasoning-parser=qwen3" in done.stdout
    assert "note: filled in for this model: --reasoning-parser qwen3" in done.stderr


@pytest.mark.parametrize(
    ("words", "is_on"),
    [(["--detach"], True), (["--no-tui"], True), (["--detach", "--host", "0.0.0.0"], False)],
)
def test_a_server_without_a_dashboard_has_an_engine_page_too(
    words: list[str], is_on: bool, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    done = stoker(tmp_path, "serve", str(model), "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    assert ("--enable-debug-endpoints" in done.stdout) == is_on


def test_a_log_that_cannot_be_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = ServerRegistry(tmp_path)
    server = ManagedServer(fake_spec("idle"), name="x", log_path=FULL, registry=registry)
    server.start()
    server.wait_until_ready(60.0, lambda: False, lambda: None)

    assert warn_of_incomplete_log(server)
    said = "warning: the log /dev/full is incomplete: No space left on device"
    assert said in capsys.readouterr().err
    assert server.stop().is_clean


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--restart", "always"), "--restart 'always' is not known\nhint: use no or on-failure"),
        (("--log-max-bytes", "500K"), "--log-max-bytes 500K is no size that a log can have"),
        (("--log-max-bytes", "much"), "--log-max-bytes much is no size that a log can have"),
        (("--port", "9", "--status-port", "9"), "the server itself listens on port 9"),
    ],
)
def test_options_of_the_supervisor_are_checked(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = stoker(tmp_path, "serve", *words)

    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith(f"error: {said}")


def test_a_model_that_is_made_is_shown_and_told_to_the_service_manager(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = StoreProgress("download", 1 << 20, 89 << 20)

    def launch_spec(
        request: object, place: object, key: object, store: object, on_progress: OnProgress
    ) -> None:
        on_progress(made)

    monkeypatch.setattr("app.launch.engine_launch.launch_spec", launch_spec)
    told: list[StoreProgress] = []
    request: Any = SimpleNamespace(model="smollm2-135m")

    serve_command.prepare(request, EnginePlace(), None, told.append)

    assert told == [made]
    assert "smollm2-135m: downloading (89.0 MiB)" in capsys.readouterr().err
