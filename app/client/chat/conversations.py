"""Saved conversations: one SQLite file that only its owner can read. Owns the schema, no screen.

Several programs may have it open: every change is one short transaction.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from app.client.chat.parameters import parameters_from_document
from app.client.chat.turns import Conversation, turn_from_document

_VERSION = 1
_BUSY_TIMEOUT_S = 1.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    shown_title TEXT NOT NULL,
    system TEXT NOT NULL,
    model TEXT NOT NULL,
    parameters TEXT NOT NULL,
    changed_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS turns (
    conversation_id INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    text TEXT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (conversation_id, position)
);
"""
_LIST = """
SELECT c.id, c.shown_title, c.changed_at,
       (SELECT count(*) FROM turns t WHERE t.conversation_id = c.id)
FROM conversations c
WHERE c.shown_title LIKE :pattern ESCAPE '!' OR EXISTS (
    SELECT 1 FROM turns t WHERE t.conversation_id = c.id AND t.text LIKE :pattern ESCAPE '!'
)
ORDER BY c.changed_at DESC, c.id DESC LIMIT :limit
"""


class StoreError(Exception):
    """Conversations cannot be saved or read; `str()` is one line with what to do."""


@dataclass(frozen=True, slots=True)
class ConversationEntry:
    """One line of the list. `changed_at_s` is epoch seconds."""

    id: int
    title: str
    changed_at_s: float
    num_turns: int


class ConversationStore:
    """Made on first use; closed by the caller."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        with self._errors():
            # SQLite gives its journal the permissions of the file, so this covers both.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            path.chmod(0o600)
            self._connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(self._connection.close)
                self._prepare()
                on_failure.pop_all()

    def _prepare(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise StoreError(
                f"{self._path} was written by a newer Stoker (format {version}); "
                "update Stoker, or chat with --no-save"
            )
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.executescript(f"{_SCHEMA} PRAGMA user_version = {_VERSION};")

    def save(self, conversation: Conversation) -> Conversation:
        """Write it as it stands; the first time it gets an id."""
        row = (
            _clean(conversation.title),
            _clean(conversation.shown_title()),
            _clean(conversation.system),
            _clean(conversation.model),
            json.dumps(conversation.parameters.body_fields()),
            self._clock(),
        )
        with self._errors(), self._connection:
            cursor = self._connection.execute(
                "INSERT OR REPLACE INTO conversations "
                "(title, shown_title, system, model, parameters, changed_at, id) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*row, conversation.id),
            )
            saved_id = conversation.id if conversation.id is not None else cursor.lastrowid
            assert saved_id is not None
            self._connection.execute("DELETE FROM turns WHERE conversation_id = ?", (saved_id,))
            self._connection.executemany(
                "INSERT INTO turns VALUES (?, ?, ?, ?)",
                [
                    (saved_id, position, _clean(turn.text), json.dumps(turn.document()))
                    for position, turn in enumerate(conversation.turns)
                ],
            )
        return replace(conversation, id=saved_id)

    def load(self, conversation_id: int) -> Conversation:
        """The conversation with this id."""
        with self._errors():
            found = self._connection.execute(
                "SELECT title, system, model, parameters FROM conversations WHERE id = ?",
                (conversation_id,),
            ).fetchone()
            turns = self._connection.execute(
                "SELECT document FROM turns WHERE conversation_id = ? ORDER BY position",
                (conversation_id,),
            ).fetchall()
        if found is None:
            raise _no_conversation(conversation_id)
        title, system, model, parameters = found
        return Conversation(
            turns=tuple(turn_from_document(json.loads(document)) for (document,) in turns),
            title=title,
            system=system,
            parameters=parameters_from_document(json.loads(parameters)),
            model=model,
            id=conversation_id,
        )

    def list(self, search: str = "", limit: int = 200) -> list[ConversationEntry]:
        """The latest first; with `search` those that hold it in the title or in a turn."""
        escaped = "".join(f"!{char}" if char in "!%_" else char for char in _clean(search))
        with self._errors():
            rows = self._connection.execute(
                _LIST, {"pattern": f"%{escaped}%", "limit": limit}
            ).fetchall()
        return [ConversationEntry(*row) for row in rows]

    def title(self, conversation_id: int) -> str:
        """What the list calls this conversation."""
        with self._errors():
            found = self._connection.execute(
                "SELECT shown_title FROM conversations WHERE id = ?", (conversation_id,)
            ).fetchone()
        if found is None:
            raise _no_conversation(conversation_id)
        return str(found[0])

    def delete(self, conversation_id: int) -> None:
        """Forget one for good; StoreError when there is none of this number."""
        with self._errors(), self._connection:
            done = self._connection.execute(
                "DELETE FROM conversations WHERE id = ?", (conversation_id,)
            )
        if done.rowcount == 0:
            raise _no_conversation(conversation_id)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, KeyError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(
                f"cannot use the saved conversations in {self._path} ({reason}); "
                "move the file away, or chat with --no-save"
            ) from error


def _no_conversation(conversation_id: int) -> StoreError:
    return StoreError(f"there is no conversation {conversation_id}; /list shows them")


def _clean(text: str) -> str:
    """SQLite takes no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")
