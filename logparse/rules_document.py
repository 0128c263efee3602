"""The rule tables as a document: `python -m logparse.rules_document > docs/startup-log.md`.

Owns the layout only; all that it prints is in the tables.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from logparse.problems.problem import ProblemRule
from logparse.problems.request_errors import REQUEST_ERRORS
from logparse.problems.table import LAST_RESORTS, PROBLEM_RULES
from logparse.problems.warnings import WARNING_RULES, WarningRule
from logparse.report.phases import PHASE_NAMES
from logparse.rules.rule import Rule, Unit
from logparse.rules.table import ALL_RULES

_HEAD = """\
# What `stoker logs` knows of a start-up log

After this page you know which lines of a server are understood, what each means, and which failures
have a name.

Made from the tables in `logparse/`; do not edit it here, but type
`.venv/bin/python -m logparse.rules_document > docs/startup-log.md`. A new line of a server is one
entry in a table and one test line.

`stoker logs --explain-line 'TEXT'` says what any one line means; `stoker logs --rules` lists these
tables.
"""
_ENGINES = {"vllm": "vLLM", "stoker": "Stoker", "sglang": "SGLang", "": "several"}
_TEXT_UNITS = {Unit.TEXT: "", Unit.FLAG: "yes or no", Unit.COUNT: "", Unit.NUMBER: ""}


def rules_document() -> str:
    parts = [_HEAD]
    for number, name in enumerate(PHASE_NAMES, start=1):
        parts.append(_section(f"Phase {number}: {name}", _of_phase(number)))
    parts.append(_section("At any time, while serving, and at the end", _of_phase(None)))
    parts.append(_warnings("Warnings that matter", WARNING_RULES))
    parts.append(_warnings("Requests that were refused or lost", REQUEST_ERRORS))
    parts.append(_causes())
    return "\n".join(parts)


def shape(rule: Rule) -> str:
    """How the line begins; the whole pattern where it begins with anything."""
    if not rule.starts[0]:
        return rule.pattern.removeprefix("(?:)")
    return rule.starts[0].strip() + ("" if rule.starts[0].endswith((".", "]")) else " ...")


def values(rule: Rule) -> str:
    """The values that the rule takes out, with their units."""
    names = {take.key: _TEXT_UNITS.get(take.unit, take.unit.value) for take in
             (*rule.takes, *rule.shows)}  # fmt: skip
    return ", ".join(f"{name} ({unit})" if unit else name for name, unit in names.items())


def _of_phase(number: int | None) -> list[Rule]:
    return [rule for rule in ALL_RULES if rule.belongs_to == number]


def _section(title: str, rules: list[Rule]) -> str:
    rows = [
        (rule.id, _ENGINES.get(rule.engine, rule.engine), _code(shape(rule)), values(rule),
         rule.meaning, rule.source, rule.versions)
        for rule in rules
    ]  # fmt: skip
    head = ("id", "engine", "line", "values", "meaning", "source", "versions")
    return f"## {title}\n\n{_table(head, rows)}"


def _warnings(title: str, rules: tuple[WarningRule, ...]) -> str:
    rows = [
        (rule.id, str(rule.rank), _code(rule.clues[0]), rule.why, _first_command(rule))
        for rule in sorted(rules, key=lambda rule: rule.rank)
    ]
    head = ("id", "rank", "holds", "why it matters", "what to do")
    return f"## {title}\n\n{_table(head, rows)}"


def _first_command(rule: WarningRule) -> str:
    text, command = rule.fixes[0]
    return f"{text}: {_code(command)}" if command else text


def _causes() -> str:
    rows = [(rule.id, _cause_title(rule), rule.why) for rule in _sorted_causes()]
    return f"## Causes of failure\n\n{_table(('id', 'cause', 'why'), rows)}"


def _sorted_causes() -> list[ProblemRule]:
    return sorted((*PROBLEM_RULES, *LAST_RESORTS), key=lambda rule: (rule.id[0], int(rule.id[1:])))


def _cause_title(rule: ProblemRule) -> str:
    return rule.titles[0].replace("{", "<").replace("}", ">")


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(rules_document())
