"""What a check says, the families of checks, and the report. Each check only looks at facts."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.client.terminal_text import one_line
from app.errors import UsageError

if TYPE_CHECKING:
    from app.doctor.facts import DoctorFacts

_LEFT_OUT = "a command is left out: a name in it holds control characters"

FAMILIES = ("wheel", "environment", "platform", "gpu", "host", "access", "leftovers")


class Result(enum.Enum):
    """How a check came out. Only PROBLEM makes `stoker doctor` end with exit code 1."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report: what was seen, what to do about it and the commands to type.

    `commands` can be run as they are and make up the script of `--fix`; `examples` hold something
    that only the reader knows (MODEL, a container's name). Names of processes, files and packages
    get in here from anywhere: all texts are made one printable line each, and a command with a
    control character in it is left out.
    """

    id: str
    title: str
    result: Result
    seen: str
    todo: str | None = None
    commands: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        is_bad = self.result in (Result.WARNING, Result.PROBLEM)
        has_advice = self.todo or self.commands or self.examples
        assert has_advice or not is_bad, f"{self.id}: nothing to do is named"
        safe = tuple(command for command in self.commands if command.isprintable())
        if len(safe) < len(self.commands):
            todo = "; ".join(filter(None, (self.todo, _LEFT_OUT)))
            object.__setattr__(self, "todo", todo)
            object.__setattr__(self, "commands", safe)
        for name in ("title", "seen", "todo"):
            text = getattr(self, name)
            object.__setattr__(self, name, text and one_line(text))
        for name in ("details", "examples"):
            object.__setattr__(self, name, tuple(map(one_line, getattr(self, name))))


def chosen_families(only: str | None) -> tuple[str, ...]:
    """The families of `--only wheel,gpu`, in the order of the report."""
    if only is None:
        return FAMILIES
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in FAMILIES]
    if unknown or not names:
        raise UsageError(
            f"no such family of checks: {', '.join(unknown) or repr(only)}",
            hint=f"--only takes some of: {','.join(FAMILIES)}",
        )
    return tuple(name for name in FAMILIES if name in names)


def check_facts(facts: DoctorFacts, families: Sequence[str] = FAMILIES) -> tuple[Check, ...]:
    """Every check of the families on these facts, in the order of the report."""
    return tuple(check for family in families for check in _family(family)(facts))


def worst_result(checks: Sequence[Check]) -> Result:
    """PROBLEM before WARNING before OK; skipped checks do not count."""
    results = {check.result for check in checks}
    for result in (Result.PROBLEM, Result.WARNING):
        if result in results:
            return result
    return Result.OK


def verdict(checks: Sequence[Check]) -> str:
    """The answer in one line: how many checks are bad, and which."""
    counted = []
    for result in (Result.PROBLEM, Result.WARNING):
        titles = [check.title for check in checks if check.result is result]
        if titles:
            kind = f"{result.value}{'' if len(titles) == 1 else 's'}"
            counted.append(f"{len(titles)} {kind} ({', '.join(dict.fromkeys(titles))})")
    looked_at = sum(check.result is not Result.SKIPPED for check in checks)
    return ", ".join(counted) or f"all of {looked_at} checks are fine"


def as_json(checks: Sequence[Check], host: str | None = None) -> dict[str, Any]:
    """The payload of `stoker doctor --json`."""
    return {
        "host": host,
        "result": worst_result(checks).value,
        "verdict": verdict(checks),
        "checks": [
            {
                "id": check.id,
                "title": check.title,
                "result": check.result.value,
                "seen": check.seen,
                "todo": check.todo,
                "commands": list(check.commands),
                "examples": list(check.examples),
                "details": list(check.details),
            }
            for check in checks
        ],
    }


def fix_lines(checks: Sequence[Check]) -> Iterator[str]:
    """A shell script of the commands of every warning and problem; all else are comments."""
    for check in checks:
        if check.result not in (Result.WARNING, Result.PROBLEM):
            continue
        yield f"# {check.result.value}: {check.title}: {check.seen}"
        yield from (f"# {line}" for line in check.details)  # who a `kill` would end, say
        if check.todo:
            yield f"# {check.todo}"
        yield from (f"# for example: {example}" for example in check.examples)
        yield from check.commands


def command_line(template: str, *words: str) -> str:
    """A shell command in which each `{}` is replaced by one quoted word, whatever it holds."""
    return template.format(*map(shlex.quote, words))


def _family(name: str) -> Callable[[DoctorFacts], Sequence[Check]]:
    import importlib

    checks: Callable[[DoctorFacts], Sequence[Check]] = importlib.import_module(
        f"app.doctor.{name}"
    ).checks
    return checks
