"""Stored pictures of the chat: every state at three sizes, and without colour."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, TextArea

from app.client.chat.conversations import ConversationStore
from app.client.chat.session import ChatSession, ChatTarget
from app.client.chat.stream import ChatDelta, stream_chat_async
from app.client.served_model import ServedModel
from tests.client.chat_server import DONE, ChatServer, delta, usage
from tests.tui.picture import check_picture
from tests.tui.scripted import screen_text, settled, until
from tui.chat_app import ChatApp
from tui.screens.chat import ChatScreen
from tui.widgets.chat.input import ChatInput
from tui.widgets.chat.settings import ChatSettings

SIZES = pytest.mark.parametrize(
    "size", [(80, 24), (120, 40), (200, 60)], ids=lambda size: f"{size[0]}x{size[1]}"
)
NOON = 1_760_000_000.0
ANSWER = """\
A **hash table** finds a value by its key:

1. hash the key
2. take the slot `hash % size`

```python
table[hash(key) % len(table)]
```

| step | cost |
|---|---|
| look up | O(1) |
"""


class ShownElsewhere(ChatSession):
    """Asks the test's server, but shows an address that is the same in every run."""

    def __init__(self, server: ChatServer, store: ConversationStore) -> None:
        super().__init__(ChatTarget("http://127.0.0.1:8000", ServedModel("smol", 8192)), store)
        self._server = server

    def stream_async(self) -> AsyncGenerator[ChatDelta, None]:
        return stream_chat_async(self._server.url, self.conversation.messages(), model="smol")


class Ticking:
    """A clock that is a tenth of a second later at each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


async def ask(app: ChatApp, pilot: Pilot[str], text: str) -> None:
    """A command, or a question whose answer has come whole."""
    before = app.chat._session.conversation
    expected = len(before.turns) + (0 if text.startswith("/") else 2)

    def is_done() -> bool:
        now = app.chat._session.conversation
        return not app.chat.is_answering and (now is not before or len(now.turns) == expected)

    app.chat.query_one(ChatInput).insert(text)
    await pilot.press("enter")
    await until(pilot, is_done)
    await settled(pilot)


async def look_idle(app: ChatApp, pilot: Pilot[str]) -> None:
    await until(pilot, lambda: "Ask something below" in screen_text(app))


async def look_answer(app: ChatApp, pilot: Pilot[str]) -> None:
    await ask(app, pilot, "What is a hash table?")
    await pilot.press("f4")
    await until(pilot, lambda: "short, with a table" in screen_text(app))


async def look_settings(app: ChatApp, pilot: Pilot[str]) -> None:
    await ask(app, pilot, "/set temperature 0.5")
    await ask(app, pilot, "/system Be brief.")
    await pilot.press("f2")
    await until(pilot, lambda: app.chat.query_one(ChatSettings).has_class("-open"))


async def look_list(app: ChatApp, pilot: Pilot[str]) -> None:
    for question in ("What is a hash table?", "And a tree?", "Name three sorting algorithms"):
        await ask(app, pilot, question)
        await ask(app, pilot, "/new")
    await pilot.press("f3")
    await until(pilot, lambda: app.chat.query_one(OptionList).option_count == 3)


LOOKS: dict[str, Callable[[ChatApp, Pilot[str]], Awaitable[None]]] = {
    "idle": look_idle,
    "answer": look_answer,
    "settings": look_settings,
    "list": look_list,
}


async def check(look: str, size: tuple[int, int], name: str, folder: Path) -> None:
    thought = delta(reasoning_content="They want it short, with a table.")
    pieces = [delta(content=line) for line in ANSWER.splitlines(keepends=True)]
    server = ChatServer([[thought, *pieces, delta("stop"), usage(12, 57), DONE]])
    store = ConversationStore(folder / "chats.sqlite3", clock=lambda: NOON)
    with server.running(), contextlib.closing(store):
        app = ChatApp(ShownElsewhere(server, store), clock=Ticking())
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: isinstance(app.screen, ChatScreen))
            for field in (*app.chat.query(Input), *app.chat.query(TextArea)):
                field.cursor_blink = False
            await LOOKS[look](app, pilot)
            await check_picture(pilot, name)


@SIZES
@pytest.mark.parametrize("look", LOOKS)
async def test_states(look: str, size: tuple[int, int], tmp_path: Path) -> None:
    await check(look, size, f"chat-{look}-{size[0]}x{size[1]}", tmp_path)


@pytest.mark.parametrize("look", ["answer", "settings"])
async def test_without_colour(look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    await check(look, (80, 24), f"chat-{look}-no-color", tmp_path)
