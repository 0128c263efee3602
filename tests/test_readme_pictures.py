"""The README's pictures are there, described, small, and what the program shows today."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.readme_pictures import FOLDER, PICTURES, svg_of
from tests.tui.conftest import pilot_that_waits

__all__ = ["pilot_that_waits"]

_LINK = re.compile(r"!\[([^\]]*)\]\(([^)]+\.svg)\)")
_CELLS = re.compile(r"<text [^>]*>(.*?)</text>", re.S)
_LARGEST_BYTES = 120_000


def cells(svg: str) -> str:
    """What is drawn, line by line; colours and fonts are another version's to change."""
    lines = "".join(_CELLS.findall(svg)).splitlines()
    return "\n".join("".join(html.unescape(line).split()) for line in lines)


def stored(name: str) -> str:
    return (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICTURES)
async def test_a_picture_shows_what_the_program_shows(name: str) -> None:
    wanted = cells(stored(name))
    found = await svg_of(name, lambda svg: cells(svg) == wanted)
    assert cells(found) == wanted, "run: python -m tests.readme_pictures"
    assert len(cells(found).split()) > 5


def test_the_readme_has_each_picture_once_and_says_what_is_on_it() -> None:
    links = _LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert sorted(path for _, path in links) == sorted(f"docs/pictures/{n}.svg" for n in PICTURES)
    assert all(len(alt) > 20 for alt, _ in links)


def test_pictures_are_small_and_load_nothing() -> None:
    paths = sorted(FOLDER.iterdir())
    assert [path.stem for path in paths] == sorted(PICTURES)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert path.stat().st_size < _LARGEST_BYTES
        assert not re.search(r"url\(['\"]?http|<image|<script|href=", text)
        assert not re.search(r"/(home|root|tmp|work)\b", text)
        assert str(Path.home()) not in text
