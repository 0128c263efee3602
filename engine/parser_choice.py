"""Which parsers of thoughts and tool calls fit a model: told by its chat template and its config.

Names are those of vLLM's --reasoning-parser and --tool-call-parser. The tables know more families
than this engine reads: what a model writes is the same whichever engine runs it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

AUTO, NONE = "auto", "none"

TOOL_PARSER_NAMES = (
    *("deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "functiongemma", "gemma4"),
    *("glm45", "glm47", "granite", "granite4", "hermes", "hunyuan_a13b", "json", "kimi_k2"),
    *("lfm2", "llama3_json", "llama4_json", "llama4_pythonic", "mimo", "minimax_m2", "mistral"),
    *("openai", "pythonic", "qwen3_coder", "qwen3_xml", "seed_oss"),
)
"""Those of this engine; `json` is no name of vLLM's."""

REASONING_PARSER_NAMES = (
    *("deepseek_r1", "deepseek_v3", "gemma4", "glm45", "glm47", "hunyuan_a13b", "kimi_k2"),
    *("kimi_vl", "mimo", "minimax_m2", "mistral", "nemotron_v3", "openai_gptoss", "qwen3"),
    *("seed_oss", "step3"),
)
"""Those of this engine; `kimi_vl` is no name of vLLM's."""

Names = tuple[str, ...]
_Rows = tuple[tuple[Names, Names], ...]

# (names, best first; words that all stand in the templates of the family). First match wins.
_REASONING_SIGNS: _Rows = (
    (("openai_gptoss",), ("<|start|>", "<|channel|>", "analysis")),
    (("gemma4",), ("<|channel>",)),
    (("kimi_vl",), ("◁think▷",)),
    (("kimi_k2", "deepseek_r1"), ("<think>", "<|im_middle|>")),
    (("mistral",), ("[THINK]",)),
    (("seed_oss",), ("<seed:think>",)),
    (("minimax_m2", "deepseek_r1"), ("<think>", "]~b]")),
    (("glm45",), ("<think>", "[gMASK]")),
    (("deepseek_v3", "deepseek_r1"), ("<think>", "<｜Assistant｜>", "thinking")),
    (("deepseek_r1",), ("</think>", "<｜Assistant｜>")),
    (("hunyuan_a13b",), ("<think>", "<answer>")),
    (("nemotron_v3", "deepseek_r1"), ("<think>", "truncate_history_thinking")),
    (("qwen3",), ("<think>", "<|start_of_role|>")),
    (("ernie45", "qwen3"), ("<think>", "<response>")),
    (("granite",), ("Here is my thought process",)),
    (("cohere_command3",), ("<|START_THINKING|>",)),
    (("qwen3",), ("<think>",)),
)
_TOOL_SIGNS: _Rows = (
    (("openai",), ("<|start|>", "<|channel|>", "commentary")),
    (("gemma4",), ("<|tool_call>",)),
    (("functiongemma",), ("<start_function_call>",)),
    (("deepseek_v32",), ("｜DSML｜", "function_calls>")),
    (("deepseek_v4",), ("｜DSML｜", "tool_calls>")),
    (("deepseek_v3",), ("<｜tool▁calls▁begin｜>", "```json")),
    (("deepseek_v31",), ("<｜tool▁calls▁begin｜>",)),
    (("kimi_k2",), ("<|tool_calls_section_begin|>",)),
    (("mistral",), ("[TOOL_CALLS]",)),
    (("seed_oss",), ("<seed:tool_call>",)),
    (("minimax_m2",), ("<minimax:tool_call>",)),
    (("longcat",), ("<longcat_tool_call>",)),
    (("lfm2",), ("<|tool_call_start|>",)),
    (("cohere_command3",), ("<|START_ACTION|>",)),
    (("granite",), ("<|tool_call|>", "<|start_of_role|>")),
    (("internlm",), ("<|action_start|>", "<|plugin|>")),
    (("step3",), ("<｜tool_calls_begin｜>", "steptml")),
    (("olmo3",), ("<function_calls>", "<functions>")),
    (("hunyuan_a13b",), ("<tool_calls>", "<answer>")),
    (("glm47", "glm45"), ("<tool_call>{function-name}<arg_key>",)),
    (("glm45",), ("<tool_call>", "<arg_key>")),
    (("qwen3_coder", "qwen3_xml"), ("<tool_call>", "<function=")),
    (("granite4", "hermes"), ("<tool_call>", "<|start_of_role|>")),
    ((), ("<tool_calls>[",)),  # a list in tags of its own, which no parser reads
    (("hermes",), ("<tool_call>",)),
    (("llama4_pythonic", "pythonic"), ("<|header_start|>", "func_name1(")),
    (("llama4_json", "llama3_json"), ("<|header_start|>", "tools", '"parameters"')),
    (("llama4_pythonic", "pythonic"), ("<|header_start|>", "<|python_start|>", "tools")),
    (("pythonic",), ("tools", "func_name1(")),
    (("llama3_json",), ("tools", "ipython", '"parameters"')),
)
_OUR_NAMES = {"json", "kimi_vl"}


def _vllm_names(ours: Names, rows: _Rows) -> frozenset[str]:
    return frozenset(ours).union(*(names for names, _ in rows)) - _OUR_NAMES


VLLM_TOOL_PARSER_NAMES = _vllm_names(TOOL_PARSER_NAMES, _TOOL_SIGNS)
VLLM_REASONING_PARSER_NAMES = _vllm_names(REASONING_PARSER_NAMES, _REASONING_SIGNS)
"""Those of vLLM's that are known here."""

# By config.json's model_type, where a template takes tools or thoughts and shows no marks of them.
_REASONING_TYPES = {"gpt_oss": "openai_gptoss", "seed_oss": "seed_oss"}
_TOOL_TYPES = {
    "gpt_oss": "openai",
    "kimi_k2": "kimi_k2",
    "seed_oss": "seed_oss",
    "glm4_moe": "glm45",
}


@dataclass(frozen=True, slots=True)
class ModelSigns:
    """What tells a model's form: the chat template, the one for chats with tools where it is
    another, and config.json's model_type.
    """

    template: str | None
    tool_template: str | None = None
    model_type: str | None = None


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """A parser's name, None where there is none, and the reason for the log.

    `missing` is the name that would be right and is not known.
    """

    name: str | None
    reason: str
    missing: str | None = None


def choose_reasoning_parser(
    asked: str, signs: ModelSigns, known: Collection[str] = REASONING_PARSER_NAMES
) -> ParserChoice:
    """What --reasoning-parser means for this model and an engine that has the parsers `known`."""
    if asked != AUTO:
        return _as_asked(asked)
    return _choose(signs.template, signs, known, _REASONING_SIGNS, _REASONING_TYPES)


def choose_tool_parser(
    asked: str, signs: ModelSigns, known: Collection[str] = TOOL_PARSER_NAMES
) -> ParserChoice:
    """What --tool-call-parser means for this model and an engine that has the parsers `known`."""
    if asked != AUTO:
        return _as_asked(asked)
    template = signs.tool_template or signs.template
    types = _TOOL_TYPES if "tools" in (template or "") else {}
    return _choose(template, signs, known, _TOOL_SIGNS, types)


def _as_asked(asked: str) -> ParserChoice:
    return ParserChoice(None if asked == NONE else asked, "as asked for")


def _choose(
    template: str | None,
    signs: ModelSigns,
    known: Collection[str],
    rows: _Rows,
    types: dict[str, str],
) -> ParserChoice:
    if template is None:
        return ParserChoice(None, "the model has no chat template")
    for names, words in rows:
        if all(word in template for word in words):
            return _known_of(names, f"the chat template has {' and '.join(words)}", known)
    by_type = types.get(signs.model_type or "")
    if by_type is not None:
        return _known_of((by_type,), f"config.json says model_type {signs.model_type}", known)
    return ParserChoice(None, "the chat template shows no marks of any")


def _known_of(names: Names, reason: str, known: Collection[str]) -> ParserChoice:
    name = next((name for name in names if name in known), None)
    if name is not None:
        return ParserChoice(name, reason)
    if not names:
        return ParserChoice(None, f"{reason}, a form that has no parser")
    return ParserChoice(None, f"{reason}: {names[0]}, which this engine does not have", names[0])
