"""How `stoker logs` prints: reports, comparisons, listed lines, rules, events as they come."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from app.output import json_text, print_json, print_plain, printable
from logparse import (
    Event,
    FactFound,
    LogReport,
    PhaseFinished,
    ProblemFound,
    ProgressMade,
    ServerReady,
    ServerStopped,
    StartRepeated,
    explain,
    to_document,
)
from logparse.redact import shortened, shortened_front
from logparse.report.document import SCHEMA, SCHEMA_VERSION

if TYPE_CHECKING:
    from logparse.report.compare import ComparedRow
    from logparse.report.line_meaning import ExplainedLine, ListedLine
    from logparse.rules.rule import Rule

# Facts that are told as they come, with the words of the explanation.
_TOLD_FACTS = {
    "engine_version": "version",
    "model": "model",
    "attention_backend": "attention",
    "waits_for_pid": "waits for process",
    "weights_gib": "weights, GiB",
    "kv_memory_gib": "KV memory, GiB",
    "kv_tokens": "KV tokens",
    "max_concurrency": "concurrency at max length",
    "compile_s": "compile, s",
    "engine_init_s": "engine init, s",
}
_CELL = 48  # columns of one side of a comparison
_STEPS = 4  # a bar is told when it passes another quarter


def show_text(named: Sequence[tuple[str, LogReport]]) -> None:
    """The explanation of each log, under its name when there are several."""
    for number, (title, report) in enumerate(named):
        if len(named) > 1:
            print(f"{'' if number == 0 else chr(10)}== {printable(title)}")
        print(printable(explain(report).text()), end="")


def show_brief(named: Sequence[tuple[str, LogReport]]) -> None:
    """Three lines for each log."""
    from logparse.report.brief import brief

    for title, report in named:
        if len(named) > 1:
            print(f"== {printable(title)}")
        for line in brief(report):
            print(printable(line))


def show_json(named: Sequence[tuple[str, LogReport]]) -> None:
    """One document: the log's keys, or with several logs a list of them."""
    documents = [to_document(report) for _, report in named]
    if len(documents) == 1:
        payload = documents[0]
    else:
        payload = {"logs": [{"file": t, **d} for (t, _), d in zip(named, documents, strict=True)]}
    print_json(SCHEMA, payload, schema_version=SCHEMA_VERSION)


def show_plain(named: Sequence[tuple[str, LogReport]]) -> None:
    """Key, tab, value; with several logs the file stands in front."""
    for title, report in named:
        rows: Iterator[tuple[object, ...]] = iter(flat_rows("", to_document(report)))
        print_plain(rows if len(named) == 1 else ((title, *row) for row in rows))


def flat_rows(key: str, value: Any) -> Iterator[tuple[str, object]]:
    """Flat rows: numbers of ranks on one line, records as key.1.field."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flat_rows(f"{key}.{name}" if key else name, inner)
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for number, part in enumerate(value, start=1):
            yield from flat_rows(f"{key}.{number}", part)
    elif isinstance(value, list):
        yield key, ",".join(str(part) for part in value) or None
    else:
        yield key, value


def show_lines(
    head: dict[str, Any], lines: Sequence[ListedLine], *, form: str, heading: str, none: str
) -> None:
    """Listed lines with their numbers; `head` goes into the document in front of them."""
    if form == "json":
        payload = {**head, "lines": [dataclasses.asdict(line) for line in lines]}
        print_json(f"{SCHEMA}.lines", payload)
    elif form == "plain":
        print_plain((ln.number, ln.count, ln.process, ln.kind, ln.text) for ln in lines)
    else:
        print(printable(heading))
        for line in lines:
            where = f"line {line.number}" + (f" ({line.process})" if line.process else "")
            print(printable(f"  {where}, {line.kind}{_times(line.count)}:\n    {line.text}"))
        if not lines:
            print(f"  {none}")


def _times(count: int) -> str:
    return f", {count} times" if count > 1 else ""


def show_comparison(titles: tuple[str, str], rows: Sequence[ComparedRow], *, form: str) -> None:
    """Both sides, and the change where both are numbers."""
    if form == "json":
        document = {
            "left": titles[0],
            "right": titles[1],
            "rows": [{**dataclasses.asdict(row), "differs": row.differs} for row in rows],
        }
        print_json(f"{SCHEMA}.comparison", document)
    elif form == "plain":
        print_plain(
            (row.group, row.name, _cell(row.left), _cell(row.right), row.change) for row in rows
        )
    else:
        for line in comparison_lines(titles, rows):
            print(printable(line))


def comparison_lines(titles: tuple[str, str], rows: Sequence[ComparedRow]) -> Iterator[str]:
    """A table by groups; a star marks rows that differ."""
    heads = [shortened_front(title, _CELL) for title in titles]
    cells = [
        (row.name, shortened(_cell(row.left), _CELL), shortened(_cell(row.right), _CELL))
        for row in rows
    ]
    cells.append(("", heads[0], heads[1]))
    names, lefts, rights = (max(len(cell[i]) for cell in cells) for i in range(3))
    yield f"    {'':<{names}}  {heads[0]:<{lefts}}  {heads[1]}"
    group = ""
    for row, (name, left, right) in zip(rows, cells, strict=False):
        if row.group != group:
            group = row.group
            yield group
        change = f"  {row.change:+.0%}" if row.change else ""
        mark = "*" if row.differs else " "
        yield f"  {mark} {name:<{names}}  {left:<{lefts}}  {right:<{rights}}{change}".rstrip()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return " / ".join(str(part) for part in value)
    return str(value)


def show_line(line: ExplainedLine, *, form: str) -> None:
    """One line of a log: its parts and its meaning."""
    if form == "json":
        print_json(f"{SCHEMA}.line", dataclasses.asdict(line))
        return
    rows = list(_line_rows(line))
    if form == "plain":
        print_plain(rows)
        return
    for name, value in rows:
        print(printable(f"{name:<10}{value}"))
    if not line.meanings:
        print("No rule knows this line; `stoker logs --rules` lists them.")


def _line_rows(line: ExplainedLine) -> Iterator[tuple[str, object]]:
    parts = (("process", line.process), ("pid", line.pid), ("level", line.level),
             ("time", line.stamp), ("message", line.message))  # fmt: skip
    yield from ((name, value) for name, value in parts if value is not None)
    for meaning in line.meanings:
        yield "meaning", f"{meaning.meaning} [{meaning.rule_id}]"
        where = (("engine", meaning.engine), ("source", meaning.source),
                 ("versions", meaning.versions), ("phase", meaning.phase))  # fmt: skip
        yield from ((name, value) for name, value in where if value)
        yield from ((name, value) for name, value in meaning.values.items())


def show_rules(rules: Sequence[Rule], *, form: str) -> None:
    from logparse.report.line_meaning import phase_of

    records = [
        {
            "id": rule.id,
            "engine": rule.engine or None,
            "versions": rule.versions or None,
            "phase": phase_of(rule),
            "starts": list(rule.starts),
            "pattern": rule.pattern,
            "takes": [{"key": take.key, "unit": take.unit.value} for take in rule.takes],
            "source": rule.source or None,
            "meaning": rule.meaning,
        }
        for rule in rules
    ]
    if form == "json":
        print_json(f"{SCHEMA}.rules", {"rules": records})
    elif form == "plain":
        print_plain((r["id"], r["engine"], r["phase"], r["source"], r["meaning"]) for r in records)
    else:
        for record in records:
            place = ", ".join(str(record[k]) for k in ("engine", "phase", "source") if record[k])
            print(printable(f"{record['id']}  ({place})\n    {record['meaning']}"))


class EventPrinter:
    """Tells what a followed log says, a line for each thing that is new."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._told: dict[str, object] = {}

    def show(self, events: tuple[Event, ...]) -> None:
        """Events of one line of the log."""
        for event in events:
            if self._as_json:
                print(json_text(event_document(event)), flush=True)
            elif (text := self._text(event)) is not None:
                print(printable(text), flush=True)

    def finish(self, report: LogReport) -> None:
        """The whole explanation at the end, or where a person stops it."""
        if self._as_json:
            document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "event": "report"}
            print(json_text({**document, **to_document(report)}), flush=True)
        else:
            print(printable("\n" + explain(report).text()), end="", flush=True)

    def _text(self, event: Event) -> str | None:
        if isinstance(event, PhaseFinished):
            time = f"{event.seconds:g} s" if event.seconds is not None else "done"
            return f"{event.name:<34}{time}"
        if isinstance(event, ProgressMade):
            return self._progress(event)
        if isinstance(event, FactFound):
            return self._fact(event)
        if isinstance(event, ProblemFound):
            problem = event.problem
            return f"problem: {problem.title}\n  line {event.line_number}: {problem.key_line}"
        if isinstance(event, ServerReady):
            return f"ready at {event.url}" if event.url else "ready"
        if isinstance(event, StartRepeated):
            self._told.clear()
            return f"another start begins in line {event.line_number}"
        return "stopped" if isinstance(event, ServerStopped) else None

    def _progress(self, event: ProgressMade) -> str | None:
        step = event.done * _STEPS // event.total if event.total else 0
        if self._told.get(event.text) == step:
            return None
        self._told[event.text] = step
        return f"  {event.text} {event.done}/{event.total}"

    def _fact(self, event: FactFound) -> str | None:
        label = _TOLD_FACTS.get(event.key)
        if label is None or self._told.get(event.key) == event.value:
            return None
        self._told[event.key] = event.value
        return f"  {label:<32}{_cell(event.value)}"


def event_document(event: Event) -> dict[str, Any]:
    """One line of `--follow --json`."""
    name = re.sub(r"(?<!^)([A-Z])", r"_\1", type(event).__name__).lower()
    return {"event": name, **dataclasses.asdict(event)}
