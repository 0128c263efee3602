"""Each rule of the tables by a line written for the test: a new rule needs a line here."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from logparse import LogParser
from logparse.rules.rule import shown_values
from logparse.rules.table import ALL_RULES
from tests.logparse.rules.fact_lines import CASES
from tests.logparse.rules.known_lines import KNOWN


def matching(message: str) -> set[str]:
    return {rule.id for rule in ALL_RULES if message.startswith(rule.starts) and rule.find(message)}


@pytest.mark.parametrize(("ids", "message", "facts"), CASES)
def test_rule(ids: str, message: str, facts: dict[str, Any]) -> None:
    assert set(ids.split()) <= matching(message)
    parser = LogParser()
    parser.feed(f"INFO 10-03 12:00:00 [some.py:1] {message}")
    found = parser.report().facts
    assert {key: getattr(found, key) for key in facts} == facts


@pytest.mark.parametrize(("ids", "message", "values"), KNOWN)
def test_line_that_is_only_explained(ids: str, message: str, values: dict[str, Any]) -> None:
    rules = [rule for rule in ALL_RULES if rule.id in ids.split()]
    assert len(rules) == len(ids.split())
    shown: dict[str, Any] = {}
    for rule in rules:
        assert message.startswith(rule.starts)
        match = rule.find(message)
        assert match is not None
        shown |= shown_values(rule, match)
        assert rule.source
    assert {key: shown[key] for key in values} == {
        key: value.strip() if isinstance(value, str) else value for key, value in values.items()
    }


def test_memory_account_gives_facts() -> None:
    parser = LogParser()
    for message in (case[1] for case in KNOWN if case[0].startswith(("memory-", "block", "check"))):
        parser.feed(f"INFO 10-03 12:00:00 [some.py:1] {message}")
    facts = parser.report().facts
    assert (facts.gpu_total_gib, facts.gpu_memory_utilization) == (23.64, 0.92)
    assert (facts.peak_activation_gib, facts.non_torch_gib) == (1.25, 0.1)
    assert (facts.block_size, facts.checkpoint_gib) == (528, 15.26)


def test_every_rule_has_a_line_here() -> None:
    covered = {rule_id for ids, _, _ in [*CASES, *KNOWN] for rule_id in ids.split()}
    assert {rule.id for rule in ALL_RULES} == covered


def test_ids_are_unique_and_phases_are_one_of_five() -> None:
    assert [rule_id for rule_id, n in Counter(rule.id for rule in ALL_RULES).items() if n > 1] == []
    assert {rule.belongs_to for rule in ALL_RULES} <= {None, 1, 2, 3, 4, 5}
    assert all(rule.meaning.endswith((".", ")")) for rule in ALL_RULES)
