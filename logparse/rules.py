"""What a rule is, and the index that finds the rules for a message without trying them all.

A rule is data: the literal start of the message, a pattern, what its groups mean and in which
unit, the phase the line belongs to. The tables are in `vllm_rules`, `llamacpp_rules` and
`sglang_rules`.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Value = str | int | float | bool


_LONGEST_SEARCH = 20_000


class Unit(enum.Enum):
    """How the text of a group becomes a value."""

    TEXT = "text"
    FLAG = "flag"  # True or False
    COUNT = "count"  # whole number, thousands commas allowed
    GIB = "GiB"
    MIB = "MiB"  # kept as GiB
    SECONDS = "s"
    MILLISECONDS = "ms"  # kept as seconds
    NUMBER = "number"


class Keep(enum.Enum):
    """Which of several values of one key counts."""

    FIRST = "first"
    LAST = "last"
    EACH = "each"  # all that differ, in order of appearance
    LAST_PER_PROCESS = "last per process"  # then as EACH


class Mark(enum.Enum):
    """What a line says about the life of the server."""

    BEGINS = "begins"  # only printed at the start of a start
    VERSION = "version"  # as BEGINS, and once per start
    LISTENING = "listening"  # the address is named
    ROUTES = "routes"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DIED = "died"  # after ready: the server cannot go on
    CUT = "cut"  # the text says that parts are missing


@dataclass(frozen=True, slots=True)
class Take:
    """A fact from the rule's groups (their sum when several). Higher `rank` replaces lower."""

    key: str
    unit: Unit
    groups: tuple[int, ...] = (1,)
    keep: Keep = Keep.EACH
    rank: int = 1
    prefix: str = ""  # put before a TEXT value


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of line."""

    id: str
    engine: str
    starts: tuple[str, ...]  # the message begins with one of these
    pattern: re.Pattern[str]
    find: Callable[[str], re.Match[str] | None]  # in a message that begins with one of the starts
    meaning: str
    takes: tuple[Take, ...] = ()
    phase: int | None = None  # 1 to 5: a line of it begins the phase
    ends_phase: bool = False
    mark: Mark | None = None
    about: int | None = None  # the phase it belongs to without beginning it
    source: str = ""  # the file of the engine that prints it
    versions: str = ""  # empty: all that are read
    shows: tuple[Take, ...] = ()  # values worth showing that are not kept as facts
    feeds: bool = False  # each such line goes into a history, see `insight`
    is_state: bool = False  # it feeds, and of its values only those of the last line count

    @property
    def belongs_to(self) -> int | None:
        """The number of its phase, if it has one."""
        return self.phase if self.phase is not None else self.about


def rule(
    id: str,
    starts: str | tuple[str, ...],
    rest: str,
    meaning: str,
    *,
    engine: str = "vllm",
    takes: tuple[Take, ...] = (),
    phase: int | None = None,
    ends_phase: bool = False,
    mark: Mark | None = None,
    about: int | None = None,
    source: str = "",
    versions: str = "",
    shows: tuple[Take, ...] = (),
    feeds: bool = False,
    is_anywhere: bool = False,
) -> Rule:
    """A Rule whose pattern is one of the literal starts, then the regular expression `rest`.

    With `is_anywhere`, `rest` is searched for; it should begin with literal text, which is fast.
    """
    literals = (starts,) if isinstance(starts, str) else starts
    head = "|".join(re.escape(text) for text in literals)
    pattern = re.compile(rest if is_anywhere else f"(?:{head}){rest}")
    find: Callable[[str], re.Match[str] | None] = pattern.match
    if is_anywhere:
        find = functools.partial(pattern.search, pos=0, endpos=_LONGEST_SEARCH)
    is_state = feeds and bool(takes) and all(take.keep is Keep.LAST for take in takes)
    return Rule(
        id, engine, literals, pattern, find, meaning, takes, phase, ends_phase, mark, about, source,
        versions, shows, feeds, is_state,
    )  # fmt: skip


def known_line(
    id: str,
    starts: str | tuple[str, ...],
    rest: str,
    meaning: str,
    source: str,
    about: int | None,
    *shows: Take,
    takes: tuple[Take, ...] = (),
    versions: str = "",
    engine: str = "vllm",
    feeds: bool = False,
) -> Rule:
    """A line that is explained and counted, but does not move the start on."""
    return rule(
        id, starts, rest, meaning, source=source, about=about, shows=shows, takes=takes,
        versions=versions, engine=engine, feeds=feeds,
    )  # fmt: skip


class RuleIndex:
    """Rules by the first word of the message, up to its first `=`."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        by_word: dict[str, list[Rule]] = {}
        for entry in rules:
            for word in dict.fromkeys(_first_word(start) for start in entry.starts):
                by_word.setdefault(word, []).append(entry)
        self._by_word = {word: tuple(entries) for word, entries in by_word.items()}
        self._find = self._by_word.get

    def candidates(self, message: str) -> tuple[Rule, ...]:
        """Rules whose first word is the message's."""
        word = message.partition(" ")[0]
        found = self._find(word)
        if found is not None:
            return found
        return self._find(_first_word(message), ()) if not word or "=" in word else ()


def _first_word(message: str) -> str:
    """Of an indented message, with one space in front: most of them are known to no rule."""
    word = message.partition(" ")[0]
    if not word:
        return " " + message.lstrip(" ").partition(" ")[0]
    return word.partition("=")[0]


def convert(unit: Unit, texts: tuple[str, ...]) -> Value | None:
    """The value of a Take, or None when the text is not what the unit says."""
    if unit is Unit.TEXT:
        return " ".join(texts).strip() or None
    if unit is Unit.FLAG:
        return texts[0] == "True"
    try:
        if unit is Unit.COUNT:
            return sum([int(text.replace(",", "")) for text in texts])
        total = sum([float(text.replace(",", "")) for text in texts])
    except ValueError:
        return None
    if unit is Unit.MIB:
        return round(total / 1024, 4)
    return round(total / 1000, 6) if unit is Unit.MILLISECONDS else round(total, 6)


def shown_values(entry: Rule, match: re.Match[str]) -> dict[str, Value]:
    """All values of a matched line by name, facts and others; those that are not there left out."""
    values: dict[str, Value] = {}
    for take in (*entry.takes, *entry.shows):
        texts = tuple(text for group in take.groups if (text := match[group]) is not None)
        if len(texts) == len(take.groups) and (value := convert(take.unit, texts)) is not None:
            values[take.key] = take.prefix + value if isinstance(value, str) else value
    return values
