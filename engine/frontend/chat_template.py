"""Renders a chat into a prompt with the model's Jinja template, in a sandbox.

Behaves as transformers' apply_chat_template does: same environment options, filters and globals.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import CorruptModelError, RequestError
from engine.model_files.chat_templates import read_chat_templates, read_template_file

ChatMessage = dict[str, Any]
Content = str | Sequence[dict[str, Any]] | None
ReadContent = Callable[[Content], str | list[dict[str, Any]]]
"""How a message's content goes to a template."""

CHATML = "chatml"
"""Value of --chat-template for the plain form that most models without a template understand."""

_CHATML_SOURCE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# How Mistral's templates ask for the length of a call's id.
_NINE = re.compile(r"length\s*(?:!=|<)\s*9\b")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")

# What a template can raise on messages that it was not written for.
_RENDER_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
)


class ChatTemplate:
    """A compiled template, its twin for chats with tools, and the special tokens they may name."""

    def __init__(
        self, source: str, special_tokens: dict[str, str], tool_source: str | None = None
    ) -> None:
        try:
            self._template = _environment().from_string(source)
            self._tool_template = (
                _environment().from_string(tool_source) if tool_source else self._template
            )
        except TemplateError as error:
            raise CorruptModelError(f"The chat template cannot be compiled: {error}.") from error
        self._special_tokens = special_tokens
        self.source = source
        self.tool_source = tool_source or source
        self._knows_thinking = "message.thinking" in source
        self._wants_short_ids = _NINE.search(self.tool_source) is not None

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: dict[str, Any] | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> str:
        """The prompt for `messages`; RequestError when the template refuses them.

        `tools` are definitions in OpenAI's form. A template that knows no tools leaves them out.
        With `continue_final_message` the prompt ends where the last message's text does.
        """
        variables: dict[str, Any] = {
            "documents": None,
            **self._special_tokens,
            **(template_args or {}),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._tool_template if tools else self._template
        variables["messages"] = [self._fitted(message) for message in messages]
        try:
            prompt = _rendered(template, variables)
        except _RENDER_ERRORS as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return _open_ended(prompt, messages) if continue_final_message else prompt

    def _fitted(self, message: ChatMessage) -> ChatMessage:
        """The message as this template wants it, where templates differ: a thought before a call by
        its other name, and ids of calls that have nine characters.
        """
        fitted = dict(message)
        thought = message.get("reasoning_content")
        if self._knows_thinking and thought and not message.get("content"):
            fitted.setdefault("thinking", thought)
        if self._wants_short_ids:
            if message.get("tool_calls"):
                fitted["tool_calls"] = [
                    {**call, "id": _short_id(call.get("id"))} for call in message["tool_calls"]
                ]
            if "tool_call_id" in message:
                fitted["tool_call_id"] = _short_id(message["tool_call_id"])
        return fitted


def _rendered(template: Template, variables: dict[str, Any]) -> str:
    """The prompt. Templates that put arguments of calls between texts want them as text."""
    try:
        return template.render(variables)
    except TypeError:
        texts = [_with_text_arguments(message) for message in variables["messages"]]
        if texts == variables["messages"]:
            raise
        return template.render({**variables, "messages": texts})


def _with_text_arguments(message: ChatMessage) -> ChatMessage:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {
        **message,
        "tool_calls": [
            {
                **call,
                "function": {
                    **call["function"],
                    "arguments": _to_json(call["function"]["arguments"]),
                },
            }
            for call in calls
        ],
    }


def _short_id(call_id: object) -> str:
    """Nine letters and digits that stand for an id, the same for the same."""
    text = str(call_id)
    if _SHORT_ID.fullmatch(text):
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _open_ended(prompt: str, messages: Sequence[ChatMessage]) -> str:
    """`prompt` without what the template wrote behind the last message's text."""
    text = _last_text(messages[-1]["content"]) if messages else ""
    bare = text.strip()
    start = prompt.rfind(bare)
    if not bare or start < 0:
        raise RequestError(
            "continue_final_message goes on with the text of the last message, and "
            + ("the chat template does not write it out." if bare else "that one has none."),
            param="messages",
        )
    # Templates that strip messages have taken blanks at the end away; others have not.
    blanks = text[len(text.rstrip()) :]
    end = start + len(bare)
    return prompt[:end] + (blanks if prompt.startswith(blanks, end) else "")


def _last_text(content: str | Sequence[dict[str, Any]]) -> str:
    """What a message ends with; nothing where that is an image."""
    if isinstance(content, str):
        return content
    return str(content[-1].get("text", "")) if content else ""


def plain_text(content: Content) -> str:
    """A message's content as templates of text models expect it; parts are joined by lines."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part_text(part) for part in content)


def content_parts(content: Content) -> str | list[dict[str, Any]]:
    """A message's content as templates with places for images expect it."""
    if content is None or isinstance(content, str):
        return content or ""
    return [
        {"type": "text", "text": _part_text(part)} if image_url(part) is None else {"type": "image"}
        for part in content
    ]


def image_url(part: dict[str, Any]) -> str | None:
    """Where the image of a content part is; None for another part, RequestError for a wrong one."""
    if part.get("type") != "image_url":
        return None
    value = part.get("image_url")
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise RequestError(
            'Content parts of type \'image_url\' look like {"type": "image_url", "image_url": '
            '{"url": "data:image/png;base64,..."}}.',
            param="messages",
        )
    return url


def _part_text(part: dict[str, Any]) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text" or not isinstance(text, str):
        raise RequestError(
            f"Content parts of type {kind!r} are not supported; this model reads parts of type "
            "'text' with a string in `text`.",
            param="messages",
        )
    return text


def load_chat_template(
    folder: Path, special_tokens: dict[str, str], override: str | None = None
) -> ChatTemplate | None:
    """That of `override`, or the folder's own; None where there is none."""
    if override == CHATML:
        return ChatTemplate(_CHATML_SOURCE, special_tokens)
    if override is not None:
        return ChatTemplate(read_template_file(Path(override)), special_tokens)
    sources = read_chat_templates(folder)
    if sources is None:
        return None
    return ChatTemplate(sources.default, special_tokens, sources.tool_use)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant said, for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012 - the attribute that jinja2 reads

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes < > & for HTML, which would change the prompt.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
