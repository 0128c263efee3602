"""Tool calls in the form of every family: whole, cut anywhere, among text, broken."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parser_choice import TOOL_PARSER_NAMES
from engine.server.parsers.reasoning import REASONING_PARSERS, Start
from engine.server.parsers.tool_calls import TOOL_PARSERS, tool_parser_class
from engine.server.parsers.tool_calls.base import ToolCall, join_calls
from tests.server.parsers.pieces import cut
from tests.server.parsers.tool_forms import (
    CALLS,
    FILE,
    FORMS,
    NOTHING,
    ONLY_AT_THE_START,
    PARIS,
    SCHEMAS,
    Call,
    Writer,
)

each_form = pytest.mark.parametrize(
    ("name", "write"), FORMS, ids=[f"{name}-{write.__name__}" for name, write in FORMS]
)


def read(name: str, pieces: Sequence[str]) -> tuple[str, list[ToolCall]]:
    parser = tool_parser_class(name)(SCHEMAS)
    parts = [*map(parser.feed, pieces), parser.finish()]
    return "".join(part.content for part in parts), join_calls(
        [delta for part in parts for delta in part.calls]
    )


def values_of(calls: Sequence[ToolCall]) -> list[Call]:
    return [(call.name, json.loads(call.arguments)) for call in calls]


def test_every_name_has_a_parser_and_a_form() -> None:
    assert set(TOOL_PARSERS) == set(TOOL_PARSER_NAMES) == {name for name, _ in FORMS}


@each_form
@pytest.mark.parametrize("calls", [[PARIS], [NOTHING], [FILE], list(CALLS), [PARIS, PARIS]])
def test_the_calls_of_a_family_are_found(name: str, write: Writer, calls: list[Call]) -> None:
    content, found = read(name, [write(calls)])
    assert (content, values_of(found)) == ("", calls)


@each_form
def test_content_stands_before_calls(name: str, write: Writer) -> None:
    said = "I look < it [up] {now}.\n"
    text = said + write([PARIS, NOTHING])
    if name == "openai":
        text = f"<|channel|>final<|message|>{said}<|end|><|start|>assistant" + write([PARIS])
    content, found = read(name, [text])
    if name in ONLY_AT_THE_START - {"openai"}:
        assert (content, found) == (text, [])
    else:
        assert content == said
        assert values_of(found)[0] == PARIS


@each_form
def test_a_thousand_cuts_change_nothing(name: str, write: Writer) -> None:
    dice = random.Random(f"{name} {write.__name__}")
    said = "" if name in ONLY_AT_THE_START else "One <moment>, [please].\n\n"
    text = said + write(CALLS) + "\n"
    whole = read(name, [text])
    assert values_of(whole[1]) == list(CALLS)
    for _ in range(1000):
        places = [dice.randrange(len(text)) for _ in range(dice.randrange(1, 9))]
        assert read(name, cut(text, places)) == whole
    assert read(name, list(text)) == whole


@each_form
def test_an_answer_that_ends_anywhere_reads_the_same_in_pieces(name: str, write: Writer) -> None:
    text = write([PARIS, FILE])
    for end in range(0, len(text), 3):
        whole = read(name, [text[:end]])
        assert read(name, list(text[:end])) == whole
        for call in whole[1]:
            assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
    ("reasoning", "name"),
    [
        ("qwen3", "hermes"),
        ("qwen3", "qwen3_coder"),
        ("glm45", "glm45"),
        ("deepseek_r1", "deepseek_v3"),
        ("deepseek_v3", "deepseek_v31"),
        ("kimi_k2", "kimi_k2"),
        ("mistral", "mistral"),
        ("gemma4", "gemma4"),
        ("seed_oss", "seed_oss"),
        ("openai_gptoss", "openai"),
    ],
)
def test_a_thousand_cuts_of_a_thought_and_calls(reasoning: str, name: str) -> None:
    tags = REASONING_PARSERS[reasoning]
    write = dict(reversed(FORMS))[name]
    text = f"{tags.opening}{tags.label}\nIf a < b: <think so>.{tags.closing}{write(CALLS)}"

    def read_both(pieces: Sequence[str]) -> tuple[str, str, list[ToolCall]]:
        splitter = tags.splitter(Start.OPEN_QUESTION, keeps_calls=True)
        parts = [*map(splitter.feed, pieces), splitter.finish()]
        content, calls = read(name, [part.content for part in parts])
        return "".join(part.reasoning for part in parts).strip(), content, calls

    whole = read_both([text])
    assert whole[:2] == ("If a < b: <think so>.", "")
    assert values_of(whole[2]) == list(CALLS)
    dice = random.Random(reasoning)
    for _ in range(1000):
        places = [dice.randrange(len(text)) for _ in range(dice.randrange(1, 9))]
        assert read_both(cut(text, places)) == whole


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=now>", "<function=", "</function>", "<parameter=a>",
    "</parameter>", "<seed:tool_call>", "</seed:tool_call>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", "now", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[{", "}]",
    '{"name": "now", "arguments": {}}', "{}", "{", "}", "[", "]", "[now()]", "[now(a=", "(", ")",
    "<|python_start|>", "<|python_end|>", "<|tool_call>", "<tool_call|>", "call:now{", '<|"|>',
    "a:1", ",", ":", "<start_function_call>", "<end_function_call>", "<escape>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "function", "```json\n", "\n```", "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>", "functions.now:0", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|start|>", "assistant", "<|channel|>", "analysis", "commentary", " to=functions.now",
    '<invoke name="now">', "</invoke>", '<parameter name="a">', "<minimax:tool_call>",
    '<｜DSML｜invoke name="now">', "</｜DSML｜invoke>", "</｜DSML｜parameter>",
    '<｜DSML｜parameter name="a" string="true">',
    "<|tool_call|>", "<tool_calls>", "</tool_calls>",
    "<|tool_call_start|>", "<|tool_call_end|>", "<|message|>",
    "<|call|>", "<|end|>", "'", '"', "\\", " ", "\n", "x", "é🗼", "1e999", "<",
]  # fmt: skip


@pytest.mark.parametrize("name", TOOL_PARSERS)
@given(data=st.data())
def test_no_cut_of_anything_changes_it(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS), max_size=14)))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    whole = read(name, [text])
    assert read(name, cut(text, places)) == whole
    assert read(name, list(text)) == whole
    for call in whole[1]:
        assert call.name
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\nno end"),
        ("qwen3_coder", "<tool_call>{oops}</tool_call>"),
        ("glm45", "the <tool_call> tag, then <arg_key>x"),
        ("mistral", '[TOOL_CALLS] [{"name": "now", "arguments": 3}]'),
        ("mistral", "[TOOL_CALLS]now[ARGS]{oops}"),
        ("pythonic", "[now(1)]"),
        ("pythonic", "[now(a=open('x'))]"),
        ("pythonic", "[now(a=1e999)]"),
        ("pythonic", "[1, 2]"),
        ("pythonic", "[now(a=1), 5]"),
        ("gemma4", '<|tool_call>call:now{a:<|"|>x}<tool_call|>'),
        ("gemma4", "<|tool_call>call:now{a 1}<tool_call|>"),
        ("gemma4", "<|tool_call>call:now" + "{a:" * 99 + "1" + "}" * 99 + "<tool_call|>"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{oops}<｜tool▁call▁end｜>"),
        ("minimax_m2", '<invoke name="now"><parameter name="a">x</invoke>'),
        ("lfm2", "<|tool_call_start|>[now(1)]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>now()<|tool_call_end|>"),
        ("granite", '<|tool_call|>[{"name": "now"}]'),
        ("kimi_k2", "<|tool_call_begin|>now<|tool_call_argument_begin|>[1]<|tool_call_end|>"),
    ],
)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    assert read(name, [text]) == (text, [])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # No closing tag: the token that ends an answer is not shown.
        ("gemma4", "<|tool_call>call:now{}", [NOTHING]),
        ("functiongemma", "<start_function_call>call:now{}", [NOTHING]),
        ("deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}", [NOTHING]),
        ("kimi_k2", "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}", [NOTHING]),
        ("openai", "<|channel|>commentary to=functions.now<|message|>{}", [NOTHING]),
        ("openai", "<|channel|>analysis to=functions.now code<|message|>{}", [NOTHING]),
        ("openai", "<|channel|>commentary to=functions.now<|message|><|call|>", [NOTHING]),
        ("qwen3_coder", "<tool_call><function=now></function>", [NOTHING]),
        ("qwen3_coder", "<tool_call><function=now>\n{}\n</function></tool_call>", [NOTHING]),
        (
            "qwen3_coder",
            "<tool_call><function=now></function><function=now></function></tool_call>",
            [NOTHING, NOTHING],
        ),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=a>\n<b></parameter> x</function>\n</parameter>\n"
            "</function>\n</tool_call>",
            [("f", {"a": "<b></parameter> x</function>"})],
        ),
        ("glm45", "<tool_call>now\n</tool_call>", [NOTHING]),
        ("llama4_pythonic", "[now()]<|python_end|>", [NOTHING]),
        ("pythonic", "[f(a=-1, b=(1, true), c={'d': None})]",
         [("f", {"a": -1, "b": [1, True], "c": {"d": None}})]),
    ],
)  # fmt: skip
def test_what_models_leave_out(name: str, text: str, expected: list[Call]) -> None:
    content, calls = read(name, [text])
    assert (content, values_of(calls)) == ("", expected)


@each_form
def test_long_arguments_in_small_pieces_take_linear_work(name: str, write: Writer) -> None:
    long: Call = ("write_file", {"path": "a", "text": "if a < b [x] {y} \\ 'z' (w)\n" * 4000})
    text = write([long])
    content, calls = read(name, [text[at : at + 5] for at in range(0, len(text), 5)])
    assert (content, values_of(calls)) == ("", [long])


def test_ids_are_what_chat_templates_take() -> None:
    mistral = tool_parser_class("mistral")()
    first, second = (mistral.new_call_id("now", index) for index in range(2))
    assert first != second
    assert len(first) == 9
    assert first.isalnum()
    assert tool_parser_class("kimi_k2")().new_call_id("now", 3) == "functions.now:3"
