"""Turns: what is said in a row becomes one message."""

from __future__ import annotations

from engine.server.turns import Turns


def test_what_one_says_in_a_row_is_one_message() -> None:
    turns = Turns()
    for text in ("Be brief.", "", "Be kind."):
        turns.system(text)
    turns.user("Hi")
    turns.system("Now in French.")
    for text in ("Hm.", "Ah."):
        turns.thought(text)
    turns.assistant("Salut")
    goes_on = [turns.goes_on]
    turns.call("a", "now", {})
    assert [*goes_on, turns.goes_on] == [True, False]
    turns.result("a", "12:00")
    turns.result("b", "")
    assert turns.messages == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "Hi\n\nNow in French."},
        {
            "role": "assistant",
            "content": "Salut",
            "reasoning": "Hm.\n\nAh.",
            "tool_calls": [{"id": "a", "function": {"name": "now", "arguments": {}}}],
        },
        {"role": "tool", "content": "12:00", "tool_call_id": "a", "name": "now"},
        {"role": "tool", "content": "", "tool_call_id": "b"},
    ]


def test_nothing_goes_on_without_text_of_the_assistant() -> None:
    turns = Turns()
    assert not turns.goes_on
    turns.assistant(" ")
    assert not turns.goes_on
    turns.user("Hi")
    assert not turns.goes_on
