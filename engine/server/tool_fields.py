"""The fields of a request body that are about tools: definitions, and calls of earlier turns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import from_json


def _parse_arguments(value: object) -> object:
    """OpenAI sends arguments as JSON text; chat templates expect the object."""
    if isinstance(value, str):
        value = from_json(value, allow_inf_nan=False) if value.strip() else {}
    if not isinstance(value, dict):
        raise ValueError("the arguments of a call must be a JSON object")
    return value


class FunctionDefinition(BaseModel):
    """What a function is for, and the JSON schema of its arguments."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolDefinition(BaseModel):
    """A function that the model may call: an entry of `tools`."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"] = "function"
    function: FunctionDefinition


class CalledFunction(BaseModel):
    """Which function was called with what."""

    model_config = ConfigDict(extra="allow")
    name: str
    arguments: Annotated[dict[str, Any], BeforeValidator(_parse_arguments, str | dict[str, Any])]


class MessageToolCall(BaseModel):
    """A call in an assistant's earlier message."""

    model_config = ConfigDict(extra="allow")
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
