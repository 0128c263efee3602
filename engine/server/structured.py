"""The fields that ask for structured output, under OpenAI's and vLLM's names, and their checks."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from engine.core.grammar_checker import GrammarChecker
from engine.errors import RequestError
from engine.sampling_params import SamplingParams, StructuredOutputsParams
from engine.server.http.body_limits import CheckedList

_Schema = dict[str, Any] | str
_Choices = CheckedList[str]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class JsonSchemaFormat(_Part):
    """`response_format.json_schema`; the output follows it whether `strict` is set or not."""

    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_Part):
    """OpenAI's `response_format`: free text, any JSON object, or a schema's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(_Part):
    """vLLM's `structured_outputs`; what this server cannot do is refused, not ignored."""

    json_: _Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: _Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: None = None
    whitespace_pattern: None = None
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None


class StructuredFields(BaseModel):
    """The part of a request body that says what the output must look like."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: _Schema | None = None
    guided_regex: str | None = None
    guided_choice: _Choices | None = None
    guided_grammar: str | None = None


def structured_outputs_of(body: StructuredFields) -> StructuredOutputsParams | None:
    """What the output must look like; RequestError when more than one thing is asked for.

    The same structure under its new and its old name is one: clients send both, for any server.
    """
    asked = list({spec: (name, spec) for name, spec in _asked(body)}.values())
    if len(asked) > 1:
        names = ", ".join(name for name, _ in asked)
        raise RequestError(
            f"One request can follow one structure, got {len(asked)} ({names}); send one of them.",
            param=asked[1][0],
        )
    return asked[0][1] if asked else None


async def check_structured_outputs(
    grammars: GrammarChecker, body: StructuredFields, params: SamplingParams
) -> SamplingParams:
    """Refuse a structure that cannot be followed, before anything is queued."""
    for name, spec in _asked(body):
        spec = await check_grammar(grammars, spec, name)
        params = dataclasses.replace(params, structured_outputs=spec)
    return params


async def check_grammar(
    grammars: GrammarChecker, spec: StructuredOutputsParams, param: str
) -> StructuredOutputsParams:
    """`spec` as it can be queued; RequestError with the reason when it, `param`, is unusable."""
    try:
        return await grammars.check(spec)
    except ValueError as error:
        raise RequestError(
            f"{param} cannot be turned into a grammar: {error}",
            param=param,
            code="invalid_grammar",
        ) from error


def _asked(body: StructuredFields) -> list[tuple[str, StructuredOutputsParams]]:
    """Every structure that the body asks for, with the name of its field."""
    asked = []
    if body.response_format is not None:
        asked += _of_response_format(body.response_format)
    if body.structured_outputs is not None:
        asked += _of_structured_outputs(body.structured_outputs)
    old = StructuredOutputs.model_construct(
        json_=body.guided_json,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
    )
    return asked + _of_fields(old, "guided_")


def _of_response_format(form: ResponseFormat) -> list[tuple[str, StructuredOutputsParams]]:
    name = "response_format"
    if form.type == "json_object":
        return [(name, StructuredOutputsParams(json_object=True))]
    if form.type == "text":
        return []
    if form.json_schema is None:
        raise RequestError(
            "response_format of type json_schema needs json_schema={'name': ..., 'schema': ...}.",
            param="response_format.json_schema",
        )
    return [(name, StructuredOutputsParams(json=json.dumps(form.json_schema.schema_)))]


def _of_structured_outputs(
    fields: StructuredOutputs,
) -> list[tuple[str, StructuredOutputsParams]]:
    asked = _of_fields(fields, "structured_outputs.")
    if not asked:
        raise RequestError(
            "structured_outputs is empty; set one of json, regex, choice, grammar, json_object.",
            param="structured_outputs",
        )
    return asked


def _of_fields(fields: StructuredOutputs, prefix: str) -> list[tuple[str, StructuredOutputsParams]]:
    asked = []
    if fields.json_ is not None:
        name = f"{prefix}json"
        asked.append((name, StructuredOutputsParams(json=_schema_text(fields.json_, name))))
    if fields.regex is not None:
        asked.append((f"{prefix}regex", StructuredOutputsParams(regex=fields.regex)))
    if fields.choice is not None:
        name = f"{prefix}choice"
        if not fields.choice:
            raise RequestError(f"{name} is empty; give at least one text.", param=name)
        asked.append((name, StructuredOutputsParams(choice=tuple(fields.choice))))
    if fields.grammar is not None:
        asked.append((f"{prefix}grammar", StructuredOutputsParams(grammar=fields.grammar)))
    if fields.json_object:
        asked.append((f"{prefix}json_object", StructuredOutputsParams(json_object=True)))
    return asked


def _schema_text(schema: _Schema, param: str) -> str:
    """A JSON schema comes as an object or as its text."""
    if isinstance(schema, str):
        try:
            schema = from_json(schema)
        except ValueError as error:
            raise RequestError(f"{param} is not valid JSON: {error}.", param=param) from error
    if not isinstance(schema, dict):
        raise RequestError(f"{param} must be a JSON object (a schema).", param=param)
    return json.dumps(schema)
