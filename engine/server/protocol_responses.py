"""Request body of OpenAI's Responses API, without state, and the one chat form that it becomes.

Fields that are neither here nor refused are ignored; docs/api.md says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError
from pydantic_core import from_json

from engine.errors import RequestError
from engine.logger import get_logger
from engine.server.http.body_limits import MAX_MESSAGES, MAX_TOOLS, CheckedList
from engine.server.protocol import AgentChat, Body, Count, Int32, ReasoningEffort, make_body
from engine.server.turns import Turns, function_tool, left_out, text_field

logger = get_logger(__name__)

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_OUTPUT_PARTS = ("input_image", "input_file")

Item = dict[str, Any]


class ResponsesChat(AgentChat):
    """A chat that came as items of this API."""

    ID_PREFIX = "resp_"
    PROMPT_PARAM = "input"


class ReasoningParam(Body):
    """How much to think. There are no summaries: the thought itself is shown."""

    effort: ReasoningEffort | None = None
    summary: str | None = None


class TextFormat(Body):
    """Free text, any JSON object, or one of a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = "answer"
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool = False
    description: str | None = None


class TextParam(Body):
    """The form of the answer's text."""

    format: TextFormat = Field(default_factory=lambda: TextFormat.model_validate({}))


class ResponsesStreamOptions(Body):
    """`include_obfuscation` pads events at OpenAI; here none are padded."""

    include_obfuscation: bool = False


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function as the client knows it; a namespace is a group of tools."""

    name: str
    namespace: str | None = None

    @property
    def as_fields(self) -> dict[str, str]:
        """Its fields in an item."""
        namespace = {} if self.namespace is None else {"namespace": self.namespace}
        return {"name": self.name, **namespace}


class ResponsesBody(Body):
    """POST /v1/responses: the whole conversation, since nothing is stored."""

    UNSUPPORTED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "previous_response_id": (),
        "conversation": (),
        "store": (False,),
        "background": (False,),
        "background_options": (),
        "prompt": (),
        "context_management": ([],),
        "image": (),
        "moderation": (),
    }

    input: str | CheckedList[Item]
    model: str | None = None
    instructions: str | None = None
    tools: CheckedList[Item] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: str | Item = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int32 | None = None
    top_logprobs: Count = 0
    include: CheckedList[str] = Field(default_factory=list)
    reasoning: ReasoningParam = Field(default_factory=ReasoningParam)
    text: TextParam = Field(default_factory=TextParam)
    truncation: Literal["auto", "disabled"] = "disabled"
    stream: bool = False
    stream_options: ResponsesStreamOptions | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    cache_salt: str | None = None
    priority: Int32 = 0
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    def chat(self, functions: Functions) -> ResponsesChat:
        """The same as a chat; RequestError names what this server cannot read."""
        wants_logprobs = "message.output_text.logprobs" in self.include or self.top_logprobs > 0
        return make_body(
            ResponsesChat,
            {
                "model": self.model,
                "messages": self._turns(functions).messages,
                "max_completion_tokens": self.max_output_tokens,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "logprobs": wants_logprobs,
                "top_logprobs": self.top_logprobs,
                "reasoning_effort": self.reasoning.effort,
                "response_format": self._response_format(),
                "truncate_prompt_tokens": -1 if self.truncation == "auto" else None,
                "stream": self.stream,
                "tools": functions.definitions,
                "tool_choice": functions.choice(self.tool_choice),
                "parallel_tool_calls": self.parallel_tool_calls,
                "cache_salt": self.cache_salt,
                "priority": self.priority,
                "chat_template_kwargs": self.chat_template_kwargs,
            },
        )

    def _turns(self, functions: Functions) -> Turns:
        turns = Turns()
        if self.instructions:
            turns.system(self.instructions)
        if isinstance(self.input, str):
            turns.user(self.input)
            return turns
        if not 1 <= len(self.input) <= MAX_MESSAGES:
            raise RequestError(
                f"input must hold 1 to {MAX_MESSAGES} items, got {len(self.input)}.", param="input"
            )
        for number, item in enumerate(self.input):
            _read_item(turns, item, f"input.{number}", functions)
        return turns

    def _response_format(self) -> dict[str, Any] | None:
        form = self.text.format
        if form.type != "json_schema":
            return {"type": form.type}
        if form.schema_ is None:
            raise RequestError(
                "text.format of type json_schema needs a schema.", param="text.format.schema"
            )
        return {
            "type": "json_schema",
            "json_schema": {"name": form.name, "schema": form.schema_},
        }


class Functions:
    """The functions among a request's tools, under names that are each there once.

    Tools that the client only names, since OpenAI runs them, are left out. `kept` are those that
    are used, as they came.
    """

    def __init__(self, tools: Sequence[Item], choice: str | Item) -> None:
        self.kept: list[Item] = []
        self.definitions: list[dict[str, Any]] = []
        self._names: dict[str, FunctionName] = {}
        # These keep their names; those of a namespace give way, wherever they stand.
        self._plain = [tool.get("name") for tool in tools if tool.get("type") == "function"]
        unknown: set[str] = set()
        for tool in tools:
            kind = tool.get("type")
            if kind == "function":
                self._add(tool, None)
            elif kind == "namespace" and isinstance(tool.get("tools"), list):
                self._add_namespace(tool, unknown)
            else:
                unknown.add(str(kind))
                continue
            self.kept.append(tool)
        if unknown:
            kinds = ", ".join(sorted(unknown))
            logger.warning("Tools of type %s are left out: no such tool here.", kinds)
        self._keep_allowed(choice)

    def origin(self, name: str) -> FunctionName:
        """The client's name of a function that the model called."""
        return self._names.get(name, FunctionName(name))

    def known_as(self, asked: FunctionName) -> str:
        """The name under which the model knows a function."""
        same = (name for name, origin in self._names.items() if origin == asked)
        return next(same, asked.name)

    def choice(self, choice: str | Item) -> str | dict[str, Any] | None:
        """`tool_choice` of a chat; RequestError when it is none of the forms."""
        if not self.definitions and choice in ("auto", "none"):
            return None
        if isinstance(choice, str):
            return choice
        if choice.get("type") == "allowed_tools":
            mode = choice.get("mode", "auto")
            return mode if isinstance(mode, str) else choice
        name = choice.get("name")
        if choice.get("type") == "function" and isinstance(name, str):
            asked = FunctionName(name, choice.get("namespace"))
            return {"type": "function", "function": {"name": self.known_as(asked)}}
        raise RequestError(
            "tool_choice must be none, auto, required, a function or allowed_tools; this server "
            f"has no tools of type {choice.get('type')!r}.",
            param="tool_choice",
        )

    def _add_namespace(self, namespace: Item, unknown: set[str]) -> None:
        group = namespace.get("name")
        if not isinstance(group, str) or not group:
            raise RequestError("A namespace tool needs a `name`.", param="tools")
        for tool in namespace["tools"]:
            if isinstance(tool, dict) and tool.get("type") == "function":
                self._add(tool, group)
            else:
                unknown.add(f"{tool.get('type')}" if isinstance(tool, dict) else "?")

    def _add(self, tool: Item, namespace: str | None) -> None:
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise RequestError("A function tool needs a `name`.", param="tools")
        origin = FunctionName(name, namespace)
        is_taken = namespace is not None and (name in self._names or name in self._plain)
        own = f"{namespace}__{name}" if is_taken else name
        if own in self._names or origin in self._names.values():
            raise RequestError(f"tools: the function {own!r} is there twice.", param="tools")
        self._names[own] = origin
        self.definitions.append(function_tool(own, tool.get("description"), tool.get("parameters")))

    def _keep_allowed(self, choice: str | Item) -> None:
        """Of `allowed_tools`, the others are not shown to the model."""
        if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
            return
        entries = choice.get("tools")
        entries = entries if isinstance(entries, list) else []
        allowed = [entry.get("name") for entry in entries if isinstance(entry, dict)]
        self.definitions = [
            tool
            for tool in self.definitions
            if self._names[tool["function"]["name"]].name in allowed
        ]


def _read_item(turns: Turns, item: Item, place: str, functions: Functions) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        _read_message(turns, item, place)
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        turns.thought(_joined_text(parts, f"{place}.content"))
    elif kind == "function_call":
        name = FunctionName(text_field(item, "name", place), item.get("namespace"))
        call_id = text_field(item, "call_id", place)
        turns.call(call_id, functions.known_as(name), _arguments(item, place))
    elif kind == "function_call_output":
        text = _output_text(item.get("output") or "", f"{place}.output")
        turns.result(text_field(item, "call_id", place), text)
    elif kind == "item_reference":
        raise RequestError(
            f"{place}: no items are stored here, so none can be referred to; send the item itself.",
            param=place,
            code="unsupported",
        )
    else:
        raise RequestError(
            f"{place}: items of type {kind!r} are not supported; this server reads message, "
            "reasoning, function_call and function_call_output.",
            param=place,
            code="unsupported",
        )


def _read_message(turns: Turns, item: Item, place: str) -> None:
    say = {
        "user": turns.user,
        "assistant": turns.assistant,
        "system": turns.system,
        "developer": turns.system,
    }.get(str(item.get("role")))
    if say is None:
        path = f"{place}.role"
        raise RequestError(f"{path} must be user, assistant, system or developer.", param=path)
    content, path = item.get("content"), f"{place}.content"
    if say == turns.user:
        _read_user_parts(turns, content, path)
    else:
        say(_joined_text(content, path))


def _read_user_parts(turns: Turns, content: object, place: str) -> None:
    """The texts between the images of one message are a text each."""
    if isinstance(content, str):
        turns.user(content)
        return
    texts: list[str] = []
    for number, part in enumerate(_parts(content, place)):
        here = f"{place}.{number}"
        if part.get("type") != "input_image":
            texts.append(_part_text(part, here))
            continue
        turns.user("\n".join(texts))
        texts.clear()
        turns.image(_image_url(part, here))
    turns.user("\n".join(texts))


def _image_url(part: Item, place: str) -> str:
    if part.get("file_id") is not None:
        raise RequestError(
            f"{place}.file_id: no files are stored here; send the image itself as a data: URI in "
            "image_url.",
            param=f"{place}.file_id",
            code="unsupported",
        )
    return text_field(part, "image_url", place)


def _joined_text(content: object, place: str) -> str:
    """The text of a list of parts."""
    if isinstance(content, str):
        return content
    parts = _parts(content, place)
    return "\n".join(_part_text(part, f"{place}.{number}") for number, part in enumerate(parts))


def _output_text(content: object, place: str) -> str:
    """What a tool returned: of its parts, a picture becomes a word about it."""
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(_parts(content, place)):
        kind = part.get("type")
        is_text = kind not in _OUTPUT_PARTS
        texts.append(_part_text(part, f"{place}.{number}") if is_text else left_out(str(kind)))
    return "\n".join(texts)


def _parts(content: object, place: str) -> list[Item]:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise RequestError(f"{place} must be a text or a list of parts.", param=place)
    return content


def _part_text(part: Item, place: str) -> str:
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return text_field(part, "text", place)
    if kind == "refusal":
        return text_field(part, "refusal", place)
    raise RequestError(
        f"{place}: parts of type {kind!r} are not supported here; texts are, and images of the "
        "user.",
        param=place,
        code="unsupported",
    )


def _arguments(item: Item, place: str) -> str:
    """The JSON of a call's arguments; what is none is named here, in the client's own terms."""
    text = text_field(item, "arguments", place)
    try:
        is_object = isinstance(from_json(text or "{}", allow_inf_nan=False), dict)
    except (ValueError, ValidationError):
        is_object = False
    if not is_object:
        path = f"{place}.arguments"
        raise RequestError(f"{path} must be the JSON of an object.", param=path)
    return text
