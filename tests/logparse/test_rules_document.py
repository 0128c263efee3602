"""docs/startup-log.md is what the tables say."""

from __future__ import annotations

from logparse.problems.table import PROBLEM_RULES
from logparse.problems.warnings import WARNING_RULES
from logparse.rules.table import ALL_RULES
from logparse.rules_document import rules_document
from tests.places import ROOT

DOCUMENT = ROOT / "docs" / "startup-log.md"
MADE_ANEW = ".venv/bin/python -m logparse.rules_document > docs/startup-log.md"


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == rules_document(), f"type: {MADE_ANEW}"


def test_it_holds_each_entry_of_the_tables() -> None:
    text = rules_document()
    for rule in ALL_RULES:
        assert f"| {rule.id} |" in text
        assert rule.meaning in text.replace("\\|", "|")
    ids = {rule.id for rule in PROBLEM_RULES} | {rule.id for rule in WARNING_RULES}
    assert all(f"| {entry} |" in text for entry in ids)


def test_warnings_are_unique_and_can_be_acted_on() -> None:
    assert len({rule.id for rule in WARNING_RULES}) == len(WARNING_RULES)
    for rule in WARNING_RULES:
        assert 1 <= rule.rank <= 4
        assert rule.fixes
        assert rule.why.endswith((".", ","))
