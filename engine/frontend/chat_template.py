"""Renders a chat into a prompt with the model's Jinja template, in a sandbox.

Behaves as transformers' apply_chat_template does: same environment options, filters and globals.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ConfigError, CorruptModelError, RequestError
from engine.frontend.tokenizer import read_tokenizer_config

ChatMessage = dict[str, Any]

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
    """One compiled template and the special tokens it may name."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise CorruptModelError(f"The chat template cannot be compiled: {error}.") from error
        self._special_tokens = special_tokens

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        template_args: dict[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`; RequestError when the template refuses them."""
        variables: dict[str, Any] = {
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **(template_args or {}),
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except _RENDER_ERRORS as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error


def load_chat_template(
    folder: Path, special_tokens: dict[str, str], override: str | None = None
) -> ChatTemplate | None:
    """That of `override`, chat_template.jinja or tokenizer_config.json; None without any."""
    if override is not None:
        return ChatTemplate(_read_override(Path(override)), special_tokens)
    jinja_file = folder / "chat_template.jinja"
    if jinja_file.is_file():
        return ChatTemplate(jinja_file.read_text(encoding="utf-8"), special_tokens)
    source = _default_template(read_tokenizer_config(folder).get("chat_template"))
    return None if source is None else ChatTemplate(source, special_tokens)


def _read_override(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {path} cannot be read: {error}.") from error


def _default_template(value: object) -> str | None:
    """The template itself, or the one named `default` of a list of named ones."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value}
        source = named.get("default")
        return source if isinstance(source, str) else None
    return None


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
