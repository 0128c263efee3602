"""Tool parsers by their --tool-call-parser name, as vLLM has them; `json` is our own."""

from __future__ import annotations

from collections.abc import Mapping

from engine.server.parsers.tool_calls.base import ToolParser
from engine.server.parsers.tool_calls.deepseek import DeepSeekToolParser, KimiToolParser
from engine.server.parsers.tool_calls.gemma import FunctionGemmaToolParser, GemmaToolParser
from engine.server.parsers.tool_calls.harmony_calls import HarmonyToolParser
from engine.server.parsers.tool_calls.hermes import (
    GraniteToolParser,
    HermesToolParser,
    HunyuanToolParser,
)
from engine.server.parsers.tool_calls.invoke_calls import (
    DeepSeekXmlToolParser,
    MiniMaxToolParser,
)
from engine.server.parsers.tool_calls.json_calls import JsonToolParser
from engine.server.parsers.tool_calls.mistral import MistralToolParser
from engine.server.parsers.tool_calls.pythonic import Lfm2ToolParser, PythonicToolParser
from engine.server.parsers.tool_calls.xml_calls import (
    GlmToolParser,
    QwenXmlToolParser,
    SeedOssToolParser,
)

TOOL_PARSERS: Mapping[str, type[ToolParser]] = {
    "deepseek_v3": DeepSeekToolParser,
    "deepseek_v31": DeepSeekToolParser,
    "deepseek_v32": DeepSeekXmlToolParser,
    "deepseek_v4": DeepSeekXmlToolParser,
    "functiongemma": FunctionGemmaToolParser,
    "gemma4": GemmaToolParser,
    "glm45": GlmToolParser,
    "glm47": GlmToolParser,
    "granite": GraniteToolParser,
    "granite4": HermesToolParser,
    "hermes": HermesToolParser,
    "hunyuan_a13b": HunyuanToolParser,
    "json": JsonToolParser,
    "kimi_k2": KimiToolParser,
    "lfm2": Lfm2ToolParser,
    "llama3_json": JsonToolParser,
    "llama4_json": JsonToolParser,
    "llama4_pythonic": PythonicToolParser,
    "mimo": QwenXmlToolParser,
    "minimax_m2": MiniMaxToolParser,
    "mistral": MistralToolParser,
    "openai": HarmonyToolParser,
    "pythonic": PythonicToolParser,
    "qwen3_coder": QwenXmlToolParser,
    "qwen3_xml": QwenXmlToolParser,
    "seed_oss": SeedOssToolParser,
}


def tool_parser_class(name: str) -> type[ToolParser]:
    """The parser of a flag's value."""
    return TOOL_PARSERS[name]
