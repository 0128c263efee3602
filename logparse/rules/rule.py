"""What a rule is, and the index that finds the rules for a message without trying them all.

A rule is data: the literal start of the message, a pattern, what its groups mean and in which
unit, the phase the line belongs to. The tables are in `vllm.py`, `llamacpp.py` and
`sglang.py` beside this file.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Value = str | int | float | bool


Find = Callable[[str], re.Match[str] | None]
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
    CACHE = "cache"  # as EACH by model; of a model's window only its memory counts, and is added


class Mark(enum.Enum):
    """What a line says about the life of the server."""

    BEGINS = "begins"  # only printed at the start of a start
    VERSION = "version"  # as BEGINS, and once per start
    LISTENING = "listening"  # the address is named
    ROUTES = "routes"
    READY = "ready"
    HTTP = "http"  # the HTTP server is up; whether the engine answers depends on the engine
    SERVING = "serving"  # requests are answered, so it was ready
    OFFLINE = "offline"  # a script got answers from its engine, which has no address
    STOPPING = "stopping"
    STOPPED = "stopped"
    DIED = "died"  # after ready: the server cannot go on
    CUT = "cut"  # the text says that parts are missing
    WINDOW = "window"  # the next cache is a second one of the same model, for its window


@dataclass(frozen=True, slots=True)
class Take:
    """A fact from the rule's groups (their sum when several). Higher `rank` replaces lower."""

    key: str
    unit: Unit
    groups: tuple[int, ...] = (1,)
    keep: Keep = Keep.EACH
    rank: int = 1
    prefix: str = ""  # put before a TEXT value
    constant: str = ""  # the value, whatever the line holds


# Of many rules: a figure as a group, and a time that is shown and not kept.
NUM = r"(-?[\d.]{1,20})"
SECONDS = Take("seconds", Unit.SECONDS)


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of line: how it is found, what it means and which facts it holds."""

    id: str
    engine: str
    starts: tuple[str, ...]  # the message begins with one of these
    rest: str  # a regular expression for what follows; or for any part, with `is_anywhere`
    find: Find  # in a message that begins with one of the starts
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
    is_anywhere: bool = False

    @property
    def pattern(self) -> str:
        """The whole as one regular expression, to be shown."""
        if self.is_anywhere:
            return self.rest
        return f"(?:{'|'.join(map(re.escape, self.starts))}){self.rest}"

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
    clues: tuple[str, ...] = (),
) -> Rule:
    """A Rule whose pattern is one of the literal starts, then the regular expression `rest`.

    With `is_anywhere`, `rest` is searched for; it should begin with literal text, which is fast.
    Of `clues`, one is in every such message: worth saying where many others begin alike.
    """
    literals = (starts,) if isinstance(starts, str) else starts
    is_state = feeds and bool(takes) and all(take.keep is Keep.LAST for take in takes)

    def compile_and_find(message: str) -> re.Match[str] | None:
        # Few rules are ever needed, and to compile them all takes longer than a short log.
        find = _search(rest) if is_anywhere else _match_behind(literals, rest)
        object.__setattr__(entry, "find", _with_clues(clues, find))
        return find(message)

    find_first = _with_clues(clues, compile_and_find)
    entry = Rule(
        id, engine, literals, rest, find_first, meaning, takes, phase, ends_phase, mark,
        about, source, versions, shows, feeds, is_state, is_anywhere,
    )  # fmt: skip
    return entry


def _with_clues(clues: tuple[str, ...], find: Find) -> Find:
    if not clues:
        return find

    def find_by_clue(message: str) -> re.Match[str] | None:
        for clue in clues:
            if clue in message:
                return find(message)
        return None

    return find_by_clue


def _search(pattern: str) -> Find:
    search = re.compile(pattern).search
    return lambda message: search(message, 0, _LONGEST_SEARCH)


def _match_behind(starts: tuple[str, ...], rest: str) -> Find:
    """Matches `rest` behind the start: the start in the pattern would be most of its price."""
    match = re.compile(rest).match
    if len(starts) == 1:
        size = len(starts[0])
        return lambda message: match(message, size)

    def find(message: str) -> re.Match[str] | None:
        for start in starts:
            if message.startswith(start) and (found := match(message, len(start))):
                return found
        return None

    return find


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
    mark: Mark | None = None,
    feeds: bool = False,
    clues: tuple[str, ...] = (),
) -> Rule:
    """A line that is explained and counted, but does not move the start on."""
    return rule(
        id, starts, rest, meaning, source=source, about=about, shows=shows, takes=takes,
        versions=versions, engine=engine, mark=mark, feeds=feeds, clues=clues,
    )  # fmt: skip


_HEAD = 4  # letters that lead to the rules of a message
LETTERS = 2 * _HEAD  # all that are looked at


class RuleIndex:
    """Rules by the first letters of the message, and by those behind them where they are many."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        entries = tuple(rules)
        self._short = tuple(e for e in entries if any(len(start) < _HEAD for start in e.starts))
        self._short_firsts = frozenset(start[0] for e in self._short for start in e.starts)
        by_head: dict[str, list[Rule]] = {}
        for entry in entries:
            for head in dict.fromkeys(start[:_HEAD] for start in entry.starts):
                if len(head) == _HEAD:
                    by_head.setdefault(head, []).append(entry)
        for head, found in by_head.items():
            if head[0] in self._short_firsts:
                found += [e for e in self._short if e not in found and head.startswith(e.starts)]
        self._shelves = {head: _Shelf(found) for head, found in by_head.items()}
        # By the first LETTERS of a message, the rules whose start may be the message's. The same
        # few beginnings come again and again.
        self.for_letters = functools.lru_cache(maxsize=4096)(self._look_up)

    def _look_up(self, letters: str) -> tuple[Rule, ...]:
        shelf = self._shelves.get(letters[:_HEAD])
        if shelf is not None:
            return shelf.by_next.get(letters[_HEAD:], shelf.others)
        return self._short if letters[:1] in self._short_firsts else ()


class _Shelf:
    """The rules of one head; `others` fit whatever follows it."""

    def __init__(self, entries: list[Rule]) -> None:
        nexts = [(e, {start[_HEAD : 2 * _HEAD] for start in e.starts}) for e in entries]
        keys = {key for _, found in nexts for key in found if len(key) == _HEAD}
        self.others = tuple(e for e, found in nexts if any(len(key) < _HEAD for key in found))
        self.by_next = {
            key: tuple(e for e, found in nexts if key.startswith(tuple(found))) for key in keys
        }


# Reading a member from its class costs more than all else in `convert`.
_TEXT, _FLAG, _COUNT = Unit.TEXT, Unit.FLAG, Unit.COUNT
_MIB, _MILLISECONDS = Unit.MIB, Unit.MILLISECONDS


def convert(unit: Unit, texts: tuple[str, ...]) -> Value | None:
    """The value of a Take, or None when the text is not what the unit says."""
    if unit is _TEXT:
        return " ".join(texts).strip() or None
    if unit is _FLAG:
        return texts[0] == "True"
    number = int if unit is _COUNT else float
    try:
        total = number(texts[0].replace(",", ""))
        if len(texts) > 1:
            total = sum([number(text.replace(",", "")) for text in texts])
    except ValueError:
        return None
    if unit is _COUNT:
        return total
    if unit is _MIB:
        return round(total / 1024, 4)
    return round(total / 1000, 6) if unit is _MILLISECONDS else round(total, 6)


def shown_values(entry: Rule, match: re.Match[str]) -> dict[str, Value]:
    """All values of a matched line by name, facts and others; those that are not there left out."""
    values: dict[str, Value] = {}
    for take in (*entry.takes, *entry.shows):
        texts = tuple(text for group in take.groups if (text := match[group]) is not None)
        if (
            len(texts) == len(take.groups)
            and (value := take.constant or convert(take.unit, texts)) is not None
        ):
            values[take.key] = take.prefix + value if isinstance(value, str) else value
    return values
