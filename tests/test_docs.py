"""Each page says first what it is for and names files that are there; the map shows every room."""

from __future__ import annotations

import re

import pytest

from tests.import_contracts import contracts
from tests.places import PAGES, ROOT

_OURS = re.compile(r"`((?:app|engine|tui|logparse|tests|docs)/[\w./-]+)")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_what_its_reader_can_do_after_it(page: str) -> None:
    title, blank, first = (ROOT / page).read_text().splitlines()[:3]

    assert title.startswith("# ")
    assert blank == ""
    assert first.startswith("After this page you ")


# The paths in docs/startup-log.md are those of the servers' sources.
@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/startup-log.md"])
def test_the_files_that_a_page_names_are_there(page: str) -> None:
    named = {path.rstrip("/.") for path in _OURS.findall((ROOT / page).read_text())}

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / page).read_text())

    assert [name for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []


# ---- docs/architecture.md ------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
_NAME = re.compile(r"`([\w./]+(?:\.py|/))`")
_ROOMS = re.compile(r"^\| (`[^|]+) \|", re.MULTILINE)


def section(title: str) -> str:
    """The text below a heading of the second order, up to the next one."""
    return ARCHITECTURE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_each_room_of_the_tool_is_in_the_table_of_rooms() -> None:
    cells = " ".join(_ROOMS.findall(section("The rooms")))
    (layered,) = [one for one in contracts() if one.get("containers") == ["app"]]

    rooms = {name.strip("() ") for layer in layered["layers"] for name in layer.split("|")}
    assert {name.removesuffix(".py").rstrip("/") for name in _NAME.findall(cells)} == rooms


@pytest.mark.parametrize("number", range(1, 6))
def test_each_task_of_a_newcomer_names_one_room_that_is_there(number: int) -> None:
    (task,) = re.findall(rf"^{number}\. (.+)$", section("Where to change what"), re.MULTILINE)

    (room,) = [name for name in _NAME.findall(task) if name.endswith("/")]
    assert (ROOT / room).is_dir()


# "The rooms" names them below their package.
@pytest.mark.parametrize(
    "title", sorted({*re.findall(r"^## (.+)$", ARCHITECTURE, re.MULTILINE)} - {"The rooms"})
)
def test_a_file_without_a_folder_lies_in_the_folder_named_before_it(title: str) -> None:
    lost = []
    for passage in re.split(r"\n(?:\n|(?=[|-] ?)|(?=\d\.))", section(title)):
        folder = ROOT
        for name in _NAME.findall(passage):
            path = next((p for p in (folder / name, ROOT / name) if p.exists()), None)
            if path is None:
                lost.append(name)
            else:
                folder = path if path.is_dir() else path.parent
    assert lost == []
