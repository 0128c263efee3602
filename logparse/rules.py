"""What a rule is, and the index that finds the rules for a message without trying them all.

A rule is data: the literal start of the message, a pattern, what its groups mean and in which
unit, the phase the line belongs to. The tables are in `vllm_rules`, `llamacpp_rules` and
`sglang_rules`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

Value = str | int | float | bool


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
    meaning: str
    takes: tuple[Take, ...] = ()
    phase: int | None = None  # 1 to 5
    ends_phase: bool = False
    mark: Mark | None = None


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
) -> Rule:
    """A Rule whose pattern is one of the literal starts, then the regular expression `rest`."""
    literals = (starts,) if isinstance(starts, str) else starts
    head = "|".join(re.escape(text) for text in literals)
    pattern = re.compile(f"(?:{head}){rest}")
    return Rule(id, engine, literals, pattern, meaning, takes, phase, ends_phase, mark)


class RuleIndex:
    """Rules by the first word of the message, up to its first `=`."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        by_word: dict[str, list[Rule]] = {}
        for entry in rules:
            for word in dict.fromkeys(_first_word(start) for start in entry.starts):
                by_word.setdefault(word, []).append(entry)
        self._by_word = {word: tuple(entries) for word, entries in by_word.items()}

    def candidates(self, message: str) -> tuple[Rule, ...]:
        """Rules whose first word is the message's."""
        return self._by_word.get(_first_word(message), ())


def _first_word(message: str) -> str:
    word = message.split(" ", 1)[0]
    return word.split("=", 1)[0] if "=" in word else word


def convert(unit: Unit, texts: tuple[str, ...]) -> Value | None:
    """The value of a Take, or None when the text is not what the unit says."""
    if unit is Unit.TEXT:
        return " ".join(texts).strip() or None
    if unit is Unit.FLAG:
        return texts[0] == "True"
    try:
        if unit is Unit.COUNT:
            return sum(int(text.replace(",", "")) for text in texts)
        total = sum(float(text.replace(",", "")) for text in texts)
    except ValueError:
        return None
    if unit is Unit.MIB:
        return round(total / 1024, 4)
    return round(total / 1000, 6) if unit is Unit.MILLISECONDS else round(total, 6)
