from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine.children import engine_command, kill_session, spawn


def test_a_folder_called_engine_in_the_current_directory_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise RuntimeError('not ours')")
    (tmp_path / "engine" / "__main__.py").write_text("print('not ours')")
    monkeypatch.chdir(tmp_path)

    done = subprocess.run(
        engine_command("--version"), capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.startswith("stoker engine ")


def test_a_child_is_the_program_itself_in_a_session_of_its_own() -> None:
    code = "import os; print(os.getpid(), os.getsid(0))"
    child = spawn([sys.executable, "-c", code], stdout=subprocess.PIPE)
    out, _ = child.communicate(timeout=30)

    assert [int(word) for word in out.split()] == [child.pid, child.pid]
    assert child.returncode == 0
    assert os.getsid(0) != child.pid


def test_a_child_can_be_killed_with_its_group() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=0)"
    child = spawn([sys.executable, "-c", code], stdout=subprocess.PIPE)
    kill_session(child)

    assert child.returncode is not None
    assert child.stdout is not None
    assert child.stdout.read() == b""  # the pipe's end: nobody else holds it any more
    child.stdout.close()
