"""Tool parsers: what is a call, what is text, and that the cutting of the text changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.server.parsers.tool_calls import tool_parser_class
from engine.server.parsers.tool_calls.base import ToolCall, ToolCallDelta, ToolParser, join_calls
from engine.server.parsers.tool_calls.constrained import NamedToolParser, RequiredToolParser
from engine.server.parsers.tool_calls.hermes import HermesToolParser
from engine.server.parsers.tool_calls.json_calls import JsonToolParser

PARIS = '{"name": "weather", "arguments": {"city": "Paris", "days": 1.0}}'
PARIS_CALL = ToolCall("weather", '{"city": "Paris", "days": 1.0}')
TRICKY = '{"arguments":{"text":"\\\\ \\" } </tool_call> {[ 日本 🗼"},"name":"say"}'
TRICKY_CALL = ToolCall("say", '{"text":"\\\\ \\" } </tool_call> {[ 日本 🗼"}')
LLAMA = '{"name": "f", "parameters": {}}'
LLAMA_CALL = ToolCall("f", "{}")


def tagged(*bodies: str) -> str:
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        ("  just text <b>\n", "  just text <b>\n", []),
        (tagged(PARIS), "", [PARIS_CALL]),
        (tagged(PARIS, TRICKY), "", [PARIS_CALL, TRICKY_CALL]),
        (f"I look.\n{tagged(PARIS)}\n", "I look.\n", [PARIS_CALL]),
        (f"a{tagged(PARIS)} b {tagged(LLAMA)}", "a b ", [PARIS_CALL, LLAMA_CALL]),
        (f"<tool_call>{PARIS}", "", [PARIS_CALL]),
        (f"<tool_call>{PARIS}</tool_", "", [PARIS_CALL]),
        (f"the <tool_call> tag, then {tagged(PARIS)}", "the <tool_call> tag, then ", [PARIS_CALL]),
    ],
)
def test_hermes(text: str, content: str, calls: list[ToolCall]) -> None:
    assert HermesToolParser().parse(text) == (content, calls)


@pytest.mark.parametrize(
    "body",
    [
        "{oops}",
        '{"name": "f", "arguments": {"a": }}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": 01}}',
        '{"name": "f", "arguments": {"a": "\\x"}}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "f", "arguments": {"a": 1}',
        '{"name": "f", "arguments": {"a": 1}}}',
        '{"name": "f", "arguments": "text"}',
        '{"name": "f", "arguments": null}',
        '{"name": "f"}',
        '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"arguments": {}}',
        "[1]",
        "5",
        '"f"',
        "",
        '{"name": "f", "arguments": ' + '{"a":' * 5000 + "1" + "}" * 5001,
    ],
)
def test_a_malformed_call_is_content_and_the_next_one_a_call(body: str) -> None:
    broken = tagged(body)
    assert HermesToolParser().parse(broken) == (broken, [])
    content, calls = HermesToolParser().parse(f"{broken}{tagged(PARIS)}")
    assert (content, calls) == (broken, [PARIS_CALL])
    if not body.endswith("}}}"):  # without tags, what follows a call is content of its own
        assert JsonToolParser().parse(body) == (body, [])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (PARIS, "", [PARIS_CALL]),
        (f" \n{LLAMA}\n", "", [LLAMA_CALL]),
        (f"<|python_tag|>{LLAMA}; {PARIS}", "", [LLAMA_CALL, PARIS_CALL]),
        (f"[{LLAMA}, {TRICKY}]", "", [LLAMA_CALL, TRICKY_CALL]),
        (f"[{LLAMA}, 5]", ", 5]", [LLAMA_CALL]),
        (f"{LLAMA} and so on {PARIS}", f" and so on {PARIS}", [LLAMA_CALL]),
        (f"Sure: {LLAMA}", f"Sure: {LLAMA}", []),
        ('{"name": "Bob", "age": 7}', '{"name": "Bob", "age": 7}', []),
        ("3.14", "3.14", []),
        ("  [] ", "  [] ", []),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
        ("<|python", "<|python", []),
    ],
)
def test_json(text: str, content: str, calls: list[ToolCall]) -> None:
    assert JsonToolParser().parse(text) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"[{LLAMA}]", "", [LLAMA_CALL]),
        ('[\n {"name":"g","parameters":{"a":[{}]}} ,\n' + f"{LLAMA}\n]\n", "",
         [ToolCall("g", '{"a":[{}]}'), LLAMA_CALL]),
        ('[{"name":"g","parameters":{"a": "cut', "", [ToolCall("g", '{"a": "cut')]),
        ('[{"name":"g","param', '[{"name":"g","param', []),
        ("", "", []),
    ],
)  # fmt: skip
def test_required(text: str, content: str, calls: list[ToolCall]) -> None:
    assert RequiredToolParser().parse(text) == (content, calls)


def test_named_is_the_arguments_alone() -> None:
    assert NamedToolParser("f").parse('{"a": 1}') == ("", [ToolCall("f", '{"a": 1}')])
    assert NamedToolParser("f").parse("") == ("", [])


def feed_all(parser: ToolParser, pieces: Sequence[str]) -> tuple[str, list[ToolCallDelta]]:
    parts = [*map(parser.feed, pieces), parser.finish()]
    return "".join(part.content for part in parts), [d for part in parts for d in part.calls]


def named_parser() -> ToolParser:
    return NamedToolParser("f")


PARSERS = [HermesToolParser, JsonToolParser, RequiredToolParser, named_parser]
FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<tool_", "<", ">", "<|python_tag|>", PARIS, TRICKY, LLAMA,
    '{"name": "f", "parameters": {"a": ', "}", "{", "[", "]", '"', "\\", "\\u00e9", ",", ";", ":",
    " ", "\n", "\u3000", "text", "日本", "🗼", "1", "NaN",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join)


@pytest.mark.parametrize("make", PARSERS)
@given(data=st.data(), text=texts)
def test_any_cutting_gives_the_same(
    make: Callable[[], ToolParser], data: st.DataObject, text: str
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for cutting in (pieces, list(text)):
        content, deltas = feed_all(make(), cutting)
        assert (content, join_calls(deltas)) == make().parse(text)


@pytest.mark.parametrize("make", [HermesToolParser, JsonToolParser])
@given(text=texts)
def test_calls_are_valid_and_nothing_is_lost(make: Callable[[], ToolParser], text: str) -> None:
    content, calls = make().parse(text)
    for call in calls:
        assert isinstance(json.loads(call.arguments), dict)
        assert call.arguments in text
    if not calls:
        assert content == text
    kept = sorted("".join(content.split()))
    assert not [char for char in set(kept) if kept.count(char) > text.count(char)]


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
calls_made = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.dictionaries(st.text(max_size=3), values)),
    min_size=1,
    max_size=3,
)


@given(calls=calls_made, is_ascii=st.booleans())
def test_every_valid_call_is_found(
    calls: list[tuple[str, dict[str, object]]], is_ascii: bool
) -> None:
    def dump(value: object) -> str:
        return json.dumps(value, ensure_ascii=is_ascii)

    expected = [ToolCall(name, dump(arguments)) for name, arguments in calls]
    objects = [{"name": name, "parameters": arguments} for name, arguments in calls]
    listed = dump(objects)
    assert HermesToolParser().parse(tagged(*map(dump, objects))) == ("", expected)
    assert JsonToolParser().parse(listed) == ("", expected)
    assert JsonToolParser().parse("; ".join(map(dump, objects))) == ("", expected)
    assert RequiredToolParser().parse(listed) == ("", expected)


@pytest.mark.parametrize("make", [RequiredToolParser, named_parser])
def test_constrained_arguments_stream(make: Callable[[], ToolParser]) -> None:
    is_named = make is named_parser
    text = '{"a": "bc"}' if is_named else '[{"name": "f", "parameters": {"a": "bc"}}]'
    _, deltas = feed_all(make(), list(text))
    assert deltas[0] == ToolCallDelta(0, "f")
    assert [delta.arguments for delta in deltas[1:]] == list('{"a": "bc"}')


def test_hermes_holds_back_no_more_than_may_be_a_tag() -> None:
    parser = HermesToolParser()
    assert parser.feed("a <").content == "a "
    assert parser.feed("tool_call").content == ""
    assert parser.feed(" b").content == "<tool_call b"
    assert parser.feed("<tool_call>{").content == ""
    assert parser.feed("x").content == "<tool_call>{x"


def test_long_arguments_in_small_pieces_take_linear_work() -> None:
    text = tagged(json.dumps({"name": "write", "arguments": {"text": 'a "b" \\ {' * 20_000}}))
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    _, deltas = feed_all(HermesToolParser(), pieces)
    assert len(deltas[1].arguments) > 200_000


@pytest.mark.parametrize("name", ["hermes", "json", "llama3_json"])
def test_every_flag_value_has_a_parser(name: str) -> None:
    text = tagged(PARIS) if name == "hermes" else PARIS
    assert tool_parser_class(name)().parse(text) == ("", [PARIS_CALL])
