"""The command line that started a server, as far as its log tells it, and what an advice makes of
it: the user's flags stay, one that is given anew replaces the old one.

Owns quoting for a shell. A value that cannot be typed (an object, a masked secret) is left out.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import dataclass

from logparse.rules.arguments import differing_arguments

LEAVE_OUT = "~"  # in a template, before a flag that the advice drops
_NOT_FLAGS = frozenset({"model", "model_tag", "model_path", "subparser", "config", "api_key",
                        "hf_token", "dispatch_function", "tokenizer_path"})  # fmt: skip
_ADAPTER = re.compile(r"LoRAModulePath\(name='([^']{1,200})', path='([^']{1,400})'")
_WORD = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+")
_SHELL = frozenset({"|", "&&", ";", "||", "2>&1", ">"})
_LONGEST_VALUE = 400
_USUAL_PORT = "8000"


@dataclass(frozen=True, slots=True)
class Flag:
    """`words` are its values, quoted for a shell; none for a switch."""

    name: str
    words: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The same for a switch and its opposite, and for an option and its parts (`-cc.x`)."""
        name = self.name.partition("=")[0]
        return f"--{name[5:]}" if name.startswith("--no-") else name

    def __str__(self) -> str:
        return " ".join((self.name, *self.words))


def given_flags(printed: str | None) -> tuple[Flag, ...]:
    """What the user gave, from the arguments that a start printed."""
    found = dict(differing_arguments(printed or ""))
    if found.get("port") == _USUAL_PORT and not (printed or "").startswith("ServerArgs"):
        del found["port"]
    flags = (_typed(name, value) for name, value in found.items() if name not in _NOT_FLAGS)
    return tuple(flag for flag in flags if flag is not None)


def _typed(name: str, value: str) -> Flag | None:
    flag = f"--{name.replace('_', '-')}"
    if value in ("True", "False"):
        return Flag(flag if value == "True" else f"--no-{flag[2:]}")
    if value == "None" or "***" in value or len(value) > _LONGEST_VALUE:
        return None
    if adapters := _ADAPTER.findall(value):
        return Flag(flag, tuple(shlex.quote(f"{name}={path}") for name, path in adapters))
    words = _words(value)
    return Flag(flag, tuple(map(shlex.quote, words))) if words else None


def _words(value: str) -> list[str]:
    """As they are typed: a list as several words, a dict as JSON."""
    try:
        parsed = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        # Text without its quotes; an object's name and brackets cannot be typed.
        return [] if re.match(r"[\[{<]|\w{1,80}\(", value) else [value]
    if isinstance(parsed, dict):
        try:
            return [json.dumps(parsed)]
        except (TypeError, ValueError):
            return []
    if isinstance(parsed, list | tuple):
        return [str(part) for part in parsed]
    return [value]


def typed_command(template: str, start: str, given: tuple[Flag, ...]) -> str:
    """`template` with `start` (program and model) and the user's flags in place of its {serve}."""
    before, _, after = template.partition("{serve}")
    added, dropped, rest = _split(after)
    replaced = {flag.key for flag in added} | dropped
    kept = [flag for flag in given if flag.key not in replaced]
    words = [start, *map(str, kept), *map(str, added)]
    return before + " ".join(words) + (f" {rest}" if rest else "")


def added_flags(template: str) -> tuple[Flag, ...]:
    """The flags that an advice adds behind its {serve}."""
    return _split(template.partition("{serve}")[2])[0]


def _split(after: str) -> tuple[tuple[Flag, ...], set[str], str]:
    """Flags that are added, flags that are left out, and what the shell does with the output."""
    added: list[Flag] = []
    dropped: set[str] = set()
    for match in _WORD.finditer(after):
        word = match[0]
        if word in _SHELL:
            return tuple(added), dropped, after[match.start() :].strip()
        if word.startswith(LEAVE_OUT):
            dropped.add(Flag(word[len(LEAVE_OUT) :]).key)
        elif word.startswith("-") and not _is_number(word):
            added.append(Flag(word))
        elif added:
            added[-1] = Flag(added[-1].name, (*added[-1].words, word))
        else:
            return tuple(added), dropped, after[match.start() :].strip()
    return tuple(added), dropped, ""


def _is_number(word: str) -> bool:
    return word[1:2].isdigit()
