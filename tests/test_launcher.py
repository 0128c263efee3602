"""The installed command runs its own packages, whatever the working folder and PYTHONPATH hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stoker_launcher

ROOT = Path(stoker_launcher.__file__).parent
# What pip writes for an entry point, in short.
_SCRIPT = "import sys; from stoker_launcher import main; sys.argv[0] = 'stoker'; sys.exit(main())"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A project whose folders are called like ours, and that says so when they are imported."""
    for name in ("app", "engine", "tui", "logparse", "pip"):
        package = tmp_path / name
        package.mkdir()
        for file in ("__init__.py", "__main__.py", "cli.py"):
            (package / file).write_text("open('taken', 'a').close()\n")
    return tmp_path


def run(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([".", str(folder), str(ROOT)])
    state = str(folder / "state")
    environ = {**os.environ, "PYTHONPATH": path, "STOKER_CACHE_DIR": state, "XDG_STATE_HOME": state}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("start", [["-c", _SCRIPT], [str(ROOT / "stoker_launcher.py")]])
@pytest.mark.parametrize(
    "words", [["--version"], ["doctor", "--only", "wheel", "--plain"], ["plan", "smollm2-135m"]]
)
def test_a_folder_of_the_same_name_is_never_run(
    foreign: Path, start: list[str], words: list[str]
) -> None:
    done = run(foreign, [sys.executable, *start, *words])

    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout
    assert not (foreign / "taken").exists()


@pytest.mark.parametrize(
    "code",
    [
        "from engine.machine.children import engine_command as e; words = e('--version')",
        "from engine.model_store.wheels import _pip_command as pip; words = [*pip(), '--version']",
    ],
)
def test_what_it_starts_is_ours_too(foreign: Path, code: str) -> None:
    beside = "import sys, stoker_launcher as s; sys.meta_path.insert(0, s.BesideFinder); "
    done = run(foreign, [sys.executable, "-c", f"{beside}{code}; print('\\n'.join(words))"])
    child = run(foreign, done.stdout.splitlines())

    assert child.returncode == 0, child.stderr
    assert not (foreign / "taken").exists()


def test_the_console_script_is_the_launcher() -> None:
    assert 'stoker = "stoker_launcher:main"' in (ROOT / "pyproject.toml").read_text()


def test_ctrl_c_before_a_command_has_begun_is_no_traceback(tmp_path: Path) -> None:
    code = (
        "import sys, stoker_launcher\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == MODULE: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "stoker_launcher.main()"
    )
    for module in ("app.errors", "app.command_line"):
        done = run(tmp_path, [sys.executable, "-c", f"MODULE = {module!r}\n{code}", "ps"])
        assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), module


def test_the_launcher_itself_is_read_in_no_time(tmp_path: Path) -> None:
    """While a script imports it, nobody catches Ctrl-C."""
    code = "import sys; before = set(sys.modules); import stoker_launcher; "
    code += "print(*sorted(set(sys.modules) - before))"
    loaded = run(tmp_path, [sys.executable, "-c", code]).stdout.split()
    assert set(loaded) - {"__future__"} == {"stoker_launcher"}
