"""Calls written in the form of each --tool-call-parser, as its models write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Call = tuple[str, Mapping[str, Any]]

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "near": {"type": "array", "items": {"type": "string"}},
        "box": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
    "write_file": {"path": {"type": "string"}, "text": {"type": "string"}},
    "now": {},
}
PARIS: Call = ("weather", {"city": "Paris, F.", "days": 3, "exact": True, "near": ["a", "b c"]})
NOTHING: Call = ("now", {})
FILE: Call = (
    "write_file",
    {"path": "a/b.py", "text": "def f(x):\n    return [x, {1: 'é 🗼'}]  # <a> & </b> 3.0\n\n"},
)
NESTED: Call = ("weather", {"city": "12", "box": {"a": {"b": [1, -2.5, None, "x"]}}})
CALLS = (PARIS, NOTHING, FILE, NESTED)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bare(value: object) -> str:
    """As a chat template writes a value that has no quotes of its own."""
    return value if isinstance(value, str) else _json(value)


def hermes(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>\n{_json({'name': name, 'arguments': values})}\n</tool_call>"
        for name, values in calls
    )


def qwen_xml(calls: Sequence[Call], outer: str = "tool_call") -> str:
    blocks = []
    for name, values in calls:
        lines = [
            f"<parameter={key}>\n{_bare(value)}\n</parameter>" for key, value in values.items()
        ]
        body = "\n".join([f"<function={name}>", *lines, "</function>"])
        blocks.append(f"<{outer}>\n{body}\n</{outer}>")
    return "\n".join(blocks)


def qwen_xml_without_outer(calls: Sequence[Call]) -> str:
    return qwen_xml(calls).replace("<tool_call>\n", "")


def seed_oss(calls: Sequence[Call]) -> str:
    return qwen_xml(calls, "seed:tool_call")


def glm45(calls: Sequence[Call], line: str = "\n") -> str:
    blocks = []
    for name, values in calls:
        pairs = [
            f"<arg_key>{key}</arg_key>{line}<arg_value>{_bare(value)}</arg_value>{line}"
            for key, value in values.items()
        ]
        blocks.append(f"<tool_call>{name}{line}{''.join(pairs)}</tool_call>")
    return "\n".join(blocks)


def glm47(calls: Sequence[Call]) -> str:
    return glm45(calls, "")


def mistral_list(calls: Sequence[Call]) -> str:
    listed = [{"name": name, "arguments": values, "id": "a1B2c3D4e"} for name, values in calls]
    return f"[TOOL_CALLS] {_json(listed)}"


def mistral(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(values)}" for name, values in calls)


def mistral_with_ids(calls: Sequence[Call]) -> str:
    return "".join(
        f"[TOOL_CALLS]{name}[CALL_ID]a1B2c3D4e[ARGS]{_json(values)}" for name, values in calls
    )


def mistral_bare(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}{_json(values)}" for name, values in calls)


def pythonic(calls: Sequence[Call]) -> str:
    written = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"
        for name, values in calls
    ]
    return f"[{', '.join(written)}]"


def llama4(calls: Sequence[Call]) -> str:
    return f"<|python_start|>{pythonic(calls)}<|python_end|>"


def _gemma_value(value: object, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        pairs = (f"{key}:{_gemma_value(inner, quote)}" for key, inner in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma_value(inner, quote) for inner in value) + "]"
    return _json(value)


def gemma4(calls: Sequence[Call]) -> str:
    quote = '<|"|>'
    return "".join(
        f"<|tool_call>call:{name}{_gemma_value(values, quote)}<tool_call|>"
        for name, values in calls
    )


def functiongemma(calls: Sequence[Call]) -> str:
    quote = "<escape>"
    return "".join(
        f"<start_function_call>call:{name}{_gemma_value(values, quote)}<end_function_call>"
        for name, values in calls
    )


def _deepseek(blocks: Sequence[str], between: str) -> str:
    marked = [f"<｜tool▁call▁begin｜>{block}<｜tool▁call▁end｜>" for block in blocks]
    return f"<｜tool▁calls▁begin｜>{between.join(marked)}<｜tool▁calls▁end｜>"


def deepseek_v3(calls: Sequence[Call]) -> str:
    return _deepseek(
        [f"function<｜tool▁sep｜>{name}\n```json\n{_json(values)}\n```" for name, values in calls],
        "\n",
    )


def deepseek_v31(calls: Sequence[Call]) -> str:
    return _deepseek([f"{name}<｜tool▁sep｜>{_json(values)}" for name, values in calls], "")


def kimi_k2(calls: Sequence[Call]) -> str:
    marked = [
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
        f"{_json(values)}<|tool_call_end|>"
        for index, (name, values) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(marked)}<|tool_calls_section_end|>"


def harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        f"{_json(values)}<|call|>"
        for name, values in calls
    )


def harmony_addressed_first(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f" to=functions.{name}<|channel|>commentary json<|message|>{_json(values)}<|call|>"
        for name, values in calls
    )


def json_objects(calls: Sequence[Call]) -> str:
    return "; ".join(_json({"name": name, "parameters": values}) for name, values in calls)


def json_list(calls: Sequence[Call]) -> str:
    return _json([{"name": name, "parameters": values} for name, values in calls])


def granite(calls: Sequence[Call]) -> str:
    return f"<|tool_call|>{_json([{'name': name, 'arguments': values} for name, values in calls])}"


def hunyuan(calls: Sequence[Call]) -> str:
    listed = _json([{"name": name, "arguments": values} for name, values in calls])
    return f"<tool_calls>{listed}</tool_calls>"


def lfm2(calls: Sequence[Call]) -> str:
    return f"<|tool_call_start|>{pythonic(calls)}<|tool_call_end|>"


def minimax(calls: Sequence[Call]) -> str:
    blocks = []
    for name, values in calls:
        lines = [f'<parameter name="{key}">{_bare(one)}</parameter>' for key, one in values.items()]
        blocks.append("\n".join([f'<invoke name="{name}">', *lines, "</invoke>"]))
    return "\n".join(["<minimax:tool_call>", *blocks, "</minimax:tool_call>"])


def deepseek_v32(calls: Sequence[Call], outer: str = "function_calls") -> str:
    mark = "｜DSML｜"
    blocks = []
    for name, values in calls:
        lines = [
            f'<{mark}parameter name="{key}" string="{_json(isinstance(one, str))}">{_bare(one)}'
            f"</{mark}parameter>"
            for key, one in values.items()
        ]
        blocks.append("\n".join([f'<{mark}invoke name="{name}">', *lines, f"</{mark}invoke>"]))
    return "\n".join([f"<{mark}{outer}>", *blocks, f"</{mark}{outer}>"])


def deepseek_v4(calls: Sequence[Call]) -> str:
    return deepseek_v32(calls, "tool_calls")


Writer = Callable[[Sequence[Call]], str]

FORMS: tuple[tuple[str, Writer], ...] = (
    ("hermes", hermes),
    ("qwen3_coder", qwen_xml),
    ("qwen3_xml", qwen_xml_without_outer),
    ("mimo", qwen_xml),
    ("seed_oss", seed_oss),
    ("glm45", glm45),
    ("glm47", glm47),
    ("mistral", mistral_list),
    ("mistral", mistral),
    ("mistral", mistral_with_ids),
    ("mistral", mistral_bare),
    ("pythonic", pythonic),
    ("llama4_pythonic", pythonic),
    ("llama4_pythonic", llama4),
    ("gemma4", gemma4),
    ("functiongemma", functiongemma),
    ("deepseek_v3", deepseek_v3),
    ("deepseek_v31", deepseek_v31),
    ("deepseek_v32", deepseek_v32),
    ("deepseek_v4", deepseek_v4),
    ("kimi_k2", kimi_k2),
    ("minimax_m2", minimax),
    ("granite", granite),
    ("granite4", hermes),
    ("hunyuan_a13b", hunyuan),
    ("lfm2", lfm2),
    ("openai", harmony),
    ("openai", harmony_addressed_first),
    ("llama3_json", json_objects),
    ("llama4_json", json_list),
    ("json", json_list),
)
"""A parser's name and one of the forms that it reads."""

ONLY_AT_THE_START = {"llama3_json", "llama4_json", "json", "pythonic", "llama4_pythonic", "openai"}
"""Content before a call makes it content too; before one of `openai` it has a head of its own."""
