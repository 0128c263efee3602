"""Request bodies of Anthropic's Messages API, and the one chat form that they become.

Fields that are neither here nor refused are ignored; docs/api.md says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from engine.errors import RequestError
from engine.logger import get_logger
from engine.server.http.body_limits import MAX_MESSAGES, MAX_TOOLS, CheckedList
from engine.server.protocol import AgentChat, Body, Count, Int32, make_body
from engine.server.turns import Turns, function_tool, left_out, text_field

logger = get_logger(__name__)

# A line about the sender's version that its clients put before the instructions. It differs from
# request to request, so that no prefix would be found again behind it.
_CLIENT_LINE = "x-anthropic-billing-header:"

Blocks = CheckedList[dict[str, Any]]


class MessagesChat(AgentChat):
    """A chat that came as messages of this API."""

    ID_PREFIX = "msg_"


class MessageParam(Body):
    """One turn; its blocks are checked one by one when they are read."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class ThinkingParam(Body):
    """Whether to think: `adaptive` leaves it to the chat template."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    """The answer as JSON of a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """How hard to try, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessagesToolChoice(Body):
    """`any` is OpenAI's `required`, `tool` names one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class CountTokensBody(Body):
    """POST /v1/messages/count_tokens: the part of a request that makes its prompt."""

    UNSUPPORTED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "mcp_servers": ([],),
        "container": (),
        "thread": (),
        "fallbacks": ([],),
    }

    model: str | None = None
    messages: CheckedList[MessageParam] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: str | Blocks | None = None
    tools: Blocks = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig = Field(default_factory=OutputConfig)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    def chat(self, *, can_think: bool) -> MessagesChat:
        """The same as a chat; RequestError names what this server cannot read.

        A model that cannot think is not asked to: a limit on its thought would be refused.
        """
        turns = self._turns()
        return make_body(
            MessagesChat,
            {
                "model": self.model,
                "messages": turns.messages,
                "continue_final_message": turns.goes_on,
                **self._tool_fields(),
                **self._thinking_fields(can_think),
                **self._own_fields(),
            },
        )

    def _own_fields(self) -> dict[str, Any]:
        """Fields of the chat that say nothing about its prompt."""
        return {"chat_template_kwargs": self.chat_template_kwargs}

    def _turns(self) -> Turns:
        turns = Turns()
        if self.system is not None:
            turns.system(_instructions(self.system))
        for number, message in enumerate(self.messages):
            place = f"messages.{number}.content"
            if message.role == "system":
                turns.system(_joined_text(message.content, place))
            elif isinstance(message.content, str):
                (turns.user if message.role == "user" else turns.assistant)(message.content)
            elif message.role == "user":
                _read_user_blocks(turns, message.content, place)
            else:
                _read_assistant_blocks(turns, message.content, place)
        return turns

    def _tool_fields(self) -> dict[str, Any]:
        tools = _functions(self.tools)
        choice = self.tool_choice
        if not tools or choice is None:
            return {"tools": tools}
        asked: dict[str, object] = {
            "auto": "auto",
            "any": "required",
            "none": "none",
            "tool": {"type": "function", "function": {"name": choice.name}},
        }
        return {
            "tools": tools,
            "tool_choice": asked[choice.type],
            "parallel_tool_calls": not choice.disable_parallel_tool_use,
        }

    def _thinking_fields(self, can_think: bool) -> dict[str, Any]:
        thinking, effort = self.thinking, self.output_config.effort
        if thinking is None or thinking.type == "adaptive":
            fields: dict[str, Any] = {"reasoning_effort": effort}
        elif thinking.type == "disabled":
            fields = {"reasoning_effort": "none"}
        else:
            budget = thinking.budget_tokens if can_think else None
            fields = {"reasoning_effort": effort or "medium", "thinking_token_budget": budget}
        is_shown = thinking is None or thinking.display != "omitted"
        return {**fields, "include_reasoning": is_shown}


class MessagesBody(CountTokensBody):
    """POST /v1/messages: a prompt, and how to answer it."""

    UNSUPPORTED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **CountTokensBody.UNSUPPORTED,
        "compaction": (),
    }

    max_tokens: int = Field(ge=1)
    stop_sequences: CheckedList[str] = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int32 | None = None
    cache_salt: str | None = None
    priority: Int32 = 0

    def _own_fields(self) -> dict[str, Any]:
        form = self.output_config.format
        return {
            **super()._own_fields(),
            "max_completion_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "stream": self.stream,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "cache_salt": self.cache_salt,
            "priority": self.priority,
            "response_format": form
            and {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema_}},
        }


def _instructions(system: str | Sequence[dict[str, Any]]) -> str:
    if isinstance(system, str):
        return system
    return _joined_text(
        [block for block in system if not str(block.get("text", "")).startswith(_CLIENT_LINE)],
        "system",
    )


def _read_user_blocks(turns: Turns, blocks: Sequence[dict[str, Any]], place: str) -> None:
    for number, block in enumerate(blocks):
        here = f"{place}.{number}"
        if block.get("type") == "tool_result":
            call_id = text_field(block, "tool_use_id", here)
            turns.result(call_id, _result_text(block.get("content") or "", here))
        elif block.get("type") == "image":
            turns.image(_image_url(block, here))
        else:
            turns.user(_text(block, here))


def _image_url(block: dict[str, Any], place: str) -> str:
    """Where the image of a block is: its own base64 as a data: URI, or an address."""
    found, path = block.get("source"), f"{place}.source"
    source: dict[str, Any] = found if isinstance(found, dict) else {}
    if source.get("type") == "base64":
        media_type, data = (text_field(source, name, path) for name in ("media_type", "data"))
        return f"data:{media_type};base64,{data}"
    if source.get("type") == "url":
        return text_field(source, "url", path)
    raise RequestError(
        f"{path} must be an image of type base64 or url; no files are stored here.",
        param=path,
        code="unsupported",
    )


def _read_assistant_blocks(turns: Turns, blocks: Sequence[dict[str, Any]], place: str) -> None:
    for number, block in enumerate(blocks):
        here = f"{place}.{number}"
        kind = block.get("type")
        if kind == "thinking":
            turns.thought(text_field(block, "thinking", here))
        elif kind == "tool_use":
            name, call_id = text_field(block, "name", here), text_field(block, "id", here)
            turns.call(call_id, name, _input(block, here))
        elif kind != "redacted_thinking":  # which nobody but its maker can read
            turns.assistant(_text(block, here))


def _joined_text(content: str | Sequence[dict[str, Any]], place: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text(block, f"{place}.{number}") for number, block in enumerate(content))


def _result_text(content: object, place: str) -> str:
    """What a tool returned. A picture in it becomes a word about it, which the model can act on:
    refusing it would end the client's session, whose every later request has it, too.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise RequestError(f"{place}.content must be a text or a list of blocks.", param=place)
    parts = []
    for number, block in enumerate(content):
        kind = block.get("type")
        if kind in ("image", "document") and _document_text(block) is None:
            parts.append(left_out(kind))
        else:
            parts.append(_text(block, f"{place}.content.{number}"))
    return "\n".join(parts)


def _text(block: dict[str, Any], place: str) -> str:
    """The text of a block; RequestError for one that is not text."""
    kind = block.get("type")
    if kind == "text":
        return text_field(block, "text", place)
    text = _document_text(block)
    if text is None:
        raise RequestError(
            f"{place}: blocks of type {kind!r} are not supported here; text, tool_use, tool_result "
            "and thinking blocks are, images of the user, and documents whose source is text.",
            param=place,
        )
    return text


def _document_text(block: dict[str, Any]) -> str | None:
    """A document or a search result as text with its title in front; None for any other form."""
    kind, source = block.get("type"), block.get("source")
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        text = source.get("data")
    elif kind == "search_result" and isinstance(block.get("content"), list):
        parts = [part.get("text") for part in block["content"] if isinstance(part, dict)]
        text = "\n".join(part for part in parts if isinstance(part, str))
    else:
        return None
    title = block.get("title")
    if not isinstance(text, str):
        return None
    return f"{title}\n{text}" if isinstance(title, str) else text


def _input(block: dict[str, Any], place: str) -> dict[str, Any]:
    """The arguments of a call."""
    value = block.get("input")
    if not isinstance(value, dict):
        path = f"{place}.input"
        raise RequestError(f"{path} must be an object.", param=path)
    return value


def _functions(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools that a client describes, as OpenAI's; those that it only names are left out."""
    unknown = sorted({str(tool["type"]) for tool in tools if not _is_function(tool)})
    if unknown:
        logger.warning("Tools of type %s are left out: no such tool here.", ", ".join(unknown))
    return [
        function_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"))
        for tool in tools
        if _is_function(tool)
    ]


def _is_function(tool: dict[str, Any]) -> bool:
    return tool.get("type") in (None, "custom")
