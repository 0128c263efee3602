"""Checks generated files with the tools of those who will read them; a missing tool is named."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.machine.secrets import child_environment

_TIMEOUT_S = 120
_INSTALL = {
    "systemd-analyze": "apt install systemd",
    "bash": "apt install bash",
    "shellcheck": "apt install shellcheck",
    "sbatch": "it comes with Slurm: check on the cluster's login node",
    "kubernetes-validate": "pip install kubernetes-validate",
    "docker": "apt install docker-compose-v2, or Docker's own packages",
}
# The program is there, but not the part of it, or the service, that could check.
_ABSENT = {
    "docker": ("is not a docker command", "unknown command: docker compose", "unknown shorthand"),
    "sbatch": ("Unable to contact slurm controller", "Could not establish a configuration source"),
}
_UNKNOWN_KIND = re.compile(r"Couldn't find schema for kind (\w+)")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one tool said of one file; `is_good` None where the tool is not there."""

    tool: str
    file: str
    is_good: bool | None
    says: str = ""

    @property
    def text(self) -> str:
        """A line for people, and below it what the tool found."""
        if self.is_good is None:
            return f"not checked  {self.file}: {self.tool} {self.says}"
        verdict = "good       " if self.is_good else "fault      "
        found = "" if self.is_good else f"\n{self.says}"
        return f"{verdict}  {self.file}: {self.tool}{found}"


def check_files(folder: Path, names: Sequence[str]) -> list[CheckResult]:
    """Every tool that knows one of the files below `folder`, in the files' order."""
    return [
        result
        for name in names
        for tool, command in _tools_for(name)
        for result in _results(_run(tool, [*command, name], folder, name))
    ]


def _results(result: CheckResult) -> Iterator[CheckResult]:
    """The result, and one more for each kind of object that the tool knows nothing of."""
    yield result
    for kind in _UNKNOWN_KIND.findall(result.says):
        says = f"has no schema for {kind} (kubectl apply --dry-run=server -f {result.file})"
        yield CheckResult(result.tool, result.file, None, says)


def _tools_for(name: str) -> Iterator[tuple[str, list[str]]]:
    """(program, words before the file's name)."""
    if name.endswith(".service"):
        yield "systemd-analyze", ["verify"]
    elif name.endswith((".sbatch", ".sh")):
        yield "bash", ["-n"]
        # SC2016: a `$` in single quotes is one that shall stay.
        yield "shellcheck", ["--shell=bash", "--exclude=SC2016"]
        if name.endswith(".sbatch"):
            yield "sbatch", ["--test-only"]
    elif name == "compose.yaml":
        yield "docker", ["compose", "config", "-q", "-f"]
    elif name.endswith(".yaml"):
        yield "kubernetes-validate", ["--strict"]


def _run(tool: str, words: list[str], folder: Path, name: str) -> CheckResult:
    program = _find(tool)
    if program is None:
        return CheckResult(tool, name, None, f"is not here ({_INSTALL[tool]})")
    if tool == "docker":  # the file stands before the subcommand
        words = ["compose", "-f", name, "config", "-q"]
    try:
        done = subprocess.run(
            [program, *words],
            cwd=folder,
            env=child_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return CheckResult(tool, name, False, f"gave no answer in {_TIMEOUT_S} s")
    says = (done.stdout + done.stderr).strip()
    if any(absence in says for absence in _ABSENT.get(tool, ())):
        return CheckResult(tool, name, None, f"is here, but cannot check ({_INSTALL[tool]})")
    return CheckResult(tool, name, done.returncode == 0, says)


def _find(tool: str) -> str | None:
    """On PATH, or beside our own interpreter."""
    beside = Path(sys.executable).with_name(tool)
    return str(beside) if beside.is_file() else shutil.which(tool)
