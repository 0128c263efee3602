"""The chat screen against a real small server: every key and every state."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual._xterm_parser import XTermParser
from textual.command import CommandPalette
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Checkbox, Input, OptionList, Static, TextArea

from app.client.chat.conversations import ConversationStore
from app.client.chat.session import ChatSession, ChatTarget
from app.client.served_model import served_model
from tests.client.chat_server import DONE, ChatServer, answer, delta, usage
from tests.client.local_server import Answer
from tests.tui.scripted import screen_text, settled, until
from tui.chat_app import ChatApp
from tui.screens.chat import ChatScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.help import HelpScreen
from tui.screens.notice import NoticeScreen
from tui.widgets.chat.command_hints import CommandHints
from tui.widgets.chat.input import ChatInput, read_alt_enter
from tui.widgets.chat.list import ChatList
from tui.widgets.chat.settings import ChatSettings
from tui.widgets.chat.transcript import ChatTranscript
from tui.widgets.chat.turn import ReasoningBox, TurnView

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
NOON = 1_760_000_000.0


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer().running() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConversationStore]:
    with contextlib.closing(
        ConversationStore(tmp_path / "chats.sqlite3", clock=lambda: NOON)
    ) as opened:
        yield opened


class Chat:
    """A running app and what a test does with it."""

    def __init__(self, app: ChatApp, pilot: Pilot[str], session: ChatSession) -> None:
        self.app = app
        self.pilot = pilot
        self.session = session

    @property
    def screen(self) -> ChatScreen:
        return self.app.chat

    @property
    def text(self) -> str:
        """What is on the screen, as if no line had been wrapped."""
        return " ".join(screen_text(self.app).split())

    @property
    def input(self) -> ChatInput:
        return self.screen.query_one(ChatInput)

    async def type(self, text: str, *keys: str) -> None:
        """Put the text into the input as a paste does, then press the keys."""
        self.input.insert(text)
        await self.press(*keys)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await settled(self.pilot)

    async def ask(self, text: str) -> None:
        """Ask, and wait for the end of the answer."""
        await self.type(text, "enter")
        await self.answered()

    async def answered(self) -> None:
        await until(self.pilot, lambda: not self.screen.is_answering)
        await settled(self.pilot)

    async def shows(self, *texts: str) -> None:
        await until(self.pilot, lambda: all(text in self.text for text in texts))

    def turns(self) -> list[tuple[str, str]]:
        return [(turn.role, turn.text) for turn in self.session.conversation.turns]


class Ticking:
    """A clock that is a tenth of a second later at each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


@contextlib.asynccontextmanager
async def chatting(
    server: ChatServer,
    store: ConversationStore | None = None,
    size: tuple[int, int] = (80, 24),
    **target: Any,
) -> AsyncIterator[Chat]:
    session = ChatSession(ChatTarget(server.url, served_model(server.url), **target), store)
    app = ChatApp(session, clock=Ticking())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: isinstance(app.screen, ChatScreen))
        await settled(pilot)
        yield Chat(app, pilot, session)


@SIZES
async def test_question_and_answer_with_counts(server: ChatServer, size: tuple[int, int]) -> None:
    server.answers = [answer("The **capital** is ", "`Paris`.", completion_tokens=4)]
    async with chatting(server, size=size) as chat:
        await chat.shows(
            "Ask something below",
            "smol · http://127.0.0.1",
            "context 0 of 8,192 tokens (0 %)",
            "F2 Settings",
        )
        await chat.ask("capital?")
        await chat.shows(
            "You 1",
            "capital?",
            "The capital is Paris.",
            "7 prompt + 4 tokens · first token 100 ms · 30 tok/s · stop",
            "context 11 of 8,192 tokens",
        )
        assert "Ask something below" not in chat.text
    assert server.last_texts == ["capital?"]
    assert "temperature" not in server.bodies[0]


async def test_the_conversation_goes_on(server: ChatServer) -> None:
    server.answers = [answer("One."), answer("Two.")]
    async with chatting(server) as chat:
        await chat.ask("first")
        await chat.ask("second")
        await chat.shows("You 2", "Two.")
    assert server.last_texts == ["first", "One.", "second"]


async def test_newline_and_paste_do_not_send(server: ChatServer) -> None:
    async with chatting(server) as chat:
        await chat.type("one", "ctrl+j", "t", "w", "o")
        assert chat.input.text == "one\ntwo"
        assert server.bodies == []
        await chat.press("enter")
        await chat.answered()
    assert server.last_texts == ["one\ntwo"]


async def test_keys_behind_a_sent_line_belong_to_the_next(server: ChatServer) -> None:
    async with chatting(server) as chat:
        for char in "/set temperature 0.5\r/set seed 7\r/set top_p 0.9\r":
            chat.input.post_message(Key("enter" if char == "\r" else char, char))
        await chat.shows("top_p 0.9")
        assert chat.input.text == ""
        assert chat.session.conversation.parameters.body_fields() == {
            "temperature": 0.5,
            "seed": 7,
            "top_p": 0.9,
        }


async def test_escape_stops_and_keeps_what_came(
    server: ChatServer, store: ConversationStore
) -> None:
    server.answers = [server.endless(delta(content="Once upon")), answer("Fine.")]
    async with chatting(server, store) as chat:
        await chat.type("story", "enter")
        await chat.shows("Once upon", "answering · Esc stops")
        await chat.type("next", "enter")
        await chat.shows("one answer at a time")
        chat.input.load_text("")
        await chat.press("escape")
        await chat.shows("✗ stopped by you")
        await chat.answered()
        await chat.ask("go on")
        await chat.shows("Fine.")
    assert server.last_texts == ["story", "Once upon", "go on"]
    assert [turn.text for turn in store.load(1).turns] == ["story", "Once upon", "go on", "Fine."]


async def test_stop_before_the_first_token(server: ChatServer) -> None:
    server.answers = [server.endless(), answer("Fine.")]
    async with chatting(server) as chat:
        await chat.type("story", "enter")
        await chat.shows("waiting for the first token · Esc stops")
        await until(chat.pilot, lambda: bool(server.bodies))
        await chat.press("ctrl+c")
        await chat.shows("✗ stopped by you")
        await chat.answered()
        await chat.ask("other")
    # A question without an answer would give two user turns in a row.
    assert server.last_texts == ["other"]


async def test_server_lost_in_the_middle_keeps_the_part(
    server: ChatServer, store: ConversationStore
) -> None:
    server.answers = [[delta(content="The cap")], answer("The capital is Paris.")]
    async with chatting(server, store) as chat:
        await chat.ask("capital?")
        await chat.shows("The cap", "✗ the stream ended in the middle of the answer")
        assert store.load(1).turns[-1].text == "The cap"
        await chat.press("f5")
        await chat.answered()
        await chat.shows("The capital is Paris.")
        assert "middle" not in chat.text
    assert server.last_texts == ["capital?"]


async def test_server_gone_says_so_and_the_question_can_be_asked_again(server: ChatServer) -> None:
    assert server.local is not None
    async with chatting(server) as chat:
        server.local.stop()
        await chat.ask("still there?")
        await chat.shows("still there?", "connection refused")
        server.local.start()
        await chat.press("f5")
        await chat.answered()
        await chat.shows("Hello!")
    assert server.last_texts == ["still there?"]


async def test_refused_request_shows_the_reason(server: ChatServer) -> None:
    server.answers = [Answer([b'{"error":{"message":"prompt is too long"}}'], 400)]
    async with chatting(server) as chat:
        await chat.ask("long")
        await chat.shows("prompt is too long")


async def test_reasoning_is_apart_and_folds(server: ChatServer) -> None:
    pieces = ("<thi", "nk>let me think</th", "ink>\n\n42")
    events = [delta(content=piece) for piece in pieces]
    server.answers = [[*events, delta("stop"), DONE]]
    async with chatting(server) as chat:
        await chat.ask("?")
        await chat.shows("▸ reasoning, 3 words", "42")
        assert "let me think" not in chat.text
        await chat.press("f4")
        await chat.shows("▾ reasoning, 3 words", "let me think")
        await chat.press("f4", "ctrl+t", "o")
        await chat.shows("▾ reasoning")
        await chat.pilot.click(ReasoningBox)
        await chat.shows("▸ reasoning")
        assert chat.session.conversation.turns[-1].text == "42"
        await chat.press("escape")
        await chat.ask("and?")
    assert server.last_texts == ["?", "42", "and?"]


async def test_reasoning_is_seen_while_it_comes(server: ChatServer) -> None:
    server.answers = [server.endless(delta(reasoning_content="hm, well"))]
    async with chatting(server) as chat:
        await chat.type("?", "enter")
        await chat.shows("▾ reasoning, 2 words", "hm, well")
        await chat.press("escape")
        await chat.shows("stopped by you")


async def test_edit_the_last_question(server: ChatServer, store: ConversationStore) -> None:
    server.answers = [answer("Wrong."), answer("Right.")]
    async with chatting(server, store) as chat:
        await chat.ask("capitl?")
        await chat.press("f6")
        assert chat.input.text == "capitl?"
        await chat.shows("editing: Enter asks it again")
        await chat.press("escape")
        assert chat.input.text == ""
        assert chat.turns() == [("user", "capitl?"), ("assistant", "Wrong.")]
        await chat.press("up")
        chat.input.load_text("")
        await chat.ask("capital?")
        await chat.shows("capital?", "Right.")
        assert "Wrong." not in chat.text
    assert server.last_texts == ["capital?"]
    assert len(store.list()) == 1


async def test_edit_an_earlier_question_keeps_the_old_conversation(
    server: ChatServer, store: ConversationStore
) -> None:
    server.answers = [answer("One."), answer("Two."), answer("New one.")]
    async with chatting(server, store) as chat:
        await chat.ask("first")
        await chat.ask("second")
        await chat.press("ctrl+t", "g", "e")
        await until(chat.pilot, lambda: chat.input.text == "first")
        chat.input.load_text("")
        await chat.ask("other")
        await chat.shows("other", "New one.")
        assert "Two." not in chat.text
    assert server.last_texts == ["other"]
    assert sorted(entry.num_turns for entry in store.list()) == [2, 4]


async def test_an_answer_that_fails_does_not_replace_the_old_one(server: ChatServer) -> None:
    server.answers = [answer("Good."), Answer([b"busy"], 503)]
    async with chatting(server) as chat:
        await chat.ask("q")
        await chat.press("ctrl+t", "r")
        await chat.answered()
        await chat.shows("answered 503: busy", "Good.")
        assert chat.turns() == [("user", "q"), ("assistant", "Good.")]


async def test_tool_call_and_its_result(server: ChatServer) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"ci'}}
    rest = {"index": 0, "function": {"arguments": 'ty": "Oslo"}'}}
    server.answers = [
        [delta(tool_calls=[call]), delta(tool_calls=[rest]), delta("tool_calls"), DONE],
        answer("It rains."),
    ]
    tool = {"type": "function", "function": {"name": "weather"}}
    async with chatting(server, tools=(tool,), api_key="sesame") as chat:
        await chat.ask("weather?")
        await chat.shows("→ calls weather({", '"city": "Oslo"', "· tool_calls", "/result TEXT")
        await chat.ask("/result rain")
        await chat.shows("Tool result", "It rains.")
        assert "sesame" not in chat.text + repr(chat.session.target)
    assert server.local is not None
    assert server.local.calls[-1].headers["Authorization"] == "Bearer sesame"
    messages = server.bodies[-1]["messages"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'
    assert messages[2] == {"role": "tool", "content": "rain", "tool_call_id": "c1"}
    assert server.bodies[-1]["tools"] == [tool]


async def test_json_mode_is_sent_and_shown(server: ChatServer) -> None:
    server.answers = [answer('{"a": ', "[1, 2]}"), answer('{"a": ')]
    async with chatting(server) as chat:
        await chat.ask("/json on")
        await chat.shows("· JSON ·")
        await chat.ask("numbers")
        await chat.shows('{"a": [1, 2]}', "· valid JSON")
        assert server.bodies[-1]["response_format"] == {"type": "json_object"}
        await chat.ask("again")
        await chat.shows("· not valid JSON")
        await chat.ask("/json off")
        await chat.ask("text")
    assert "response_format" not in server.bodies[-1]


def note(panel: ChatSettings) -> str:
    return str(panel.query_one("#settings-note", Static).render())


async def test_settings_panel(server: ChatServer) -> None:
    async with chatting(server, size=(120, 40)) as chat:
        await chat.press("f2")
        panel = chat.screen.query_one(ChatSettings)
        assert panel.has_class("-open")
        panel.query_one("#settings-system", TextArea).insert("Be brief.")
        field = panel.query_one("#settings-temperature", Input)
        field.focus()
        await chat.press("3")
        assert "a number from 0 to 2" in note(panel)
        await chat.press("enter")
        assert "✗ temperature must be a number from 0 to 2 or `default`, not '3'" in note(panel)
        assert field.has_class("-wrong")
        await chat.press("backspace", *"0.5", "enter")
        assert not field.has_class("-wrong")
        panel.query_one("#settings-max_tokens", Input).focus()
        await chat.press(*"20")
        panel.query_one(Checkbox).focus()
        await chat.press("space")
        await chat.shows("· temperature 0.5, max_tokens 20, JSON · system prompt ·")
        await chat.press("escape")
        assert not panel.has_class("-open")
        assert chat.app.focused is chat.input
        await chat.ask("hi")
        await chat.press("f2", "f2")
        assert not panel.has_class("-open")
    (body,) = server.bodies
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"]) == (0.5, 20)
    assert body["response_format"] == {"type": "json_object"}


async def test_context_warning_before_it_overflows(server: ChatServer) -> None:
    server.cards = [{"id": "smol", "max_model_len": 100}]
    server.answers = [answer("Hello!", prompt_tokens=70, completion_tokens=15)]
    async with chatting(server) as chat:
        await chat.ask("hi")
        await chat.shows("⚠ nearly full", "context 85 of 100 tokens (85 %)")
        await chat.type("word " * 40)
        await chat.shows("⚠ overflows")
        chat.input.load_text("")
        await chat.ask("/set max_tokens 50")
        await chat.shows("⚠ no room for max_tokens")
        await chat.ask("/new")
        assert "⚠" not in chat.text


async def test_conversations_are_saved_listed_searched_opened_and_deleted(
    server: ChatServer, store: ConversationStore
) -> None:
    server.answers = [answer("Paris."), answer("Rome [b]x[/b]."), answer("More.")]
    async with chatting(server, store) as chat:
        await chat.ask("France?")
        await chat.press("ctrl+n")
        await chat.shows("a new conversation")
        await chat.ask("Italy?")
        await chat.press("f3")
        await chat.shows("Conversations", "France?", "Italy?", "2025-10-09, 2 turns")
        await chat.press(*"paris")
        entries = chat.screen.query_one(OptionList)
        await until(chat.pilot, lambda: entries.option_count == 1)
        await chat.press("enter")
        await chat.shows("opened: France?", "Paris.")
        assert not chat.screen.query_one(ChatList).has_class("-open")
        assert chat.app.focused is chat.input
        await chat.ask("more?")
        await chat.press("f3", "down")
        await until(chat.pilot, lambda: chat.app.focused is entries)
        await chat.press("x")
        await until(chat.pilot, lambda: isinstance(chat.app.screen, ConfirmScreen))
        await chat.press("n")
        assert len(store.list()) == 2
        await chat.press("x")
        await until(chat.pilot, lambda: isinstance(chat.app.screen, ConfirmScreen))
        await chat.press("y")
        await until(chat.pilot, lambda: len(store.list()) == 1)
        await chat.press("slash")
        assert chat.app.focused is chat.screen.query_one("#list-search")
        await chat.press("f3")
        assert not chat.screen.query_one(ChatList).has_class("-open")
    assert server.last_texts == ["France?", "Paris.", "more?"]


async def test_search_command_opens_the_list(server: ChatServer, store: ConversationStore) -> None:
    async with chatting(server, store) as chat:
        await chat.ask("one 100% thing")
        await chat.ask("/new")
        await chat.ask("another")
        await chat.type("/search 100%", "enter")
        entries = chat.screen.query_one(OptionList)
        await until(chat.pilot, lambda: entries.option_count == 1)


async def test_without_a_store_the_list_says_why(server: ChatServer) -> None:
    async with chatting(server) as chat:
        await chat.shows("not saved")
        await chat.press("f3")
        await chat.shows("conversations are not saved (--no-save)")


async def test_attach_a_file(server: ChatServer, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("remember the milk")
    (tmp_path / "data.bin").write_bytes(b"\x00\x01")
    async with chatting(server, size=(160, 40)) as chat:
        await chat.press("f7")
        assert chat.input.text == "/attach "
        await chat.type(f"{tmp_path}/data.bin", "enter")
        await chat.shows("✗", "data.bin is not a text file in UTF-8")
        await chat.type(f"/attach {tmp_path}/notes.txt", "enter")
        await chat.shows("notes.txt (17 characters) goes with the next")
        await chat.ask("what?")
        await chat.shows("+ notes.txt (17 characters)")
        assert "milk" not in chat.text
    (text,) = server.last_texts
    assert text == 'what?\n\nFile "notes.txt":\n```\nremember the milk\n```'


async def test_copy_turns_and_the_last_answer(server: ChatServer) -> None:
    async with chatting(server) as chat:
        await chat.ask("the question")
        await chat.press("ctrl+t", "k", "c")
        assert chat.app.clipboard == "the question"
        await chat.press("escape")
        await chat.ask("/copy")
        assert chat.app.clipboard == "Hello!"


async def test_export_to_markdown_and_json(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with chatting(server) as chat:
        await chat.press("f8")
        await chat.shows("nothing to export")
        await chat.ask("Hi there?")
        await chat.press("f8")
        await chat.shows("written to")
        await chat.ask("/export chat.json")
        await chat.ask("/export chat.json")
        await chat.shows("cannot write chat.json: File exists")
    text = (tmp_path / "hi-there.md").read_text()
    assert "## You\n\nHi there?\n\n## Model\n\nHello!" in text
    assert stat.S_IMODE(os.stat(tmp_path / "hi-there.md").st_mode) == 0o600
    document = json.loads((tmp_path / "chat.json").read_text())
    assert document["schema"] == "stoker.conversation"
    assert [turn["text"] for turn in document["turns"]] == ["Hi there?", "Hello!"]


async def test_hostile_model_text_is_shown_and_does_nothing(server: ChatServer) -> None:
    server.answers = [
        answer(
            "[red]not markup[/red] \x1b]52;c;AAAA\x07\x1b[31mred\x9b2J <b>html</b> ",
            "[@click=app.quit]x[/] [press](action:app.quit)",
        )
    ]
    async with chatting(server) as chat:
        await chat.ask("[bold]mine[/bold]")
        await chat.shows("[red]not markup[/red]", "<b>html</b>", "[bold]mine[/bold]", "press")
        assert "\x1b" not in chat.text
        assert chat.app.clipboard == ""
        assert "\x1b" not in chat.session.conversation.turns[-1].text
        server.answers = [answer("[" * 60_000)]
        await chat.ask("and deep")
        await chat.shows("[[[[", "· stop")


async def test_a_link_only_tells_where_it_points(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = [answer("[press](https://example.org/x)")]
    opened: list[str] = []
    async with chatting(server) as chat:
        monkeypatch.setattr(chat.app, "open_url", lambda url, **_: opened.append(url))
        await chat.ask("link")
        await chat.shows("press")
        await chat.pilot.click("MarkdownParagraph", offset=(2, 0))
        await until(chat.pilot, lambda: bool(chat.app._notifications))
        assert [one.message for one in chat.app._notifications] == ["https://example.org/x"]
    assert opened == []


async def test_movement_in_the_turns(server: ChatServer) -> None:
    server.answers = [answer("long\n\n" * 30)]
    async with chatting(server) as chat:
        await chat.ask("one")
        await chat.ask("two")
        transcript = chat.screen.query_one(ChatTranscript)
        await chat.press("ctrl+t")
        assert transcript.selected is transcript.turn_views[-1]
        await chat.press("g")
        assert transcript.selected is transcript.turn_views[0]
        await chat.shows("You 1")
        await chat.press("j", "j")
        assert transcript.selected is transcript.turn_views[2]
        await chat.press("k", "G", "j")
        assert transcript.selected is transcript.turn_views[3]
        await chat.press("slash")
        assert chat.input.text == "/"
        assert not chat.screen.query(TurnView).filter(".-selected")


async def test_commands_say_what_is_wrong(server: ChatServer) -> None:
    async with chatting(server) as chat:
        for line, said in [
            ("/nonsense", "there is no command /nonsense"),
            ("/again", "there is no question yet"),
            ("/set temprature 1", "there is no parameter 'temprature'"),
            ("/open x", "give the number"),
            ("/result x", "no tool call waits"),
            ("/model other", "the server has no model other"),
            ("/copy", "no answer to copy"),
        ]:
            await chat.ask(line)
            await chat.shows(said)
        await chat.ask("//slash is a question")
    assert server.last_texts == ["/slash is a question"]


async def test_palette_runs_commands(server: ChatServer) -> None:
    async with chatting(server) as chat:
        await chat.ask("one")
        await chat.press("ctrl+p")
        await until(chat.pilot, lambda: isinstance(chat.app.screen, CommandPalette))
        await chat.press(*"again")
        await chat.shows("make the last answer anew")
        await chat.press("down", "enter")
        await until(chat.pilot, lambda: len(server.bodies) == 2)
        await chat.answered()


async def test_help_lists_keys_and_commands(server: ChatServer) -> None:
    async with chatting(server, size=(120, 60)) as chat:
        for keys in (["f1"], ["/", *"help", "enter"]):
            await chat.press(*keys)
            await until(chat.pilot, lambda: isinstance(chat.app.screen, HelpScreen))
            await chat.shows("stop the answer", "/export [FILE]")
            await chat.press("escape")
            await until(chat.pilot, lambda: chat.app.screen is chat.screen)


@pytest.mark.parametrize("keys", [["f10"], ["ctrl+c"], ["ctrl+q"], ["ctrl+t", "q"]])
async def test_ways_out(server: ChatServer, keys: list[str]) -> None:
    async with chatting(server) as chat:
        await chat.press(*keys)
        await until(chat.pilot, lambda: not chat.app.is_running)


async def test_quit_in_the_middle_keeps_what_came(
    server: ChatServer, store: ConversationStore
) -> None:
    server.answers = [server.endless(delta(content="Half an"))]
    async with chatting(server, store) as chat:
        await chat.type("q", "enter")
        await chat.shows("Half an")
        await chat.type("/quit", "enter")
        await until(chat.pilot, lambda: not chat.app.is_running)
    assert store.load(1).turns[-1].text == "Half an"


async def test_no_color(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    server.answers = [[delta(content="a"), usage(1, 1), delta("length"), DONE]]
    async with chatting(server) as chat:
        await chat.ask("hi")
        await chat.shows("length (cut off at the token limit)")
        colours = {
            segment.style.color.triplet
            for strip in chat.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style and segment.style.color and segment.style.color.triplet
        }
        assert colours
        assert all(red == green == blue for red, green, blue in colours)


async def test_ascii_and_the_light_theme(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_ASCII", "1")
    monkeypatch.setenv("STOKER_THEME", "light")
    server.answers = [[delta(reasoning="hm"), *answer("- point")]]
    async with chatting(server) as chat:
        await chat.ask("hi")
        await chat.shows("> reasoning, 1 words", "* point")
        assert chat.text.isascii()
        assert chat.app.theme == "stoker-light"


async def test_escape_closes_the_list_before_it_stops_an_answer(server: ChatServer) -> None:
    server.answers = [server.endless(delta(content="begun"))]
    async with chatting(server, None) as chat:
        await chat.type("long", "enter")
        await chat.shows("begun")
        chat.screen.query_one(ChatSettings).add_class("-open")
        await chat.press("escape")
        assert not chat.screen.query_one(ChatSettings).has_class("-open")
        assert chat.screen.is_answering
        await chat.press("escape")
        await chat.answered()


async def test_delete_asks_and_knows_what_there_is(
    server: ChatServer, store: ConversationStore
) -> None:
    async with chatting(server, store) as chat:
        await chat.ask("first")
        number = chat.session.conversation.id
        await chat.type("/delete 99", "enter")
        await chat.shows("there is no conversation 99")
        await chat.type(f"/delete {number}", "enter")
        await until(chat.pilot, lambda: isinstance(chat.app.screen, ConfirmScreen))
        await chat.press("n")
        assert [entry.id for entry in store.list()] == [number]
        await chat.type(f"/delete {number}", "enter")
        await until(chat.pilot, lambda: isinstance(chat.app.screen, ConfirmScreen))
        await chat.press("y")
        await until(chat.pilot, lambda: store.list() == [])


async def test_set_without_a_value_shows_it(server: ChatServer) -> None:
    async with chatting(server, None) as chat:
        await chat.type("/set temperature 0.5", "enter")
        await chat.type("/set temperature", "enter")
        await chat.shows("temperature = 0.5")
        assert chat.session.conversation.parameters.temperature == 0.5
        await chat.type("/set temperature default", "enter")
        assert chat.session.conversation.parameters.temperature is None


async def test_a_list_does_not_hide_the_next_error(server: ChatServer) -> None:
    async with chatting(server, None) as chat:
        await chat.type("/set", "enter")
        await until(chat.pilot, lambda: isinstance(chat.app.screen, NoticeScreen))
        await chat.shows("max_tokens")
        await chat.press("escape")
        await chat.type("/nonsense", "enter")
        await chat.shows("there is no command /nonsense")
        assert "max_tokens" not in chat.text


async def test_commands_are_listed_while_a_slash_is_typed(server: ChatServer) -> None:
    async with chatting(server, None) as chat:
        await chat.press("slash", "e")
        await chat.shows("/edit [N] [TEXT]", "/export [FILE]", "/quit")
        await chat.press("d")
        await until(chat.pilot, lambda: "/export" not in chat.text)
        await chat.press("backspace", "backspace", "backspace")
        await until(chat.pilot, lambda: not chat.screen.query_one(CommandHints).display)


async def test_help_tells_each_key_once(server: ChatServer) -> None:
    async with chatting(server, None) as chat:
        await chat.press("f1")
        await until(chat.pilot, lambda: isinstance(chat.app.screen, HelpScreen))
        table = chat.app.screen.query_one("#help-keys", Static)
        keys = [str(cell) for cell in table.content.columns[0].cells]  # type: ignore[union-attr]
        assert len(keys) == len(set(keys))


def test_alt_enter_breaks_the_line_as_terminals_send_it() -> None:
    read_alt_enter()
    parser = XTermParser()
    events = [event for char in "\x1b\r" for event in parser.feed(char)]
    assert [event.key for event in events if isinstance(event, Key)] == ["ctrl+j"]


async def test_hostile_finish_reason_does_nothing(server: ChatServer) -> None:
    hostile = "stop\x1b]52;c;ZXZpbA==\x07\x1b[2J\nnext"
    server.answers = [[delta(hostile, content="fine"), DONE]]
    async with chatting(server, None) as chat:
        await chat.ask("hello")
        await chat.shows("stop next")
        stats = chat.session.conversation.turns[-1].stats
        assert stats is not None
        assert stats.finish_reason == "stop next"
