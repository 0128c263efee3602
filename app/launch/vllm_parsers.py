"""The parsers of thoughts and tool calls that vLLM is started with: those that fit the model.

vLLM asks for their names and refuses `tools` without one. What tells them is the same for every
engine (`engine.parser_choice`); a name is given only where the installed vLLM has it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from app.errors import UsageError
from app.launch.launch_specs import ServeRequest
from engine.args import with_dashes
from engine.errors import ConfigError, ModelError
from engine.model_files.chat_templates import read_chat_templates, read_template_file
from engine.model_files.json_objects import read_optional_json
from engine.model_store.files import find_hub_model
from engine.parser_choice import (
    AUTO,
    NONE,
    VLLM_REASONING_PARSER_NAMES,
    VLLM_TOOL_PARSER_NAMES,
    ModelSigns,
    ParserChoice,
    choose_reasoning_parser,
    choose_tool_parser,
)

_TOOLS, _REASONING = "tool_call_parser", "reasoning_parser"
# Where vLLM keeps its tables of names, newest first; before there were tables, in each file.
_FOLDERS = {
    _TOOLS: ("vllm/tool_parsers", "vllm/entrypoints/openai/tool_parsers"),
    _REASONING: ("vllm/reasoning",),
}
_TABLE_ROW = re.compile(r'^\s*"([\w.-]+)"\s*:\s*\(', re.MULTILINE)
_REGISTERED = re.compile(r"register_module\(\s*(?:name\s*=\s*)?(\[[^\]]*\]|\"[^\"]*\")")
_QUOTED = re.compile(r'"([\w.-]+)"')


@dataclasses.dataclass(frozen=True, slots=True)
class FilledIn:
    """The request with its parsers named, and what is said about it."""

    request: ServeRequest
    notes: tuple[str, ...] = ()


def fill_in_parsers(
    request: ServeRequest, folder: Path | None, packages: Iterable[Path] = ()
) -> FilledIn:
    """Name the parsers that the user left to us, for the model in `folder` (None: not here yet).

    `packages` are where the vLLM to start may be installed. UsageError where the user asks for
    tools and no parser is known, since vLLM would not start.
    """
    places = tuple(packages)
    signs = _signs_of(request, folder)
    tools = reasoning = None
    if _is_ours(request, _TOOLS):
        known = _installed(_TOOLS, places) or VLLM_TOOL_PARSER_NAMES
        tools = choose_tool_parser(AUTO, signs, known)
    if _is_ours(request, _REASONING):
        known = _installed(_REASONING, places) or VLLM_REASONING_PARSER_NAMES
        reasoning = choose_reasoning_parser(AUTO, signs, known)
    _require_tools(request, tools, folder)
    has_tools = request.args.enable_auto_tool_choice or (tools is not None and bool(tools.name))
    args = dataclasses.replace(
        request.args,
        tool_call_parser=_value(request.args.tool_call_parser, tools),
        reasoning_parser=_value(request.args.reasoning_parser, reasoning),
        enable_auto_tool_choice=has_tools,
    )
    return FilledIn(
        dataclasses.replace(request, args=args),
        (*_note("--tool-call-parser", tools), *_note("--reasoning-parser", reasoning)),
    )


def folder_here(model: str) -> Path | None:
    """Where a model's files lie on this machine; None where they do not."""
    folder = Path(model).expanduser()
    return folder if folder.is_dir() else find_hub_model(model)


def _signs_of(request: ServeRequest, folder: Path | None) -> ModelSigns:
    """None where it is vLLM's to say: a model that cannot be read, a template behind `--`, and a
    server that generates nothing.
    """
    if request.args.runner == "pooling" or _is_said(request, "chat_template"):
        return ModelSigns(None)
    try:
        sources = None if folder is None else read_chat_templates(folder)
        config = {} if folder is None else read_optional_json(folder / "config.json")
    except (ModelError, OSError, UnicodeDecodeError):
        return ModelSigns(None)
    kind = config.get("model_type")
    model_type = kind if isinstance(kind, str) else None
    if request.args.chat_template is not None:
        try:
            return ModelSigns(
                read_template_file(Path(request.args.chat_template)), model_type=model_type
            )
        except ConfigError:
            return ModelSigns(None)
    if sources is None:
        return ModelSigns(None, model_type=model_type)
    return ModelSigns(sources.default, sources.tool_use, model_type)


def _is_ours(request: ServeRequest, name: str) -> bool:
    """Whether the user left the choice to us, here and behind `--`."""
    return getattr(request.args, name) == AUTO and not _is_said(request, name)


def _is_said(request: ServeRequest, name: str) -> bool:
    """Whether this flag stands behind `--`."""
    flag = f"--{name.replace('_', '-')}"
    return any(with_dashes(word).partition("=")[0] == flag for word in request.engine_words)


def _value(asked: str, choice: ParserChoice | None) -> str:
    """What stands in the request: AUTO is left out of vLLM's flags."""
    if choice is None:
        return AUTO if asked == NONE else asked
    return choice.name or AUTO


def _require_tools(request: ServeRequest, tools: ParserChoice | None, folder: Path | None) -> None:
    if not request.args.enable_auto_tool_choice:
        return
    if request.args.tool_call_parser == NONE and not _is_said(request, _TOOLS):
        raise UsageError(
            "--enable-auto-tool-choice needs a parser, and --tool-call-parser none names none",
            hint="leave one of the two out, or name a parser: --tool-call-parser NAME",
        )
    if tools is None or tools.name is not None:
        return
    why = "the model is not on this machine yet" if folder is None else tools.reason
    raise UsageError(
        f"--enable-auto-tool-choice needs a parser, and none is known for {request.model}: {why}",
        hint="name it: --tool-call-parser NAME, or: -- --tool-call-parser NAME",
    )


def _note(flag: str, choice: ParserChoice | None) -> tuple[str, ...]:
    if choice is None:
        return ()
    if choice.name is not None:
        extra = "--enable-auto-tool-choice " if flag == "--tool-call-parser" else ""
        return (f"filled in for this model: {extra}{flag} {choice.name} ({choice.reason})",)
    if choice.missing is not None:
        return (f"{flag} is left out: this vLLM has no {choice.missing}, which fits the model",)
    return ()


def _installed(name: str, packages: Sequence[Path]) -> frozenset[str]:
    """The names that the vLLM there has; none where they cannot be found out."""
    for place in packages:
        for folder in (place / one for one in _FOLDERS[name]):
            try:
                names = frozenset(_names_in(folder))
            except (OSError, UnicodeDecodeError):
                continue
            if names:
                return names
    return frozenset()


def _names_in(folder: Path) -> Collection[str]:
    table = folder / "__init__.py"
    rows = _TABLE_ROW.findall(table.read_text(encoding="utf-8")) if table.is_file() else []
    if rows:
        return rows
    registered = [
        found
        for file in sorted(folder.glob("*.py"))
        for found in _REGISTERED.findall(file.read_text(encoding="utf-8"))
    ]
    return [name for found in registered for name in _QUOTED.findall(found)]
