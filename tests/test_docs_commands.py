"""Commands and flags that a page shows are there: what is typed from a page is taken."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli import COMMANDS, GLOBAL_OPTIONS, load_command, run
from tests.engine_flags import own_flags
from tests.places import PAGES, ROOT

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n|]+)?)`")
_FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_CALL = re.compile(r"(?:^|[|;&] ?|/|= ?)stoker (.+)", re.DOTALL)
_WITH_ENGINE_FLAGS = ("serve", "unit", "plan", "choose")
# Sections of docs/cli.md whose tables tell the options of a command.
_TABLES = {
    "Servers": "serve",
    "Engine flags beyond the usual": "serve",
    "Units": "unit",
    "Logs": "logs",
    "Doctor": "doctor",
    "Plan": "plan",
    "Bench": "bench",
    "Batch": "batch",
    "Dashboard": "top",
    "Chat": "chat",
}


@functools.cache
def flags_of(name: str) -> frozenset[str]:
    """Of a command and of those below it; with the engine's where it hands them on."""
    found = {"--help", *_FLAG.findall(" ".join(option for option, _ in GLOBAL_OPTIONS))}
    (entry,) = [entry for entry in COMMANDS if entry.name == name]
    commands: list[Any] = [load_command(entry)]
    while commands:
        command = commands.pop()
        found.update(word for one in command.params for word in (*one.opts, *one.secondary_opts))
        commands += getattr(command, "commands", {}).values()
    if name in _WITH_ENGINE_FLAGS:
        found |= own_flags()
    return frozenset(found | flags_of("serve")) if name == "unit" else frozenset(found)


def calls(text: str) -> Iterator[str]:
    """What stands behind `stoker` in the blocks and in the quoted words of a page."""
    for block in _FENCED.findall(text):
        for line in block[1].replace("\\\n", " ").splitlines():
            yield from _CALL.findall(re.sub(r"^\$ |\s#.*", "", line))
    for quoted in _INLINE.findall(_FENCED.sub("", text)):
        yield from _CALL.findall(" ".join(quoted.split()))


@pytest.mark.parametrize("page", PAGES)
def test_each_command_of_a_page_is_there_with_its_flags(page: str) -> None:
    names = {entry.name for entry in COMMANDS}
    wrong = []
    for call in calls((ROOT / page).read_text()):
        name = re.split(r"[ |,\\]", call)[0]
        ours = call.split(" -- ")[0]
        if name in names:
            wrong += [
                f"{name} {flag}" for flag in _FLAG.findall(ours) if flag not in flags_of(name)
            ]
        elif re.fullmatch(r"[a-z]+", name) and name != "help":
            wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize("title", _TABLES)
def test_the_tables_of_options_tell_those_that_there_are(title: str) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    cells = re.findall(
        r"^\| (`-.*?) \|(?! *\d)", page.split(f"\n## {title}\n")[1].split("\n## ")[0], re.M
    )

    told = {flag for cell in cells for flag in _FLAG.findall(cell)}
    assert told
    assert told - flags_of(_TABLES[title]) == set()


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_the_table_of_commands_has_each_of_them(page: str) -> None:
    text = (ROOT / page).read_text()
    rows = " ".join(re.findall(r"^\| (`stoker .*) \|$", text, re.M))
    told = set(re.findall(r"`(?:stoker )?([a-z]+)", rows.replace("\\|", "|")))

    assert {entry.name for entry in COMMANDS} - told == set()


def test_the_table_of_files_has_each_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "cli.md").read_text().split("\n## Files\n")[1].split("\n## ")[0]
    assert run(["paths", "--json"]) == 0

    places = [place["path"] for place in json.loads(capsys.readouterr().out)["paths"]]
    assert [path for path in places if f"/{Path(path).name}`" not in page] == []
