"""Which parsers a template tells, for this engine and for another one's list of names."""

from __future__ import annotations

import pytest

from engine.args import EngineArgs
from engine.parser_choice import (
    REASONING_PARSER_NAMES,
    TOOL_PARSER_NAMES,
    ModelSigns,
    choose_reasoning_parser,
    choose_tool_parser,
)
from engine.server.parsers.reasoning import REASONING_PARSERS
from engine.server.parsers.tool_calls import TOOL_PARSERS
from tests.engine.chat_templates import FAMILIES, Family


def signs_of(family: Family) -> ModelSigns:
    return ModelSigns(family.source, model_type=family.model_type)


def test_there_are_many_families() -> None:
    assert len(FAMILIES) >= 25


@pytest.mark.parametrize("name", FAMILIES)
def test_the_template_tells_the_parsers(name: str) -> None:
    family, signs = FAMILIES[name], signs_of(FAMILIES[name])
    assert choose_reasoning_parser("auto", signs).name == family.reasoning
    assert choose_tool_parser("auto", signs).name == family.tools


@pytest.mark.parametrize("name", [name for name, one in FAMILIES.items() if one.others])
def test_a_form_that_this_engine_does_not_read_is_named(name: str) -> None:
    family, signs = FAMILIES[name], signs_of(FAMILIES[name])
    choice = choose_tool_parser("auto", signs)
    assert choice.missing == family.others[0]
    assert f"{family.others[0]}, which this engine does not have" in choice.reason
    assert choose_tool_parser("auto", signs, family.others).name == family.others[0]


def test_an_older_list_gets_the_older_name() -> None:
    signs = signs_of(FAMILIES["glm-4.7"])
    assert choose_tool_parser("auto", signs, {"glm45", "hermes"}).name == "glm45"
    assert choose_reasoning_parser("auto", signs_of(FAMILIES["minimax-m2"]), {"deepseek_r1"}).name
    assert choose_reasoning_parser("auto", signs, {"qwen3"}).name is None


def test_the_template_for_tools_is_asked_about_tools() -> None:
    qwen = FAMILIES["qwen3"].source
    signs = ModelSigns("plain <|im_start|>", tool_template=qwen)
    assert choose_tool_parser("auto", signs).name == "hermes"
    assert choose_reasoning_parser("auto", signs).name is None


def test_what_was_asked_for_is_not_doubted() -> None:
    signs = ModelSigns(None)
    assert choose_tool_parser("mistral", signs).name == "mistral"
    assert choose_tool_parser("none", signs).name is None
    assert choose_tool_parser("auto", signs).name is None
    assert choose_reasoning_parser("auto", signs).reason == "the model has no chat template"
    assert choose_reasoning_parser("none", signs_of(FAMILIES["qwen3"])).name is None


def test_every_name_is_a_parser_and_a_value_of_its_flag() -> None:
    fields = EngineArgs.__dataclass_fields__
    for flag, names, parsers in (
        ("tool_call_parser", TOOL_PARSER_NAMES, TOOL_PARSERS),
        ("reasoning_parser", REASONING_PARSER_NAMES, REASONING_PARSERS),
    ):
        assert list(names) == sorted(names)
        assert set(names) == set(parsers)
        assert set(fields[flag].metadata["choices"]) == {"auto", "none", *names}
