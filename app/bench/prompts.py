"""What is sent: unique prompts of a wanted length, with a shared prefix if asked, or a data set.

Lengths come from the server's own /tokenize; without one a word counts as a token, and the report
says what the server counted.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from app.errors import StokerError, UsageError
from app.json_lines import read_json_lines

# Of different lengths, so that a tokenizer that splits words can fill every length.
_VOCABULARY = (
    "a of to in it is on by we up time year people way day man thing woman life child world "
    "school state family student group country problem hand part place case week company "
    "system program question work number night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service "
    "friend father power hour game line end member law car city name team minute idea body "
    "back parent face level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education "
)
_WORDS = tuple(_VOCABULARY.split())
_REPEATS = 8  # of a word when its cost is measured: the border to the next word counts too


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Numbers of tokens, uniform from `low` to `high`."""

    low: int
    high: int

    def draw(self, chance: random.Random) -> int:
        return chance.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's content: the field to send, how long it is, how long the answer shall be.

    `num_tokens` is None where the length is not known before the server counts it. `due_s` counts
    from the beginning of a replay; elsewhere the load says when a request is due.
    """

    content: str | list[dict[str, Any]]
    num_tokens: int | None
    output_tokens: int
    due_s: float = 0.0


class Prompts(Protocol):
    """What one round sends: each walk over it gives the same prompts."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Prompt]: ...


@dataclass(frozen=True, slots=True)
class WordCosts:
    """What words cost in tokens: at the start of a prompt, and after another word."""

    first: dict[str, int]
    later: dict[str, int]
    template_tokens: int  # what every prompt carries: a chat template, a BOS token
    is_measured: bool


def parse_range(flag: str, text: str) -> LengthRange:
    """A length in tokens of `N` or `A:B`; UsageError for anything else."""
    low, _, high = text.partition(":")
    numbers = [_count(part) for part in (low, high or low)]
    if not 1 <= numbers[0] <= numbers[1]:
        raise UsageError(
            f"{flag} {text}: a length is N or A:B in tokens, at least 1",
            hint=f"for example: {flag} 60, or {flag} 32:512",
        )
    return LengthRange(*numbers)


def _count(text: str) -> int:
    """Of plain digits, no more than any length in tokens has; 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0


def measure_words(count: Callable[[str], int] | None) -> WordCosts:
    """Cost of each word by `count` (tokens of a whole prompt); words of unclear cost are left."""
    first: dict[str, int] = {}
    later: dict[str, int] = {}
    if count is None:
        return _one_token_each()
    for word in _WORDS:
        first[word] = count(word)
        many = count(" ".join([word] * (_REPEATS + 1))) - first[word]
        if many % _REPEATS == 0 and many > 0:
            later[word] = many // _REPEATS
    if not later:
        return _one_token_each()
    return WordCosts(first, later, count(""), is_measured=True)


def _one_token_each() -> WordCosts:
    ones = dict.fromkeys(_WORDS, 1)
    return WordCosts(ones, ones, 0, is_measured=False)


class WordFiller:
    """Fills a number of tokens with random words, whose costs it is told."""

    def __init__(self, costs: WordCosts) -> None:
        self._first, self._later = costs.first, costs.later
        self._every = list(costs.later)
        self.cheapest, self._dearest = min(costs.later.values()), max(costs.later.values())
        self._widest = max(costs.first[word] for word in self._every) + self.cheapest
        self._beginnings: dict[int, list[str]] = {}
        self._endings: dict[int, list[str]] = {}

    def cost(self, words: Sequence[str]) -> int:
        """Tokens of a prompt of these words."""
        return self._first[words[0]] + sum(self._later[word] for word in words[1:])

    def words(self, wanted: int, chance: random.Random, begun: Sequence[str] = ()) -> list[str]:
        """Random words after `begun` up to `wanted` tokens, or as near as the words allow."""
        words = list(begun)
        if wanted <= 0:
            return words
        if not words:
            words.append(chance.choice(self._fitting_first(wanted)))
        left = wanted - self.cost(words)
        while left >= self._dearest + self.cheapest:  # far from the end every word fits
            words.append(chance.choice(self._every))
            left -= self._later[words[-1]]
        while fitting := self._fitting_later(left):
            words.append(chance.choice(fitting))
            left -= self._later[words[-1]]
        return words

    def _fitting_first(self, wanted: int) -> list[str]:
        """The words that `wanted` tokens can begin with; the cheapest where none fits."""
        wanted = min(wanted, self._widest)  # from there on all fit
        if wanted not in self._beginnings:
            fitting = [word for word in self._every if self._leaves(wanted - self._first[word])]
            self._beginnings[wanted] = fitting or [min(self._every, key=self._first.__getitem__)]
        return self._beginnings[wanted]

    def _fitting_later(self, left: int) -> list[str]:
        if left not in self._endings:
            fitting = [word for word, cost in self._later.items() if self._leaves(left - cost)]
            self._endings[left] = fitting
        return self._endings[left]

    def _leaves(self, left: int) -> bool:
        """Whether what is left can still be filled."""
        return left == 0 or left >= self.cheapest


class PromptMaker:
    """Prompts that never repeat within one maker; the same seed makes the same ones.

    With `turns`, prompts belong to sessions, each beginning with the one before and growing evenly
    from the shortest length to the longest. `sessions` of them take turns, so that one turn is
    over when the next is sent.
    """

    num_repeated = 0

    def __init__(
        self,
        costs: WordCosts,
        lengths: LengthRange,
        outputs: LengthRange,
        share: float,
        seed: str,
        turns: int = 1,
        sessions: int = 1,
    ) -> None:
        self._costs, self._lengths, self._outputs, self._share = costs, lengths, outputs, share
        self._chance = random.Random(seed)
        self._seen: set[str] = set()
        self._filler = WordFiller(costs)
        self._prefix = self._filler.words(
            round(lengths.high * share), random.Random(f"{seed} prefix")
        )
        self._turns, self._sessions = turns, sessions
        if turns > 1 and (lengths.high - lengths.low) // (turns - 1) < self._filler.cheapest:
            raise UsageError(
                f"each of {turns} turns is longer than the one before, and prompts of {lengths} "
                "tokens leave no room for that",
                hint=f"for example: --turns {turns} --prompt-tokens 60:{60 * turns}",
            )
        self._waiting: deque[Prompt] = deque()  # turns that are still to be sent

    @property
    def repeated_share(self) -> float:
        """Share of the prompt tokens that an earlier prompt began with."""
        if self._turns == 1:
            return self._share
        lengths = self._turn_lengths()
        return (sum(lengths[:-1]) + self._share * lengths[0]) / sum(lengths)

    def take(self, num: int) -> list[Prompt]:
        if self._turns == 1:
            return [self._prompt(self._make(self._lengths.draw(self._chance))) for _ in range(num)]
        while len(self._waiting) < num:
            self._begin_sessions()
        return [self._waiting.popleft() for _ in range(num)]

    def _begin_sessions(self) -> None:
        first, *later = self._turn_lengths()
        sessions = [self._make(first) for _ in range(self._sessions)]
        self._waiting += map(self._prompt, sessions)
        for length in later:
            sessions = [self._filler.words(length, self._chance, words) for words in sessions]
            self._waiting += map(self._prompt, sessions)

    def _turn_lengths(self) -> list[int]:
        low, high = self._lengths.low, self._lengths.high
        return [low + (high - low) * turn // (self._turns - 1) for turn in range(self._turns)]

    def _prompt(self, words: Sequence[str]) -> Prompt:
        cost = self._filler.cost(words)
        return Prompt(" ".join(words), cost, self._outputs.draw(self._chance))

    def _make(self, wanted: int) -> list[str]:
        for _ in range(1000):
            words = self._cut_prefix(round(wanted * self._share))
            words = self._filler.words(wanted, self._chance, words)
            text = " ".join(words)
            if text not in self._seen:
                self._seen.add(text)
                return words
        raise UsageError(
            f"there are not enough different prompts of {wanted} tokens",
            hint="ask for longer ones with --prompt-tokens, for fewer, or for less --prefix-share",
        )

    def _cut_prefix(self, wanted: int) -> list[str]:
        costs = [self._costs.first[word] for word in self._prefix[:1]]
        costs += [self._costs.later[word] for word in self._prefix[1:]]
        return [w for w, end in zip(self._prefix, accumulate(costs), strict=True) if end <= wanted]


class DatasetPrompts:
    """The prompts of a file in a shuffled order; begins again at the end, and counts that.

    `repeated_share` is what the user expects to be cached: the file does not tell.
    """

    def __init__(
        self, contents: Sequence[Any], outputs: LengthRange, repeated_share: float, seed: str
    ) -> None:
        self.repeated_share = repeated_share
        self._contents = list(contents)
        self._outputs = outputs
        self._chance = random.Random(seed)
        self._chance.shuffle(self._contents)
        self._next = 0
        self.num_repeated = 0

    def take(self, num: int) -> list[Prompt]:
        return list(self._take(num))

    def _take(self, num: int) -> Iterator[Prompt]:
        for _ in range(num):
            content = self._contents[self._next % len(self._contents)]
            self.num_repeated += self._next >= len(self._contents)
            self._next += 1
            yield Prompt(content, None, self._outputs.draw(self._chance))


def read_dataset(path: Path) -> list[Any]:
    """Texts or message lists of a file with one JSON object a line, all of one kind."""
    lines = read_json_lines(path, lambda what: _bad_dataset(path, what))
    contents = [_content(path, number, record) for number, record in lines]
    unique = list({json.dumps(content): content for content in contents}.values())
    if not unique:
        raise _bad_dataset(path, "holds no prompt")
    if len({type(content) for content in unique}) > 1:
        raise _bad_dataset(path, "mixes prompts and messages; use one kind in a file")
    return unique


def _content(path: Path, number: int, record: Any) -> Any:
    fields = record if isinstance(record, dict) else {}
    prompt, messages = fields.get("prompt"), fields.get("messages")
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(messages, list) and messages:
        return messages
    raise _bad_dataset(path, f"line {number} has neither a text `prompt` nor a list `messages`")


def _bad_dataset(path: Path, what: str) -> StokerError:
    return UsageError(
        f"the data set {path} {what}",
        hint='each line: {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}',
    )
