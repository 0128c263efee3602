"""Each page says first what it is for, and names files that are there."""

from __future__ import annotations

import re

import pytest

from tests.places import ROOT

PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
)
_OURS = re.compile(r"`((?:app|engine|tui|logparse|tests|docs)/[\w./]+)")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_what_its_reader_can_do_after_it(page: str) -> None:
    title, blank, first = (ROOT / page).read_text().splitlines()[:3]

    assert title.startswith("# ")
    assert blank == ""
    assert first.startswith("After this page you ")


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_are_there(page: str) -> None:
    if page == "docs/startup-log.md":
        pytest.skip("its paths are those of the servers' sources")
    named = {path.rstrip("/.") for path in _OURS.findall((ROOT / page).read_text())}

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
