"""Tool parsers by their --tool-call-parser name."""

from __future__ import annotations

from engine.server.parsers.tool_calls.hermes import HermesToolParser
from engine.server.parsers.tool_calls.json_calls import JsonToolParser


def tool_parser_class(name: str) -> type[HermesToolParser] | type[JsonToolParser]:
    """The parser of a flag's value; `json` is the same as vLLM's `llama3_json`."""
    return HermesToolParser if name == "hermes" else JsonToolParser
