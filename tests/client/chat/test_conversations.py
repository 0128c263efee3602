"""Saved conversations: what comes back, who may read it, search, and broken files."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from app.client.chat.conversations import ConversationEntry, ConversationStore, StoreError
from app.client.chat.parameters import ChatParameters
from app.client.chat.session import ChatSession, ChatTarget
from app.client.chat.turns import AnswerStats, Attachment, Conversation, ToolCall, Turn
from app.client.served_model import ServedModel

FULL = Conversation(
    turns=(
        Turn("user", "What?", attachments=(Attachment("a.txt", "text"),)),
        Turn(
            "assistant",
            "That.",
            reasoning="hm",
            tool_calls=(ToolCall("1", "f", "{}"),),
            stats=AnswerStats(7, 3, 0.25, 30.0, "stop", "stopped by you"),
        ),
        Turn("tool", "42", tool_call_id="1"),
    ),
    system="Be brief.",
    parameters=ChatParameters(temperature=0.5, response_format={"type": "json_object"}),
    model="smol",
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[ConversationStore]:
    with closing(ConversationStore(path, clock=Clock())) as opened:
        yield opened


def said(*texts: str) -> Conversation:
    return Conversation(tuple(Turn("user", text) for text in texts))


def test_everything_comes_back(store: ConversationStore) -> None:
    saved = store.save(FULL)
    assert saved.id is not None
    assert store.load(saved.id) == replace(FULL, id=saved.id)


def test_only_the_owner_can_read_it_even_if_it_was_open(path: Path) -> None:
    path.touch(0o644)
    with closing(ConversationStore(path)) as store:
        store.save(FULL)
    assert [stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()] == [0o600]


def test_saving_again_replaces_and_moves_to_the_top(store: ConversationStore) -> None:
    first = store.save(said("one"))
    store.save(said("two"))
    store.save(replace(first, turns=(*first.turns, Turn("assistant", "yes"))))
    assert store.list() == [
        ConversationEntry(1, "one", 1003.0, 2),
        ConversationEntry(2, "two", 1002.0, 1),
    ]


def test_search_in_titles_and_turns_takes_signs_literally(store: ConversationStore) -> None:
    for texts in (("100% sure", "really"), ("a_b", "x"), ("axb!", "Really?")):
        store.save(said(*texts))

    def found(text: str) -> list[str]:
        return [entry.title for entry in store.list(text)]

    assert found("REALLY") == ["axb!", "100% sure"]
    assert found("0%") == ["100% sure"]
    assert found("a_") == ["a_b"]
    assert found("b!") == ["axb!"]
    assert found("'; DROP TABLE turns") == []


def test_delete_takes_the_turns_along(store: ConversationStore, path: Path) -> None:
    store.save(FULL)
    store.delete(1)
    assert store.list() == []
    with pytest.raises(StoreError, match="no conversation 1"):
        store.load(1)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM turns").fetchone() == (0,)


def test_a_file_that_is_none_of_ours(path: Path) -> None:
    path.write_text("this is no database, and long enough to be sure of it\n" * 40)
    with pytest.raises(StoreError, match="chat with --no-save"):
        ConversationStore(path)
    assert path.read_text().startswith("this is no database")


def test_a_file_of_a_later_version_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer Stoker"):
        ConversationStore(path)


def test_half_a_surrogate_pair_is_no_obstacle(store: ConversationStore) -> None:
    store.save(said("a\ud83d"))
    assert store.list("a?")[0].title == "a?"


def test_a_store_that_fails_is_told_once_and_the_chat_goes_on(
    store: ConversationStore, path: Path
) -> None:
    session = ChatSession(ChatTarget("http://h", ServedModel("m", None)), store)
    session.ask("one")
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE turns")
    session.keep(Turn("assistant", "two"))
    assert "no such table" in session.save_problem
    assert not session.is_saving
    session.ask("three")
    assert [turn.text for turn in session.conversation.turns] == ["one", "two", "three"]
