"""200 short tasks that models of a few hundred million parameters can do, marked by a program.

Ten kinds of 20 items, the same in every run. Each item is a plain text with three solved examples,
so that models without a chat format can be asked too; the answer is the first line that follows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

ITEMS_PER_KIND = 20
MAX_ANSWER_TOKENS = 32
_EXAMPLES = 3


def _pairs(text: str) -> dict[str, str]:
    """Words that belong together, from `one other, one other`."""
    found = {}
    for pair in text.split(", "):
        one, other = pair.split()
        found[one] = other
    return found


_WORDS = (
    *("apple", "river", "stone", "window", "garden", "paper", "silver", "candle", "bridge"),
    *("orange", "pencil", "market", "winter", "bottle", "forest", "engine", "island", "button"),
    *("ladder", "mirror", "planet", "rabbit", "saddle", "ticket", "violin", "wagon", "tiger"),
)
_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Julia", "Karl")
_CITIES = ("Oslo", "Rome", "Paris", "Berlin", "Madrid", "London", "Vienna", "Lisbon", "Athens")
_CAPITALS = _pairs(
    "France Paris, Italy Rome, Spain Madrid, Germany Berlin, Japan Tokyo, China Beijing, "
    "Russia Moscow, Egypt Cairo, Greece Athens, Norway Oslo, Austria Vienna, "
    "Portugal Lisbon, Ireland Dublin, Poland Warsaw, Sweden Stockholm, Cuba Havana, "
    "Hungary Budapest, Finland Helsinki, Peru Lima, Kenya Nairobi, Denmark Copenhagen, "
    "Thailand Bangkok, Canada Ottawa, Chile Santiago"
)
_OPPOSITES = _pairs(
    "hot cold, big small, up down, fast slow, old young, happy sad, light dark, "
    "open closed, early late, rich poor, long short, hard soft, wet dry, full empty, "
    "left right, strong weak, high low, day night, love hate, first last, true false, "
    "black white, good bad, near far, inside outside"
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Task:
    """What a model is given, and the answer that counts."""

    kind: str
    prompt: str
    answer: str


Question = tuple[str, str]
"""A line that asks, up to where the answer stands, and the answer."""


def tasks() -> list[Task]:
    """All items; an example of a prompt is never the item itself."""
    return [task for kind, make in _KINDS.items() for task in _of_kind(kind, make)]


def is_right(task: Task, completion: str) -> bool:
    """Whether the first line is the answer; JSON may be spaced in any way."""
    line = completion.lstrip("\n").partition("\n")[0].strip()
    if task.kind != "extract":
        return line.rstrip(".") == task.answer
    try:
        return bool(json.loads(line) == json.loads(task.answer))
    except ValueError:
        return False


def _of_kind(kind: str, make: Callable[[random.Random], Question]) -> list[Task]:
    source = random.Random(kind)  # a text seeds the same numbers in every process
    found = []
    for _ in range(ITEMS_PER_KIND):
        questions: dict[str, str] = {}
        while len(questions) <= _EXAMPLES:
            asked, answer = make(source)
            questions[asked] = answer
        *examples, (asked, answer) = questions.items()
        solved = "".join(f"{line} {known}\n" for line, known in examples)
        found.append(Task(kind, solved + asked, answer))
    return found


def _words(source: random.Random, count: int) -> list[str]:
    return source.sample(_WORDS, count)


def _copy(source: random.Random) -> Question:
    words = " ".join(_words(source, 4))
    return f"Input: {words} Copy:", words


def _last_word(source: random.Random) -> Question:
    words = _words(source, 4)
    return f"Words: {' '.join(words)} Last word:", words[-1]


def _first_letter(source: random.Random) -> Question:
    word = source.choice(_WORDS)
    return f"Word: {word} First letter:", word[0]


def _upper(source: random.Random) -> Question:
    word = source.choice(_WORDS)
    return f"Lower case: {word} Upper case:", word.upper()


def _sum(source: random.Random) -> Question:
    one, other = source.randint(1, 9), source.randint(1, 9)
    return f"{one} + {other} =", str(one + other)


def _larger(source: random.Random) -> Question:
    one, other = source.sample(range(1, 100), 2)
    return f"Numbers: {one} and {other} Larger:", str(max(one, other))


def _count_on(source: random.Random) -> Question:
    if source.random() < 0.5:
        start = source.randint(1, 90)
        return f"Next: {start}, {start + 1}, {start + 2},", str(start + 3)
    day = source.randrange(len(_DAYS))
    days = [_DAYS[(day + step) % len(_DAYS)] for step in range(4)]
    return f"Next: {', '.join(days[:3])},", days[3]


def _capital(source: random.Random) -> Question:
    country = source.choice(list(_CAPITALS))
    return f"Country: {country} Capital:", _CAPITALS[country]


def _opposite(source: random.Random) -> Question:
    word = source.choice(list(_OPPOSITES))
    return f"Word: {word} Opposite:", _OPPOSITES[word]


def _extract(source: random.Random) -> Question:
    name, age, city = source.choice(_NAMES), source.randint(18, 80), source.choice(_CITIES)
    fields = json.dumps({"name": name, "age": age, "city": city})
    return f"Text: {name} is {age} years old and lives in {city}. JSON:", fields


_KINDS: dict[str, Callable[[random.Random], Question]] = {
    "copy": _copy,
    "last word": _last_word,
    "first letter": _first_letter,
    "upper case": _upper,
    "sum": _sum,
    "larger": _larger,
    "count on": _count_on,
    "capital": _capital,
    "opposite": _opposite,
    "extract": _extract,
}
