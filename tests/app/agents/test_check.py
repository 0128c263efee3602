"""What is said to be wrong with a server, for which agent, and how bad it is."""

from __future__ import annotations

from typing import Any

import pytest

from app.agents.check import NEEDS, problems_of
from app.agents.settings import AGENTS
from app.client.served_model import ServedModel
from tests.app.agents.servers import server


def found(agent: str, **changes: Any) -> list[tuple[str, bool]]:
    values: dict[str, Any] = {"model": ServedModel("m", 131_072), **changes}
    return [(one.text, one.is_fatal) for one in problems_of(NEEDS[agent], server(**values))]


def test_every_agent_has_needs() -> None:
    assert set(NEEDS) == set(AGENTS)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_good_server_has_no_problem(agent: str) -> None:
    assert found(agent) == []


def test_a_missing_route_is_fatal_for_the_agent_that_speaks_it() -> None:
    ((text, is_fatal),) = found("claude", has_messages=False)
    assert "/v1/messages" in text
    assert is_fatal
    assert found("codex", has_messages=False) == []
    assert found("codex", has_responses=False)[0][1]
    assert found("aider", has_responses=False, has_messages=False) == []


def test_tools_matter_to_those_that_call() -> None:
    assert found("opencode", tools_refusal="no parser") == [
        ("the server refuses tools: no parser", True)
    ]
    assert found("continue", tools_refusal="no parser")[0][1] is False
    assert found("llm", tools_refusal="no parser") == []


@pytest.mark.parametrize(
    ("length", "is_fatal"), [(28_095, True), (28_096, False), (56_191, False), (None, False)]
)
def test_a_short_context_is_said(length: int | None, is_fatal: bool) -> None:
    ((_, fatal),) = found("claude", model=ServedModel("m", length))
    assert fatal is is_fatal
    assert found("llm", model=ServedModel("m", length)) == []


def test_the_worst_comes_first() -> None:
    all_of_it = found(
        "claude", caches_prefixes=False, shows_thoughts=True, tools_refusal="no", url="unix:/run/s"
    )
    assert [is_fatal for _, is_fatal in all_of_it] == [True, True, False, False]
    assert "socket" in all_of_it[0][0]
