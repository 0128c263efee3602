"""Turns the commands' functions into typer commands with our help layout; never imports rich.

A target is a plain function (one command) or a `typer.Typer` (a command with sub-commands).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import typer
from typer.core import TyperCommand

from app.errors import ExitCode

if TYPE_CHECKING:
    from typer._click.exceptions import ClickException

    from app.settings.sources import Settings

    CommandLineError = ClickException
else:
    # The base of every complaint about the command line, wherever this typer keeps its click.
    CommandLineError = typer.BadParameter.__mro__[2]

HELP_SETTINGS = {"help_option_names": ["--help", "-h"], "max_content_width": 100}
PASS_THROUGH_SETTINGS = {
    **HELP_SETTINGS,
    "allow_extra_args": True,
    "ignore_unknown_options": True,
}


# What a value is called where its option does not say: by the name of its type.
_WORDS = (("path", "FILE"), ("int", "N"), ("float", "NUMBER"))
_RANGE = re.compile(r"(?:([\d.]+)<=?)?x(?:<=?([\d.]+)|>=?([\d.]+))?(?=[\];])")
_SHORT_WORD = re.compile(r"-[a-z]{2}")
_WHOLE = re.compile(r"(?<=[ :])(\d+)\.0(?=[;\]])")


def value_word(param: Any) -> str:
    """How the help calls the value of a parameter: FILE, N, TEXT, or what the parameter says."""
    if param.metavar:
        return str(param.metavar)
    kind = str(getattr(getattr(param, "type_descriptor", None), "annotation", "")).lower()
    return next((word for part, word in _WORDS if part in kind), "TEXT")


def _help_record(param: Any, ctx: Any) -> tuple[str, str] | None:
    """typer's record, in words: `N  ... [at least 1]` for `<int range>  ... [x>=1]`."""
    record = param.get_help_record(ctx)
    if record is None:
        return None
    name = re.sub(r"\s*<[^<>]*>$", "", record[0])
    if name == record[0] or param.metavar:
        return name, _in_words(record[1])
    return f"{name} {value_word(param)}", _in_words(record[1])


def _in_words(text: str) -> str:
    head, bracket, extra = text.rpartition("  [")
    if not bracket:
        head, bracket, extra = "", "", text
        if not text.startswith("["):
            return text
    return head + bracket + _WHOLE.sub(r"\1", _RANGE.sub(_range_words, extra))


def _range_words(match: re.Match[str]) -> str:
    low, high, least = (part and part.removesuffix(".0") for part in match.groups())
    if low and high:
        return f"{low} to {high}"
    return f"at least {least}" if least else f"at most {high}"


class GroupedCommand(TyperCommand):
    """Help with one section per `rich_help_panel`, in the order of the parameters; plain values are
    converted here.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """typer's, and the option for the help, which it makes anew."""
        params = super().get_params(ctx)
        for param in params:
            _convert_plainly(param)
        return params

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = _help_record(param, ctx)
            if record is not None:
                panel = getattr(param, "rich_help_panel", None) or "Options"
                sections.setdefault(panel, []).append(record)
        for panel, records in sections.items():
            with formatter.section(panel):
                formatter.write_dl(records)


class PassThroughCommand(GroupedCommand):
    """Takes unknown options along; what stands behind `--` is no option of ours, nor is it lost."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Our own options before `--`, and all the rest as `ctx.args`."""
        end = args.index("--") if "--" in args else len(args)
        rest: list[str] = super().parse_args(ctx, _spelled_out(args[:end]))
        ctx.args += args[end:]
        return rest


def _spelled_out(words: list[str]) -> list[str]:
    """`-dp 2` as `--data-parallel-size 2`: click would take it for `-d -p`."""
    if not any(_SHORT_WORD.match(word) for word in words):
        return words
    from engine.args import without_short_words

    return without_short_words(words)


_INTEGER = re.compile(r"-?[0-9]{1,15}")
_DECIMAL = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_UNUSUAL = object()


class _PlainConversion:
    """Converts what a command line usually holds; the rest, and the words for what is wrong, are
    left to typer, which loads pydantic for it: that takes longer than most commands.
    """

    def __init__(self, param: Any) -> None:
        described = param.type_descriptor
        self._info = described.parameter_info
        self._is_list = get_origin(described.annotation) is list
        self._kind = get_args(described.annotation)[0] if self._is_list else described.annotation
        self._by_typer = param.get_runtime_param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """As typer's own, called once for each parameter."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if not self._is_list:
            plain = _plain(value, self._kind, self._info)
        elif isinstance(value, list | tuple):
            plain = [_plain(one, self._kind, self._info) for one in value]
        else:
            plain = _UNUSUAL
        if plain is _UNUSUAL or (self._is_list and any(one is _UNUSUAL for one in plain)):
            return self._by_typer().coerce(value, param=param, ctx=ctx)
        return plain


def _convert_plainly(param: Any) -> None:
    if "get_runtime_param" not in vars(param) and hasattr(param, "get_runtime_param"):
        conversion = _PlainConversion(param)
        param.get_runtime_param = lambda: conversion


def _plain(value: Any, kind: Any, info: Any) -> Any:
    """The value as one of `kind`; _UNUSUAL where typer has to say what it is."""
    if info.parser is not None:
        return _UNUSUAL
    if kind is str:
        return value if type(value) is str else _UNUSUAL
    if kind is int:
        return _within(int(value), info) if _is_number(value, int, _INTEGER) else _UNUSUAL
    if kind is float:
        return _within(float(value), info) if _is_number(value, float, _DECIMAL) else _UNUSUAL
    return Path(value) if kind is Path and _is_plain_path(value, info) else _UNUSUAL


def _is_number(value: Any, kind: type, written: re.Pattern[str]) -> bool:
    return type(value) is kind or (type(value) is str and written.fullmatch(value) is not None)


def _within(number: float, info: Any) -> Any:
    is_low = info.min is not None and number < info.min
    is_high = info.max is not None and number > info.max
    return _UNUSUAL if is_low or is_high else number


def _is_plain_path(value: Any, info: Any) -> bool:
    """Whether typer has nothing to say against it: it asks no more than that it can be read."""
    asks_more = info.exists or info.writable or info.resolve_path or info.allow_dash
    takes_all = info.file_okay and info.dir_okay and info.path_type is None
    if asks_more or not takes_all or not isinstance(value, str | Path):
        return False
    return not info.readable or os.access(value, os.R_OK) or not os.path.lexists(value)


def new_app(**settings: Any) -> typer.Typer:
    """A Typer without completion options, rich markup or its own tracebacks."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=HELP_SETTINGS,
        **settings,
    )


def build_command(target: Callable[..., Any] | typer.Typer) -> Any:
    """The click command of `target`, a plain function or an app."""
    if isinstance(target, typer.Typer):
        return typer.main.get_command(target)
    app = new_app()
    app.command(cls=GroupedCommand)(target)
    return typer.main.get_command(app)


def run_command(
    command: Any, args: list[str], prog_name: str, settings: Settings | None = None
) -> int:
    """Parse `args` and run; returns the code given to `typer.Exit` or returned by the function.

    A sub-command is looked up here: a typer group would parse its own options first, and that alone
    loads pydantic. A group without a sub-command shows its help.
    """
    subcommands = getattr(command, "commands", {})
    if args and args[0] in subcommands:
        inner = f"{prog_name} {args[0]}"
        return run_command(subcommands[args[0]], args[1:], inner, settings)
    if subcommands and not args:
        args = ["--help"]
    given: dict[str, Any] = {}
    if settings is not None and not subcommands:
        from app.settings.options import settings_for

        chosen = settings_for(command, tuple(prog_name.split()[1:]), args, settings)
        args, given = chosen.args, {"default_map": chosen.default_map, "obj": chosen}
    try:
        with command.make_context(prog_name, args, **given) as context:
            result = command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return ExitCode.INTERRUPTED
    return int(result or 0)
