"""Logs that somebody cut, wrapped, joined or copied badly, and of which it is sure that the server
in them never answered: the lines that tell of readiness were taken out before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from logparse.redact import strip_ansi
from logparse.rules.rule import Mark
from logparse.rules.table import ALL_RULES
from tests.logparse.wrappings import WRAPPINGS

Lines = list[str]
Mutation = Callable[[Lines, random.Random], Lines]
_TELLS = tuple(
    rule for rule in ALL_RULES if rule.mark in (Mark.READY, Mark.SERVING, Mark.ROUTES, Mark.HTTP)
)  # fmt: skip
_LONGEST = 400  # lines


def before_it_answered(lines: Sequence[str]) -> Lines:
    """The lines up to the first that tells of a server that answers, or is about to."""
    kept: Lines = []
    for line in lines[:_LONGEST]:
        if _tells_of_readiness(line):
            break
        kept.append(line)
    return kept


def _tells_of_readiness(line: str) -> bool:
    """Anywhere in it: a mutation may cut off what stands in front."""
    if " HTTP/1." in line or "Processed prompts: " in line:
        return True
    text = strip_ansi(line)
    for rule in _TELLS:
        for start in rule.starts:
            at = text.find(start)
            while at >= 0:
                if rule.find(text[at:]):
                    return True
                at = text.find(start, at + 1)
    return False


def cut_the_end(lines: Lines, chance: random.Random) -> Lines:
    return lines[: chance.randrange(1, len(lines) + 1)]


def cut_the_beginning(lines: Lines, chance: random.Random) -> Lines:
    return lines[chance.randrange(len(lines)) :]


def cut_in_a_line(lines: Lines, chance: random.Random) -> Lines:
    kept = cut_the_end(lines, chance)
    return [*kept[:-1], kept[-1][: chance.randrange(len(kept[-1]) + 1)]]


def drop_lines(lines: Lines, chance: random.Random) -> Lines:
    share = chance.choice((0.05, 0.3, 0.7))
    return [line for line in lines if chance.random() > share] or lines[:1]


def drop_heads(lines: Lines, chance: random.Random) -> Lines:
    """The first columns, as a copy from a narrow window has it."""
    width = chance.randrange(1, 40)
    return [line[width:] for line in lines]


def wrap(lines: Lines, chance: random.Random) -> Lines:
    width = chance.choice((80, 100, 120, 132))
    return [line[at : at + width] for line in lines for at in range(0, len(line) or 1, width)]


def double_lines(lines: Lines, chance: random.Random) -> Lines:
    return [line for line in lines for _ in range(chance.choice((1, 1, 2)))]


def shuffle_nearby(lines: Lines, chance: random.Random) -> Lines:
    """As lines of several processes arrive."""
    numbered = sorted(enumerate(lines), key=lambda pair: pair[0] + chance.uniform(0, 4))
    return [line for _, line in numbered]


def join_lines(lines: Lines, chance: random.Random) -> Lines:
    """Newlines lost here and there."""
    joined = [lines[0]]
    for line in lines[1:]:
        if chance.random() < 0.1:
            joined[-1] += line
        else:
            joined.append(line)
    return joined


def put_a_prefix(lines: Lines, chance: random.Random) -> Lines:
    return WRAPPINGS[chance.choice(list(WRAPPINGS))](lines)


MUTATIONS: tuple[Mutation, ...] = (
    cut_the_end,
    cut_the_beginning,
    cut_in_a_line,
    drop_lines,
    drop_heads,
    wrap,
    double_lines,
    shuffle_nearby,
    join_lines,
    put_a_prefix,
)


def mutated_logs(
    logs: Mapping[str, Sequence[str]], count: int, seed: int = 1
) -> Iterator[tuple[str, Lines]]:
    """`count` of each log, none of which tells of readiness; each with how it came to be."""
    quiet = {name: before_it_answered(lines) for name, lines in logs.items()}
    quiet = {name: lines for name, lines in quiet.items() if len(lines) > 1}
    for name, lines in quiet.items():
        chance = random.Random(f"{name} {seed}")
        for number in range(count):
            mutated, done = list(lines), []
            if chance.random() < 0.15:
                other = chance.choice(list(quiet))
                mutated += cut_the_end(quiet[other], chance)
                done.append(f"joined with {other}")
            for _ in range(chance.randrange(1, 4)):
                mutation = chance.choice(MUTATIONS)
                mutated = mutation(mutated, chance) or [""]
                done.append(mutation.__name__)
            yield f"{name} {number}: {', '.join(done)}", mutated
