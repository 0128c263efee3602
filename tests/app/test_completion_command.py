from __future__ import annotations

import shutil
import subprocess

import pytest

from app.cli import COMMANDS, run

ASK = """
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_stoker
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="it is bash's script")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("stoker sto", "stop"),
        ("stoker serve", "serve"),
        ("stoker models ''", "list pull rm show --help"),
        ("stoker models list --j", "--json"),
        ("stoker serve --max-model", "--max-model-len"),
        ("stoker serve --port 9000 --no-t", "--no-tui"),
        ("stoker ps something", ""),
    ],
)
def test_bash_completes(words: str, found: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "bash"]) == 0
    script = capsys.readouterr().out + ASK.format(words=words)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)

    assert (done.stdout.strip(), done.stderr) == (found, "")


def test_the_other_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "zsh"]) == 0
    assert "bashcompinit" in capsys.readouterr().out
    assert run(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for entry in COMMANDS:
        assert f"complete -c stoker -n __fish_use_subcommand -a {entry.name}" in lines
    assert run(["completion", "tcsh"]) == 2
