"""The scripts in the shells themselves, at a terminal, with a key press."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.cli import COMMANDS, run
from app.completion.table import Values, places
from app.paths import records_dir
from app.registry.server_registry import ServerRecord, open_registry
from app.registry.states import ServerState
from engine.args import EngineArgs
from engine.machine.processes import process_identity
from tests.loaded_modules import loaded_by, third_party

SHELLS = ("bash", "zsh", "fish")
TERMINALS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
SETUP = {
    "bash": "bind 'set show-all-if-ambiguous on'; bind 'set enable-bracketed-paste off'",
    "zsh": "autoload -Uz compinit && compinit -u; unset zle_bracketed_paste",
}
_ESCAPES = re.compile(r"\x1b(\[[0-9;?>=]*[a-zA-Z]|[=>()][B0]?)")
_LIMIT_S = 60.0


def shell_param(name: str) -> object:
    return pytest.param(
        name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not here")
    )


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `stoker` and the three scripts."""
    folder = tmp_path_factory.mktemp("completion")
    program = folder / "stoker"
    program.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from app.cli import main; main()' \"$@\"\n"
    )
    program.chmod(0o755)
    for name in SHELLS:
        done = subprocess.run(
            [program, "completion", name], capture_output=True, text=True, check=True, timeout=60
        )
        (folder / name).write_text(done.stdout)
    return folder


class Shell:
    """An interactive bash or zsh on a terminal of its own, with the script loaded."""

    def __init__(self, name: str, scripts: Path, folder: Path) -> None:
        self._screen, slave = pty.openpty()
        self._seen = ""
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 160, 0, 0))
        self.process = subprocess.Popen(
            TERMINALS[name], stdin=slave, stdout=slave, stderr=slave, cwd=folder,
            env=shell_environment(scripts, folder), start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.type(f"{SETUP[name]}; source {scripts / name}; echo load''ed\n")
        self.wait_for("loaded")

    def type(self, text: str) -> None:
        """What was shown before is forgotten."""
        self._seen = ""
        os.write(self._screen, text.encode())

    def wait_for(self, *texts: str) -> None:
        """Until all of them are on the screen."""
        end_s = time.monotonic() + _LIMIT_S
        while not all(text in self._seen for text in texts):
            ready, _, _ = select.select([self._screen], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"no {texts} in {self._seen!r}"
            self._seen += _ESCAPES.sub("", os.read(self._screen, 65536).decode(errors="replace"))
        assert "unrecognized" not in self._seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


def shell_environment(scripts: Path, folder: Path) -> dict[str, str]:
    path = f"{scripts}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(folder), "TERM": "xterm", "PS1": "$ "}


@pytest.fixture
def open_shell(scripts: Path, tmp_path: Path) -> Iterator[Callable[[str], Shell]]:
    opened: list[Shell] = []

    def start(name: str) -> Shell:
        opened.append(Shell(name, scripts, tmp_path))
        return opened[-1]

    yield start
    for shell in opened:
        shell.close()


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers, a profile, a cached model and a file."""
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "hub" / "models--some--coder-7b").mkdir(parents=True)
    (tmp_path / "config.toml").write_text('[profiles.tuned]\nmodel = "some/coder-7b"\n')
    (tmp_path / "server.log").write_text("")
    me = psutil.Process()
    record = ServerRecord(
        name="zeta", pid=me.pid, create_time=me.create_time(), supervisor_pid=me.pid,
        identity=process_identity(me.pid), supervisor_identity=process_identity(me.pid),
        url="http://127.0.0.1:8123", model="smol", engine="stoker", log_path="", state="busy",
    )  # fmt: skip
    open_registry().add(record)
    open_registry().add(replace(record, name="zulu", pid=0, state=ServerState.FAILED))


# What is typed before the key, what is then on the screen, and what beside it in fish and zsh.
CASES = {
    "a command": ("stoker sta", "stoker status", ""),
    "commands": ("stoker s", "selftest", "Try starts and stops on this machine"),
    "commands below": ("stoker models ", "pull", "Get a model"),
    "an option": ("stoker serve --max-model-l", "--max-model-len", ""),
    "options": ("stoker top --re", "--replay", "Show a recording instead"),
    "an option after another's value": ("stoker serve --port 9000 --no-t", "--no-tui", ""),
    "a theme": ("stoker top --theme d", "--theme dark", ""),
    "a dtype": ("stoker serve --dtype b", "--dtype bfloat16", ""),
    "an engine": ("stoker serve --engine l", "--engine llama.cpp", ""),
    "kernels": ("stoker serve --kernels n", "--kernels native", ""),
    "a quantization": ("stoker serve --quantization int8", "int8", ""),
    "a value behind =": ("stoker chat --theme=l", "--theme=light", ""),
    "servers": ("stoker stop z", "zulu", "busy, smol at http://127.0.0.1:8123"),
    "a server to watch": ("stoker top zet", "stoker top zeta", ""),
    "a server's log": ("stoker logs zul", "stoker logs zulu", ""),
    "a file's log": ("stoker logs serv", "stoker logs server.log", ""),
    "a server as a value": ("stoker bench --vs zet", "--vs zeta", ""),
    "a model": ("stoker serve some", "stoker serve some/coder-7b", ""),
    "the built-in model": ("stoker plan smol", "stoker plan smollm2-135m", ""),
    "a profile": ("stoker serve @t", "stoker serve @tuned", ""),
    "a card": ("stoker plan --gpu h20", "h200", ""),
    "a shell": ("stoker completion f", "stoker completion fish", ""),
}


@pytest.mark.parametrize("shell", [shell_param("bash"), shell_param("zsh")])
def test_a_key_press_completes(shell: str, open_shell: Callable[[str], Shell]) -> None:
    terminal = open_shell(shell)
    for typed, shown, meaning in CASES.values():
        terminal.type(f"{typed}\t")
        terminal.wait_for(shown, *([meaning] if shell == "zsh" else []))
        terminal.type("\x15\x0becho next''line\n")
        terminal.wait_for("nextline")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not here")
def test_fish_completes(name: str, scripts: Path, tmp_path: Path) -> None:
    typed, shown, meaning = CASES[name]
    code = f"source {scripts / 'fish'}; complete -C '{typed}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code],
        capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60,
        env=shell_environment(scripts, tmp_path),
    )  # fmt: skip
    assert shown.split()[-1] in done.stdout
    assert meaning in done.stdout
    assert done.stderr == ""


def test_another_shell_is_refused() -> None:
    assert run(["completion", "tcsh"]) == 2


@pytest.mark.parametrize("shell", [shell_param("bash"), shell_param("zsh")])
def test_a_name_runs_no_code(
    shell: str, open_shell: Callable[[str], Shell], tmp_path: Path
) -> None:
    (tmp_path / "hub" / "models--evil--`touch made`$(touch made)").mkdir()
    terminal = open_shell(shell)
    terminal.type("stoker serve evi\t")
    terminal.wait_for("evil/")
    terminal.type("\x15\x0becho next''line\n")
    terminal.wait_for("nextline")
    assert not (tmp_path / "made").exists()


def test_answers_are_the_servers_that_live(capsys: pytest.CaptureFixture[str]) -> None:
    folder = records_dir()
    (folder / "gone.json").write_text(
        json.dumps({"name": "gone", "pid": 0, "supervisor_pid": 0, "state": "ready"})
    )
    (folder / "bad.json").write_text("{")
    (folder / "odd.json").write_text("[]")
    assert run(["__complete", "servers", "nonsense"]) == 0
    assert capsys.readouterr().out == (
        "zeta\tbusy, smol at http://127.0.0.1:8123\nzulu\tfailed, smol at http://127.0.0.1:8123\n"
    )


def test_answers_load_nothing_heavy() -> None:
    modules = loaded_by("from app.cli import main; main(['__complete', 'servers', 'models'])")
    assert third_party(modules) <= {"platformdirs"}
    assert not {name for name in modules if name.startswith(("app.commands", "psutil"))}


def test_the_table_knows_every_command_option_and_choice() -> None:
    table = {place.path: place for place in places()}
    assert {path[0] for path in table if path} == {"help", *(entry.name for entry in COMMANDS)}
    serve = {option.name: option for option in table[("serve",)].options}
    for flag in dataclasses.fields(EngineArgs):
        option = serve["--" + flag.name.replace("_", "-")]
        if choices := flag.metadata["choices"]:
            assert option.values is not None
            assert {item.word for item in option.values.items} >= set(choices)
    assert all(option.meaning for place in table.values() for option in place.options)
    status = table[("status",)].words
    assert status == Values(asked=("servers",))
    for command in ("stop", "restart", "attach", "top", "chat", "complete", "trace", "logs"):
        assert "servers" in table[(command,)].words.asked
