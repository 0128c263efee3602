"""The chat templates of a model's folder as text; `engine.frontend.chat_template` compiles them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError, CorruptModelError
from engine.model_files.json_objects import read_optional_json


@dataclass(frozen=True, slots=True)
class TemplateSources:
    """The template of all chats, and the one for chats with tools where it is another."""

    default: str
    tool_use: str | None = None


def read_chat_templates(folder: Path) -> TemplateSources | None:
    """Those of chat_template.jinja, chat_template.json or tokenizer_config.json, in this order;
    None where there are none. CorruptModelError names a file that is damaged.
    """
    jinja_file = folder / "chat_template.jinja"
    if jinja_file.is_file():
        try:
            return TemplateSources(jinja_file.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise CorruptModelError(f"{jinja_file} is not UTF-8 text: {error}.") from error
    # Processors of transformers before version 5 wrote it into a JSON file of its own.
    value = read_optional_json(folder / "chat_template.json").get("chat_template")
    value = value or read_optional_json(folder / "tokenizer_config.json").get("chat_template")
    source = _named_template(value, "default")
    if source is None:
        return None
    return TemplateSources(
        source, None if isinstance(value, str) else _named_template(value, "tool_use")
    )


def read_template_file(path: Path) -> str:
    """A template that was asked for; ConfigError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {path} cannot be read: {error}.") from error


def _named_template(value: object, name: str) -> str | None:
    """The template itself, or the one of this name of a list of named ones."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {
            entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)
        }
        source = named.get(name)
        return source if isinstance(source, str) else None
    return None
