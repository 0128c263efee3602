"""What `tools` and `tool_choice` mean for one request: the prompt, the grammar, and the parser."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.grammar_checker import GrammarChecker
from engine.errors import RequestError
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from engine.server.parsers.tool_calls import tool_parser_class
from engine.server.parsers.tool_calls.base import ParameterSchemas, ToolParser
from engine.server.parsers.tool_calls.constrained import NamedToolParser, RequiredToolParser
from engine.server.structured import check_grammar
from engine.server.tool_fields import FunctionDefinition, ToolDefinition

ToolChoice = str | dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """How one request deals with tools; the default is a request without any.

    `for_template` are the definitions that the prompt shows. `make_parser` makes the parser of one
    choice. `schema` is what the whole answer must follow. `max_calls` is how many calls of an
    answer are kept. With `ends_with_stop` the finish reason stays `stop`, which OpenAI sends when
    the request itself named the function.
    """

    for_template: list[dict[str, Any]] | None = None
    make_parser: Callable[[], ToolParser] | None = None
    schema: str | None = None
    max_calls: int | None = None
    keeps_special_tokens: bool = False
    ends_with_stop: bool = False

    @property
    def reads_form(self) -> bool:
        """Whether calls are read in the model's own form, not held to a grammar."""
        return self.make_parser is not None and self.schema is None

    async def apply(self, grammars: GrammarChecker, params: SamplingParams) -> SamplingParams:
        """Add what the tools ask for; RequestError when that cannot be followed."""
        if self.keeps_special_tokens:
            params = dataclasses.replace(params, skip_special_tokens=False)
        if self.schema is None:
            return params
        if params.structured_outputs is not None:
            raise RequestError(
                "tool_choice `required` or a named function already fixes the structure of the "
                "answer; leave out response_format and structured_outputs.",
                param="tool_choice",
            )
        spec = await check_grammar(grammars, StructuredOutputsParams(json=self.schema), "tools")
        return dataclasses.replace(params, structured_outputs=spec)


def plan_tools(
    tools: Sequence[ToolDefinition],
    choice: ToolChoice | None,
    *,
    is_parallel: bool,
    auto_parser: str | None,
) -> ToolPlan:
    """The plan of a request; `auto_parser` is the server's --tool-call-parser, if enabled."""
    name = _named_function(choice)
    if not tools and (name is not None or choice == "required"):
        raise RequestError("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    if not tools or choice == "none":
        return ToolPlan()
    for_template = template_tools(tools)
    max_calls = None if is_parallel else 1
    if name is not None:
        return _named_plan(for_template, _find_function(tools, name))
    if choice == "required":
        return ToolPlan(
            for_template=for_template,
            make_parser=RequiredToolParser,
            schema=json.dumps(_calls_schema(tools, max_calls)),
        )
    return _auto_plan(tools, max_calls, auto_parser)


def template_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """The definitions as a chat template gets them."""
    return [tool.model_dump(exclude_none=True) for tool in tools]


def _named_plan(for_template: list[dict[str, Any]], function: FunctionDefinition) -> ToolPlan:
    return ToolPlan(
        for_template=for_template,
        make_parser=lambda: NamedToolParser(function.name),
        schema=json.dumps(_arguments_schema(function, "#")),
        ends_with_stop=True,
    )


def _auto_plan(
    tools: Sequence[ToolDefinition], max_calls: int | None, parser: str | None
) -> ToolPlan:
    if parser is None:
        raise RequestError(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be '
            "set; this server knows no parser for its model's calls. It takes `tools` with a "
            "tool_choice of `required`, `none` or a named function.",
            param="tools",
        )
    kind = tool_parser_class(parser)
    schemas = _parameter_schemas(tools)
    return ToolPlan(
        for_template=template_tools(tools),
        make_parser=lambda: kind(schemas),
        max_calls=max_calls,
        keeps_special_tokens=kind.NEEDS_SPECIAL_TOKENS,
    )


def _parameter_schemas(tools: Sequence[ToolDefinition]) -> ParameterSchemas:
    """Of each function the schemas of its parameters; one that is no object tells nothing."""
    schemas: dict[str, dict[str, Any]] = {}
    for tool in tools:
        properties = (tool.function.parameters or {}).get("properties")
        known = properties.items() if isinstance(properties, Mapping) else ()
        schemas[tool.function.name] = {
            name: schema for name, schema in known if isinstance(schema, Mapping)
        }
    return schemas


def _named_function(choice: ToolChoice | None) -> str | None:
    """The function that a tool_choice names; RequestError when it is none of the four forms."""
    if choice in (None, "none", "auto", "required"):
        return None
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return name
    raise RequestError(
        "tool_choice must be none, auto, required or "
        f'{{"type": "function", "function": {{"name": ...}}}}, got {json.dumps(choice)}.',
        param="tool_choice",
    )


def _find_function(tools: Sequence[ToolDefinition], name: str) -> FunctionDefinition:
    for tool in tools:
        if tool.function.name == name:
            return tool.function
    known = ", ".join(tool.function.name for tool in tools)
    raise RequestError(
        f"tool_choice names the function {name!r}, which is not in `tools` ({known}).",
        param="tool_choice",
    )


def _calls_schema(tools: Sequence[ToolDefinition], max_calls: int | None) -> dict[str, Any]:
    """A list of calls, at least one."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "parameters": _arguments_schema(
                    tool.function, f"#/items/anyOf/{index}/properties/parameters"
                ),
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for index, tool in enumerate(tools)
    ]
    limit = {} if max_calls is None else {"maxItems": max_calls}
    return {"type": "array", "minItems": 1, **limit, "items": {"anyOf": calls}}


def _arguments_schema(function: FunctionDefinition, place: str) -> dict[str, Any]:
    """The schema of a function's arguments, to stand at `place` of a larger schema."""
    if not function.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    moved = _move_references(function.parameters, place)
    moved.pop("$id", None)  # it would make references relative to itself again
    return {"type": "object", **moved}


def _move_references(schema: Any, place: str) -> Any:
    """A copy whose references into itself (`#/$defs/..`) hold at `place`, too."""
    if isinstance(schema, list):
        return [_move_references(entry, place) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _move_references(value, place)
        for key, value in schema.items()
    }
