"""The README's pictures: python -m tests.readme_pictures

Real screens over what was recorded: the demo of `stoker top --mock`, a log of our engine, a chat
with our engine. The same files come out each time, on any machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from unittest import mock

from rich.console import Console
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from app.client.chat.session import ChatSession, ChatTarget
from app.client.chat.turns import Conversation, turn_from_document
from app.client.served_model import ServedModel
from app.client.watch.recording import read_recording
from app.client.watch.replay import DEMO, Replay
from app.client.watch.watched import watch_replay
from app.views.start import StartView
from logparse import LogParser
from logparse.reading.line import split_line, stamp_seconds
from tests.places import ROOT
from tests.tui.scripted import screen_text, until
from tui.app import DashboardApp
from tui.chat_app import ChatApp
from tui.log_app import LogApp
from tui.theme import Appearance, StyledApp
from tui.widgets.chat.turn import TurnView

FOLDER = ROOT / "docs" / "pictures"
DATA = ROOT / "tests" / "data"
OWN_LOG = DATA / "own_engine_start.log"
_URL = "http://127.0.0.1:8000"
_BUSY_UNTIL_S = 51.5  # by the clock of the demo
_FONT_FILES = re.compile(r" *@font-face \{[^}]*\}\n")
_LONGEST_WAIT_S = 60.0
IsRight = Callable[[str], bool]


async def dashboard(is_right: IsRight, *keys: str) -> str:
    """The demo while it is busy, after some keys."""
    whole = read_recording(DEMO)
    entries = tuple(entry for entry in whole.entries if entry.time_s < _BUSY_UNTIL_S)
    replay = Replay(replace(whole, entries=entries), speed=1000.0)
    server = watch_replay(replay, "built-in demo")[0]
    app = DashboardApp(
        server.url,
        server.open_source(),
        debug_source=server.open_debug(),
        is_read_only=True,
        clock=replay.now_s,
    )
    return await picture(app, is_right, lambda pilot: until(pilot, lambda: replay.is_over), *keys)


async def logs(is_right: IsRight) -> str:
    """`stoker logs --tui`, at the line that tells the capacity."""

    async def look(pilot: Pilot[str]) -> None:
        await until(pilot, lambda: app.index.report().phases[-1].state == "done")

    app = LogApp(OWN_LOG, OWN_LOG.name)
    return await picture(app, is_right, look, "slash", *"concurrency", "enter", size=(120, 30))


async def chat(is_right: IsRight) -> str:
    """Two questions and what the default model said to them."""
    document = json.loads((DATA / "recorded_chat.json").read_text(encoding="utf-8"))
    turns = tuple(turn_from_document(turn) for turn in document["turns"])
    target = ChatTarget(_URL, ServedModel(document["model"], 8192))
    session = ChatSession(target, conversation=Conversation(turns, model=document["model"]))
    app = ChatApp(session)
    return await picture(
        app,
        is_right,
        lambda pilot: until(pilot, lambda: len(app.screen.query(TurnView)) == len(turns)),
        size=(100, 32),
    )


async def start() -> str:
    """`stoker serve` on a terminal, as the log went; its clock is the log's."""
    parser, lines = LogParser(), OWN_LOG.read_text(encoding="utf-8").splitlines()
    with mock.patch("app.views.start.time") as clock, contextlib.redirect_stderr(_Terminal()):
        clock.monotonic.return_value = _stamp_s(lines[0])
        with StartView(f"starting smollm2-135m on {_URL}") as view:
            for line in lines:
                clock.monotonic.return_value = _stamp_s(line) or clock.monotonic()
                view.show(parser.feed(line))
            view.close()
            return terminal_svg("stoker serve", view._table())


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _stamp_s(line: str) -> float | None:
    stamp = split_line(line).stamp
    return stamp_seconds(stamp) if stamp else None


def terminal_svg(command: str, output: object) -> str:
    """A terminal after a command."""
    console = Console(
        width=80, record=True, file=io.StringIO(), force_terminal=True,
        color_system="truecolor", legacy_windows=False, _environ={},
    )  # fmt: skip
    console.print(Text(f"$ {command}"))
    console.print(output)
    return console.export_svg(title="stoker")


async def picture(
    app: StyledApp,
    is_right: IsRight,
    look: Callable[[Pilot[str]], Awaitable[None]],
    *keys: str,
    size: tuple[int, int] = (120, 36),
) -> str:
    """The app's screen after `look` and the keys, once nothing changes and it is right."""
    app.appearance = Appearance()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for field in (*app.screen.query(Input), *app.screen.query(TextArea)):
            field.cursor_blink = False
        await look(pilot)
        await pilot.press(*keys)
        before = ""
        while before != screen_text(app):
            before = screen_text(app)
            await pilot.pause(0.6)
        end = time.monotonic() + _LONGEST_WAIT_S
        while not is_right(svg := app.export_screenshot(simplify=True)):
            if time.monotonic() > end:
                break
            await pilot.pause(0.1)
        return svg


PICTURES: dict[str, Callable[[IsRight], Awaitable[str]]] = {
    "dashboard": dashboard,
    "engine": lambda is_right: dashboard(is_right, "2"),
    "start": lambda _: start(),
    "logs": logs,
    "chat": chat,
}


async def svg_of(name: str, is_right: IsRight = lambda svg: True) -> str:
    """One picture; a viewer takes its own font instead of loading one from the network.

    On a busy machine a screen may stand still before it is drawn whole: who knows how it must look
    says with `is_right` whether it does.
    """
    return _FONT_FILES.sub("", await PICTURES[name](is_right))


async def main() -> None:
    """Write all of them."""
    os.environ.pop("NO_COLOR", None)
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        path = FOLDER / f"{name}.svg"
        path.write_text(await svg_of(name), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    asyncio.run(main())
