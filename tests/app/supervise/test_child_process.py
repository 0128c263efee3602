from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from app.errors import ExitCode, StokerError
from app.supervise.child_process import spawn_server


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")

    with pytest.raises(StokerError, match="not executable") as caught:
        spawn_server([str(tmp_path / "notes.txt")], stdout=subprocess.DEVNULL)

    assert caught.value.exit_code == ExitCode.NOT_EXECUTABLE
