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
from engine.speculative_config import SpeculativeConfig

MOST_ANSWER_TOKENS = 1 << 16
"""Of recent answers that are looked through; the older half is forgotten beyond."""

_LEAST_GAIN = 1.04  # of tokens per second, below which a step is left as it is
_EVIDENCE_KEPT = 0.9  # of what was seen before, at each new result
_DOUBT_KEPT = 0.98  # of it, at each step without a draft: a new try comes by and by
_PRIOR_WEIGHT = 1.5
_FORCED = 1 << 10  # as if so many tokens agreed: a grammar leaves nothing else
# By how many tokens agree before the guess: how often its first token comes true, until seen.
_PRIORS = ((12, 0.9), (6, 0.75), (4, 0.55), (0, 0.4))


@dataclass(slots=True)
class _Guesser:
    """What is known of one request: its index, and how its drafts fared (decaying counts)."""

    index: NgramIndex
    tried: float = 0.0
    right: float = 0.0

    def probability(self, agreed: int) -> float:
        """That the next token of a draft is right, given that those before it were."""
        prior = next(chance for least, chance in _PRIORS if agreed >= least)
        return (self.right + _PRIOR_WEIGHT * prior) / (self.tried + _PRIOR_WEIGHT)


class StepCosts:
    """How long a step of decodes takes by its number of rows, learnt from the steps that ran."""

    _PACE = 0.2
    _KEPT_STEPS = 400
    _MOST_JUMP = 2.0

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._seen_at: dict[int, int] = {}
        self._num_steps = 0

    def note(self, num_rows: int, seconds: float) -> None:
        """A step with nothing but decodes and drafts has run."""
        self._num_steps += 1
        before = self._seen.get(num_rows, seconds)
        seconds = min(seconds, self._MOST_JUMP * before)  # something else had the cores
        self._seen[num_rows] = before + self._PACE * (seconds - before)
        self._seen_at[num_rows] = self._num_steps
        if self._num_steps % self._KEPT_STEPS == 0:
            self._forget()

    def _forget(self) -> None:
        """Sizes that did not come again: what one slow step said must not stand for ever, since
        nobody would try that size again.
        """
        oldest = self._num_steps - self._KEPT_STEPS
        for rows in [rows for rows, at in self._seen_at.items() if at < oldest]:
            del self._seen[rows], self._seen_at[rows]

    def of(self, num_rows: int) -> float:
        """In any unit: steps of a size that was not seen cost what the nearest one suggests."""
        if not self._seen:
            return self._usual(num_rows)
        known = min(self._seen, key=lambda rows: (abs(rows - num_rows), rows))
        return self._seen[known] * self._usual(num_rows) / self._usual(known)

    @staticmethod
    def _usual(num_rows: int) -> float:
        """Memory binds up to about eight rows, arithmetic beyond."""
        return 8.0 + 0.6 * min(num_rows, 8) + 1.0 * max(0, num_rows - 8)


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
        self._costs = StepCosts()
        self._counts = _Counts()

    def _new_index(self) -> NgramIndex:
        return NgramIndex(self._config.prompt_lookup_min, self._config.prompt_lookup_max)

    def propose(self, running: Sequence[Request]) -> dict[str, list[int]]:
        """The drafts that are worth a try in the next step, by request."""
        guesses: dict[str, list[int]] = {}
        chances: list[tuple[float, int, str]] = []
        for request in running:
            guess, probability = self._guess(request)
            if not guess:
                continue
            guesses[request.request_id] = guess
            chance = 1.0
            for length in range(1, len(guess) + 1):
                chance *= probability
                chances.append((-chance, length, request.request_id))
        if not chances:
            return {}
        chances.sort()
        lengths: dict[str, int] = {}
        for _, length, request_id in chances[: self._worth(len(running), chances)]:
            lengths[request_id] = max(length, lengths.get(request_id, 0))
        for request_id in guesses.keys() - lengths.keys():
            self._doubt(request_id)
        return {request_id: guesses[request_id][:length] for request_id, length in lengths.items()}

    def _worth(self, num_rows: int, chances: Sequence[tuple[float, int, str]]) -> int:
        """How many of the likeliest draft tokens give most tokens per second; 0 for none."""
        best, highest = 0, _LEAST_GAIN * num_rows / self._costs.of(num_rows)
        expected = float(num_rows)
        for count, (negative, _, _) in enumerate(chances, start=1):
            if num_rows + count > self._most_rows:
                break
            expected -= negative
            rate = expected / self._costs.of(num_rows + count)
            if rate > highest:
                best, highest = count, rate
        return best

    def _guess(self, request: Request) -> tuple[list[int], float]:
        """The likeliest next tokens of a request that decodes, and the chance of each of them."""
        if not _can_guess(request):
            return [], 0.0
        tokens = request.token_ids
        guesser = self._guessers.get(request.request_id)
        if guesser is None:
            guesser = self._guessers[request.request_id] = _Guesser(self._new_index())
        guesser.index.extend(tokens)
        left = request.max_tokens - request.num_output_tokens - 1
        most = min(self._config.num_speculative_tokens, left)
        if most < 1:
            return [], 0.0
        if request.grammar is not None and (forced := request.grammar.forced()[:most]):
            return forced, guesser.probability(_FORCED)
        source: Sequence[int] = tokens
        place, agreed = guesser.index.find(tokens, tokens)
        other_place, other_agreed = self._answer_index.find(self._answers, tokens)
        if other_agreed > agreed:
            source, place, agreed = self._answers, other_place, other_agreed
        if not agreed:
            return [], 0.0
        guess = continuation(source, place, most)
        return _allowed(request, guess), guesser.probability(agreed)

    def _doubt(self, request_id: str) -> None:
        guesser = self._guessers[request_id]
        guesser.tried *= _DOUBT_KEPT
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
        if guesser is not None:
            was_wrong = num_accepted < num_drafted
            guesser.tried = guesser.tried * _EVIDENCE_KEPT + num_accepted + was_wrong
            guesser.right = guesser.right * _EVIDENCE_KEPT + num_accepted

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
    """Whether only its last token is missing, and what it gets next depends on nothing that a draft
    would change on the way (penalties, tokens that are forbidden for now).
    """
    params = request.sampling_params
    return (
        request.num_tokens - request.num_computed_tokens == 1
        and request.num_output_tokens > 0
        and request.pooling is None
        and not params.has_penalties
        and not params.has_token_edits
    )
