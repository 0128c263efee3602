from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import cli
from app.errors import ExitCode, StokerError
from app.settings.options import leaf_commands
from tests.places import ROOT
from tests.stoker_command import PROGRAM, run_stoker

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def stoker(tmp_path: Path) -> Run:
    """Run the command in a process of its own, with folders of its own."""
    variables = {
        "STOKER_CACHE_DIR": str(tmp_path / "cache"),
        "STOKER_STATE_DIR": str(tmp_path / "state"),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
    }
    return partial(run_stoker, variables=variables)


def test_version(stoker: Run) -> None:
    done = stoker("--version")

    assert (done.returncode, done.stdout, done.stderr) == (0, "stoker 0.1.0\n", "")


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",), ("help",)])
def test_help_shows_examples_then_every_command(args: tuple[str, ...], stoker: Run) -> None:
    done = stoker(*args)

    assert done.returncode == 0
    assert done.stdout.index("Examples:") < done.stdout.index("  serve ")
    for entry in cli.COMMANDS:
        assert f"  {entry.name:<10}  {entry.summary}" in done.stdout


@pytest.mark.parametrize("name", [entry.name for entry in cli.COMMANDS])
def test_every_command_has_help(name: str, stoker: Run) -> None:
    done = stoker(name, "--help")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: stoker {name}")
    assert done.stderr == ""
    assert stoker("help", name).stdout == done.stdout


@pytest.mark.parametrize("name", [entry.name for entry in cli.COMMANDS])
def test_help_speaks_words(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No `<list[str]>`, no `x>=1.0`: what a value is, and between which limits, in words."""
    entry = next(entry for entry in cli.COMMANDS if entry.name == name)
    for path, _leaf in leaf_commands(cli.load_command(entry), (name,)):
        assert cli.run([*path, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert not re.search(r"<(list|str|int|float|path)|\bx[<>]=?|=x\b", shown)


def test_limits_in_help_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "ended. [default: 600; at least 1]" in shown
    assert "/metrics. [1 to 65535]" in shown
    assert "--api-key-file FILE" in shown
    cli.run(["top", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--interval NUMBER Seconds between two samples. [default: 1; 0.1 to 60]" in shown
    assert "[SERVER]... " in shown


def test_a_near_command_is_suggested(stoker: Run) -> None:
    done = stoker("sevre")

    assert done.returncode == ExitCode.USAGE
    assert done.stderr == "error: no such command: sevre\nhint: did you mean `stoker serve`?\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("list", "`stoker models list`"),
        ("pull", "`stoker models pull NAME`"),
        ("rm", "`stoker models rm NAME`"),
        ("show", "`stoker models show NAME`"),
        ("run", "`stoker serve MODEL`"),
        ("kill", "`stoker stop NAME`"),
        ("stpo", "`stoker --help` lists the commands"),
    ],
)
def test_the_words_of_other_tools_are_known(
    word: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([word]) == ExitCode.USAGE
    assert shown in capsys.readouterr().err


@given(st.text("aeioklnprstu", min_size=1, max_size=8))
def test_nobody_is_led_to_what_ends_a_server(word: str) -> None:
    hint = cli._command_hint(word)
    assert not re.search(r"did you mean .*\b(stop|restart)\b", hint)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("doctor", "--jsn"), "error: no such option: --jsn"),
        (("doctor", "extra"), "error: got unexpected extra argument"),
        (("models", "lst"), "error: no such command 'lst'"),
        (("--frob",), "error: no such option: --frob"),
        (("--color", "pink", "doctor"), "error: --color 'pink' is not known"),
        (("serve", "--startup-timeout", "soon"), "error: invalid value for '--startup-timeout'"),
        (("serve", "--engine", "vlm"), "error: no such engine: vlm"),
        (("serve", "--max-modl-len", "4"), "error: no such flag: --max-modl-len"),
        (("serve", "./missing"), "error: no such model folder or file: ./missing"),
    ],
)
def test_usage_errors_are_two_lines_and_code_2(
    args: tuple[str, ...], message: str, stoker: Run
) -> None:
    done = stoker(*args)

    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) <= 2
    assert done.stdout == ""


def test_a_busy_port_is_found_before_anything_is_made(stoker: Run, tmp_path: Path) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = stoker("serve", "--port", str(port))

    assert done.returncode == ExitCode.ENGINE_FAILED_TO_START
    assert done.stderr.startswith(f"error: port {port} is in use by ")
    assert f"--port {port + 1}" in done.stderr
    assert not (tmp_path / "cache" / "models").exists()


def test_a_key_file_that_cannot_be_read(stoker: Run) -> None:
    done = stoker("serve", "--api-key-file", "/no/such/file")

    assert done.returncode == ExitCode.USAGE
    assert "/no/such/file" in done.stderr


def test_models_of_an_empty_cache(stoker: Run) -> None:
    listed = stoker("models", "list", "--plain")
    removed = stoker("models", "rm", "smollm2-135m", "--yes")
    shown = stoker("models", "show", "smollm2-135m")

    assert listed.stdout == "smollm2-135m\tnot downloaded\t-\tbuilt-in\t-\n"
    assert (removed.returncode, shown.returncode) == (1, 1)
    assert "nothing to delete" in removed.stderr
    assert "stoker models pull smollm2-135m" in shown.stderr


def test_deleting_asks_for_a_yes_where_nobody_can_answer(stoker: Run, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models" / "mine"
    folder.mkdir(parents=True)

    refused = stoker("models", "rm", "mine")
    assert refused.returncode == ExitCode.USAGE
    assert folder.is_dir()
    assert stoker("models", "rm", "mine", "--yes").returncode == 0
    assert not folder.exists()


@pytest.mark.parametrize("words", ["--help", "doctor --only wheel"])  # plain text, rich's tables
def test_a_closed_pipe_is_no_error(words: str) -> None:
    command = [*PROGRAM, *words.split()]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=60)

    assert done.stderr == b""
    assert done.returncode == 0


def test_the_funnel(capfd: pytest.CaptureFixture[str]) -> None:
    def refuse() -> int:
        raise StokerError("it is closed", hint="knock", exit_code=ExitCode.UNREACHABLE)

    def interrupt() -> int:
        raise KeyboardInterrupt

    def break_down() -> int:
        raise ValueError("odd")

    assert cli.exit_code_of(refuse, debug=False) == 4
    assert capfd.readouterr().err == "error: it is closed\nhint: knock\n"
    assert cli.exit_code_of(interrupt, debug=False) == 130
    assert capfd.readouterr().err == ""
    assert cli.exit_code_of(break_down, debug=False) == 1
    assert capfd.readouterr().err == (
        "error: unexpected ValueError: odd\nhint: run again with --debug for the traceback\n"
    )
    assert cli.exit_code_of(break_down, debug=True) == 1
    assert 'raise ValueError("odd")' in capfd.readouterr().err


def test_global_options_stand_anywhere_before_a_double_dash() -> None:
    split = cli._split_global_options(["--debug", "chat", "--color=never", "--", "--debug"])

    assert (split.args, split.debug, split.color) == (("chat", "--", "--debug"), True, "never")


def test_every_exit_code_is_explained(stoker: Run) -> None:
    shown = stoker("help", "exit-codes").stdout
    explained = {int(code) for code in re.findall(r"\b\d+\b(?=.*  )", shown)}

    assert explained == {int(code) for code in ExitCode}
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for line in shown.splitlines():
        assert f"| {line.strip().split('  ')[0]} |" in page


def test_a_file_that_fails_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/state/x")

    assert cli.exit_code_of(fail, debug=False) == ExitCode.NO
    error = capsys.readouterr().err
    assert error.startswith(
        "error: cannot use /state/x: No space left on device\nhint: STOKER_STATE"
    )


def test_a_working_folder_that_was_deleted_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); "
    code += "from app.cli import main; main(['paths'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == ExitCode.NO
    assert "error: the working folder was deleted\nhint: cd into" in done.stderr
