"""Drafts: tokens that a request may get next, guessed from its own text and from recent answers.

Decides how many are worth trying, by how often they came true and by what a larger step costs
here. Whether they are right the model says: a step computes them all, and keeps what it would have
chosen itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.messages import DraftStats
from engine.sched.ngram_index import NgramIndex, continuation
from engine.sched.request import Request
from engine.sched.step_costs import StepCosts
from engine.speculative_config import SpeculativeConfig

MOST_ANSWER_TOKENS = 1 << 16
"""Of recent answers that are looked through; the older half is forgotten beyond."""

_LEAST_GAIN = 1.1  # of tokens per second, below which a step is left as it is
_LEAST_CHANCE = 0.01
_EVIDENCE_KEPT = 0.9  # of what was seen of a request, at each new draft
_DOUBT_KEPT = 0.98  # of it, at each step without a draft: a new try comes by and by
_REQUEST_WEIGHT = 2.0  # tokens that a request's own record is weighed against
_FORCED = 1 << 10  # as if so many tokens agreed: a grammar leaves nothing else
# By how many tokens agree before a guessed one: how often it comes true, until that is seen.
_USUAL_CHANCES = ((16, 0.76), (12, 0.74), (8, 0.71), (6, 0.67), (5, 0.62), (4, 0.56), (3, 0.44))
_SHORT_CHANCE = 0.28
_CHANCE_WEIGHT = 10.0
_LONGEST_REST = 8  # steps, of several requests, after others for which no draft was worth it
_CHANCE_KEPT = 0.998


class Likelihoods:
    """How often guesses come true, by how many tokens agree before them; learnt as they fare."""

    def __init__(self, most: int) -> None:
        """`most` is the longest agreement that is told apart."""
        self._most = most
        chances = [_usual_chance(agreed) for agreed in range(most + 1)]
        self._tried = [_CHANCE_WEIGHT] * (most + 1)
        self._right = [_CHANCE_WEIGHT * chance for chance in chances]

    def of(self, agreed: int) -> float:
        """The chance of the token behind `agreed` equal ones."""
        agreed = min(agreed, self._most)
        return self._right[agreed] / self._tried[agreed]

    def note(self, agreed: int, is_right: bool) -> None:
        """What became of such a token, given that those before it were right."""
        agreed = min(agreed, self._most)
        self._tried[agreed] = self._tried[agreed] * _CHANCE_KEPT + 1
        self._right[agreed] = self._right[agreed] * _CHANCE_KEPT + is_right


def _usual_chance(agreed: int) -> float:
    return next((chance for least, chance in _USUAL_CHANCES if agreed >= least), _SHORT_CHANCE)


@dataclass(slots=True)
class _Guesser:
    """What is known of one request: its index, how its drafts fared (decaying counts), and the
    agreement behind which the last one stood.
    """

    index: NgramIndex
    right: float = 0.0
    expected: float = 0.0  # right ones, by what guesses usually do
    agreed: int = 0

    @property
    def luck(self) -> float:
        """How its guesses fare beside those of others."""
        return (self.right + _REQUEST_WEIGHT) / (self.expected + _REQUEST_WEIGHT)


_NOTHING: tuple[list[int], int, float] = ([], 0, 1.0)


@dataclass(slots=True)
class _Counts:
    drafts: int = 0
    tokens: int = 0
    accepted: int = 0
    by_place: list[int] = field(default_factory=list)


class Drafter:
    """Proposes drafts for the running requests of one engine, and learns from what came true."""

    def __init__(self, config: SpeculativeConfig, most_rows: int) -> None:
        """`most_rows` is how many positions of one step may ask for a token."""
        self._config = config
        self._most_rows = most_rows
        self._guessers: dict[str, _Guesser] = {}
        self._answers: list[int] = []
        self._answer_index = self._new_index()
        self._costs = StepCosts(most_rows)
        self._likelihoods = Likelihoods(config.prompt_lookup_max)
        self._counts = _Counts()
        self._num_fruitless = 0  # looks in a row that gave several requests no draft
        self._rest = 0  # steps in which nobody looks again

    def _new_index(self) -> NgramIndex:
        return NgramIndex(self._config.prompt_lookup_min, self._config.prompt_lookup_max)

    def propose(self, running: Sequence[Request]) -> dict[str, list[int]]:
        """The drafts that are worth a try in the next step, by request.

        Where several requests get none, it is not looked for them at each step.
        """
        if len(running) > 1 and self._rest:
            self._rest -= 1
            return {}
        found = self._look(running)
        self._num_fruitless = 0 if found else self._num_fruitless + 1
        self._rest = min(self._num_fruitless, _LONGEST_REST)
        return found

    def _look(self, running: Sequence[Request]) -> dict[str, list[int]]:
        guesses: dict[str, list[int]] = {}
        chances: list[tuple[float, int, str]] = []
        for request in running:
            guess, agreed, luck = self._guess(request)
            if not guess:
                continue
            guesses[request.request_id] = guess
            chance = 1.0
            for length in range(1, len(guess) + 1):
                chance *= min(0.99, luck * self._likelihoods.of(agreed + length - 1))
                if chance < _LEAST_CHANCE:
                    break
                chances.append((-chance, length, request.request_id))
        if not chances:
            return {}
        chances.sort()
        lengths: dict[str, int] = {}
        for _, length, request_id in chances[: self._worth(len(running), chances)]:
            lengths[request_id] = length
        for request_id in guesses.keys() - lengths.keys():
            self._doubt(request_id)
        return {request_id: guesses[request_id][:length] for request_id, length in lengths.items()}

    def _worth(self, num_rows: int, chances: Sequence[tuple[float, int, str]]) -> int:
        """How many of the likeliest draft tokens give most tokens per second; 0 for none."""
        costs = self._costs
        if num_rows >= self._most_rows:
            return 0
        best, highest = 0, _LEAST_GAIN * num_rows / costs.of(num_rows)
        expected = float(num_rows)
        for count, (negative, _, _) in enumerate(chances[: self._most_rows - num_rows], start=1):
            expected -= negative
            rate = expected / costs.of(num_rows + count)
            if rate > highest:
                best, highest = count, rate
        return best

    def _guess(self, request: Request) -> tuple[list[int], int, float]:
        """The likeliest next tokens of a request that decodes, how many tokens agree before them,
        and its luck.
        """
        if not _can_guess(request):
            return _NOTHING
        tokens = request.token_ids
        guesser = self._guessers.get(request.request_id)
        if guesser is None:
            guesser = self._guessers[request.request_id] = _Guesser(self._new_index())
        guesser.index.extend(tokens)
        left = request.max_tokens - request.num_output_tokens - 1
        most = min(self._config.num_speculative_tokens, left)
        if most < 1:
            return _NOTHING
        if request.grammar is not None and (forced := request.grammar.forced()[:most]):
            guesser.agreed = _FORCED
            return forced, _FORCED, 1.0
        source: Sequence[int] = tokens
        place, agreed = guesser.index.find(tokens, tokens)
        other_place, other_agreed = self._answer_index.find(self._answers, tokens)
        if other_agreed > agreed:
            source, place, agreed = self._answers, other_place, other_agreed
        if not agreed:
            return _NOTHING
        guess = continuation(source, place, most)
        guesser.agreed = agreed
        return _allowed(request, guess), agreed, guesser.luck

    def _doubt(self, request_id: str) -> None:
        guesser = self._guessers[request_id]
        guesser.expected *= _DOUBT_KEPT
        guesser.right *= _DOUBT_KEPT

    def note(self, request_id: str, num_drafted: int, num_accepted: int) -> None:
        """What the model made of a draft."""
        counts = self._counts
        counts.drafts += 1
        counts.tokens += num_drafted
        counts.accepted += num_accepted
        counts.by_place.extend([0] * (num_accepted - len(counts.by_place)))
        for place in range(num_accepted):
            counts.by_place[place] += 1
        guesser = self._guessers.get(request_id)
        if guesser is None or guesser.agreed == _FORCED:
            return
        guesser.expected *= _EVIDENCE_KEPT
        guesser.right = guesser.right * _EVIDENCE_KEPT + num_accepted
        for place in range(min(num_accepted + 1, num_drafted)):
            agreed = guesser.agreed + place
            guesser.expected += self._likelihoods.of(agreed)
            self._likelihoods.note(agreed, place < num_accepted)

    def note_step(self, num_rows: int, seconds: float) -> None:
        """How long a step of decodes took."""
        self._costs.note(num_rows, seconds)

    def end(self, request: Request) -> None:
        """What a request that ended was answered may be asked for again."""
        if self._guessers.pop(request.request_id, None) is None:
            return
        self._answers += request.token_ids[request.num_prompt_tokens :]
        if len(self._answers) > MOST_ANSWER_TOKENS:
            self._answers = self._answers[-MOST_ANSWER_TOKENS // 2 :]
            self._answer_index = self._new_index()
        self._answer_index.extend(self._answers)

    def take_stats(self) -> DraftStats:
        """Counts since the last call."""
        counts, self._counts = self._counts, _Counts()
        return DraftStats(counts.drafts, counts.tokens, counts.accepted, counts.by_place)


def _allowed(request: Request, guess: list[int]) -> list[int]:
    """The part of a guess that the request's grammar allows, if it has one; without an end."""
    if request.grammar is None:
        return guess
    ends = {*request.eos_token_ids, *request.sampling_params.stop_token_ids}
    inside = list(itertools.takewhile(lambda token: token not in ends, guess))
    return inside[: request.grammar.num_possible(inside)] if inside else []


def _can_guess(request: Request) -> bool:
    """Whether only its last token is missing."""
    return (
        request.num_tokens - request.num_computed_tokens == 1
        and request.num_output_tokens > 0
        and request.pooling is None
    )
