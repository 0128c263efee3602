"""Every command line that collected articles give for vLLM, tried with serve, plan and unit."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from app.cli import run
from app.launch.engines import STOKER, VLLM
from engine.machine.ports import free_port
from tests.fakes.programs import program
from tests.places import SHARED

SEEDS = SHARED / "seeds"
_START = re.compile(
    r"^\s*(?:[A-Z_]+=\S+ +)*(?:ExecStart=)?(?:\S*/)?"
    r"(?:vllm serve|vllm bench \w+|python3? -m vllm[\w.]*) +(?=\S+/\S+)"
)
_IMAGE = re.compile(r"vllm/vllm-openai:\S+ +(?=-)")
_EXPLAINED = (
    *("leave it out", "what took its place", "HF_HUB_CACHE=", "stoker models login"),
    "one copy of a model runs on one device",
    "behind `--`",
)


def command_lines(text: str) -> list[list[str]]:
    """The words behind each `vllm serve` or image that stands at the beginning of a command."""
    joined = re.sub(r"\\ *(?:#[^\n]*)?\n", " ", text)
    found = []
    for line in joined.splitlines():
        for start in (_START, _IMAGE):
            for match in start.finditer(line):
                words = shlex.split(line[match.end() :], comments=True)
                if any(word.startswith("--") for word in words) and "--help" not in words:
                    found.append([word for word in words if word != "--model"])
    return found


def seed_commands() -> list[list[str]]:
    texts = [path.read_text() for path in sorted(SEEDS.glob("*.txt"))]
    return [words for text in texts for words in command_lines(text)]


def with_port(words: list[str], port: int) -> list[str]:
    """The same on a port that is free here."""
    kept = [str(port) if before == "--port" else word for before, word in zip(["", *words], words)]  # noqa: B905
    return kept if "--port" in kept else [*kept, "--port", str(port)]


@pytest.fixture
def vllm(tmp_path: Path) -> str:
    """The Python of an environment in which vLLM is."""
    program(tmp_path / "bin" / "vllm")
    return str(program(tmp_path / "bin" / "python"))


@pytest.mark.skipif(not SEEDS.is_dir(), reason="no collected articles beside this checkout")
def test_the_articles_have_commands() -> None:
    commands = seed_commands()
    flags = {word for words in commands for word in words if word.startswith("--")}

    assert len(commands) >= 5
    assert {"--swap-space", "--task", "--trust-remote-code", "--download-dir"} <= flags


@pytest.mark.skipif(not SEEDS.is_dir(), reason="no collected articles beside this checkout")
def test_no_command_of_the_articles_goes_unexplained(
    vllm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is refused is answered flag by flag: the successor, or the reason. The rest works."""
    port = free_port()
    for words in seed_commands():
        model, flags = words[0], with_port(words[1:], port)
        vllms = ["--engine", VLLM, "--engine-python", vllm]
        for command in (
            ["serve", model, *flags, "--dry-run"],
            ["serve", model, *vllms, *flags, "--dry-run"],
            ["plan", "llama-3.1-8b", "--gpu", "24GiB", *flags],
            ["plan", "llama-3.1-8b", "--gpu", "24GiB", "--engine", VLLM, *flags],
            ["plan", "smollm2-135m", "--gpu", "cpu", "--engine", STOKER, *flags],
            ["unit", "systemd", model, *flags],
            ["unit", "kubernetes", model, "--engine", VLLM, *flags],
        ):
            code = run(command)
            told = capsys.readouterr().err
            assert code in (0, 1, 2), (command, told)
            assert "Traceback" not in told
            assert "no such option" not in told
            if code == 2:
                require_explained(command, told)


def require_explained(command: list[str], told: str) -> None:
    first = next(line for line in told.splitlines() if line.startswith("error: "))
    match = re.fullmatch(r"error: no such flags?: (.+)", first)
    assert match is not None, (command, told)
    for flag in match[1].split(", "):
        answers = [line for line in told.splitlines() if line != first]
        if ", " in match[1]:
            answers = [line for line in answers if line.strip().startswith(f"{flag}: ")]
        assert any(word in line for line in answers for word in _EXPLAINED), (command, told)
