"""What may follow each command, read out of the commands themselves; the scripts are made of it.

The one source is the metavar that the help shows: `dark|light|16` are values, FILE is a file,
SERVER, MODEL and @PROFILE are asked of `stoker` while somebody types (`app.completion.answers`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from app.cli import COMMANDS, CommandEntry, load_command
from app.command_line import value_word
from app.settings.options import leaf_commands

_LONGEST = 64  # of a description, so that a list fits beside its words
# What each word of a metavar stands for; NAME is a model by its name, MODEL may be a file too.
_ASKED = {
    "@PROFILE": "profiles",
    "SERVER": "servers",
    "LOG": "servers",
    "MODEL": "models",
    "NAME": "models",
}
_FILES = re.compile(r"FILE|FOLDER|PATH|LOG$|MODEL|.*\.jsonl?$")


@dataclass(frozen=True, slots=True)
class Item:
    """A word that can be typed, and what it means."""

    word: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Values:
    """What a place takes: fixed words, kinds that `stoker` is asked for, or files."""

    items: tuple[Item, ...] = ()
    asked: tuple[str, ...] = ()
    has_files: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """An option with its short form; `values` is None for a switch."""

    name: str
    short: str
    meaning: str
    values: Values | None


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """A command or sub-command by the words that lead to it; () is `stoker` itself."""

    path: tuple[str, ...]
    words: Values
    options: tuple[Option, ...]


_HELP = Option("--help", "-h", "Show what the command does and takes.", None)
_COLORS = Values((Item("auto"), Item("always"), Item("never")))
_GLOBAL = (
    Option("--color", "", "Colour in what is printed.", _COLORS),
    Option("--debug", "", "Show the traceback of an error.", None),
    _HELP,
)


def places() -> Iterator[CommandPlace]:
    """Every place of the command line, `stoker` itself first."""
    commands = tuple(_commands())
    version = Option("--version", "-V", "Print the version.", None)
    yield CommandPlace(
        (), Values((*commands, Item("help", "Help of a command."))), (*_GLOBAL, version)
    )
    yield CommandPlace(
        ("help",), Values((*commands, Item("exit-codes", "What each code means."))), ()
    )
    for entry in COMMANDS:
        yield from _places_of(entry, load_command(entry))


def _places_of(entry: CommandEntry, command: Any) -> Iterator[CommandPlace]:
    below = getattr(command, "commands", None)
    if below:
        items = tuple(
            Item(name, _short(inner.get_short_help_str(limit=200))) for name, inner in below.items()
        )
        yield CommandPlace((entry.name,), Values(items), _GLOBAL)
    for path, leaf in leaf_commands(command, (entry.name,)):
        yield CommandPlace(tuple(path), _words(leaf), (*_options(leaf), *_GLOBAL))


def _words(leaf: Any) -> Values:
    """What the arguments take, all of them at once: their order is left to the command."""
    given = [value_word(p) for p in leaf.params if p.param_type_name == "argument"]
    return _values(" ".join([*given, getattr(leaf, "words_metavar", "")]))


def _options(leaf: Any) -> Iterator[Option]:
    for param in leaf.params:
        if param.param_type_name == "option":
            names = sorted(param.opts, key=len)
            short = names[0] if len(names[0]) == 2 else ""
            values = None if param.is_flag else _values(value_word(param))
            yield Option(names[-1], short, _short(param.help or ""), values)
    for flag in getattr(leaf, "engine_flags", ()):
        values = _values(flag.word) if flag.word else None
        yield Option(flag.name, "", _short(flag.meaning), values)


def _values(metavar: str) -> Values:
    """What the words of a metavar allow."""
    items: list[Item] = []
    asked: list[str] = []
    has_files = False
    for word in re.split(r"[|\s]+", re.sub(r"\[|\]|\.\.\.", "", metavar)):
        has_files = has_files or bool(_FILES.match(word))
        if word in _ASKED:
            asked.append(_ASKED[word])
        elif word in _LISTED:
            items += _LISTED[word]()
        elif re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", word):
            items.append(Item(word))
    unique = tuple(dict.fromkeys(items))
    return Values(unique, tuple(dict.fromkeys(asked)), has_files)


def _commands() -> list[Item]:
    return [Item(entry.name, entry.summary) for entry in COMMANDS]


def _gpus() -> list[Item]:
    from app.planning.gpu_catalogue import gpu_names

    return [Item(name) for name in gpu_names()]


def _shapes() -> list[Item]:
    from app.planning.builtin_shapes import BUILTIN_SHAPES

    return [Item(name, shape.hub_id) for name, shape in BUILTIN_SHAPES.items()]


def _phases() -> list[Item]:
    from logparse import PHASE_NAMES

    return [Item(str(number), name) for number, name in enumerate(PHASE_NAMES, 1)]


def _families() -> list[Item]:
    from app.doctor.report import FAMILIES

    return [Item(name) for name in FAMILIES]


_LISTED: dict[str, Callable[[], list[Item]]] = {
    "COMMAND": _commands,
    "GPU": _gpus,
    "PHASE": _phases,
    "SHAPE": _shapes,
    "FAMILY,": _families,
}


def _short(text: str) -> str:
    """The first sentence, cut to what a list can show."""
    sentence = re.split(r"(?<=[^.])\.(?:\s|$)|\s\s|\n", text.strip(), maxsplit=1)[0]
    if len(sentence) <= _LONGEST:
        return sentence
    return sentence[: _LONGEST - 1].rsplit(" ", 1)[0] + "…"
