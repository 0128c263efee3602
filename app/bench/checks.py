"""Whether a result can be believed: equal work, no cache that served it, counters that agree.

A finding means exit code 3; a note is worth knowing and changes nothing.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.bench.report import answered, counter_increases, failed, num_output_tokens
from app.bench.round import Round
from app.client.metrics.sample import rates_between

_TOLERANCE = 0.01
_BUSY = 0.9  # share of a core from which on the client itself is the limit
_LATE_MS = 50.0


@dataclass(frozen=True, slots=True)
class Finding:
    """`id` is stable; `text` says what was seen and what to do."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What the workload itself explains."""

    cached_share: float  # of the prompt tokens: shared prefix and chat template
    num_repeated_prompts: int = 0


def findings_of(rounds: Sequence[Round], expected: Expected) -> list[Finding]:
    """Why the result of one server under one load cannot be taken as it stands."""
    checks = (_errors, _short_answers, _counted_tokens, _restart, _client)
    found = [finding for check in checks for finding in check(rounds)]
    found += _cache(rounds, expected)
    where = f"{rounds[0].target.url}, {rounds[0].load}: "
    return [Finding(finding.id, where + finding.text) for finding in found]


def unequal_work(ours: Sequence[Round], theirs: Sequence[Round]) -> list[Finding]:
    """Whether two servers under one load did the same work per request."""
    found = []
    for what, index in (("prompt tokens", 0), ("generated tokens", 1)):
        a, b = _means(ours)[index], _means(theirs)[index]
        if a is not None and b is not None and abs(a - b) > _TOLERANCE * max(a, b):
            text = f"{ours[0].load}: {a:.1f} against {b:.1f} {what} a request; is it one model?"
            found.append(Finding("unequal-work", text))
    return found


def notes_of(rounds: Sequence[Round]) -> list[str]:
    """Worth knowing: preemptions, prompts of another length than asked, no counters."""
    where = f"{rounds[0].target.url}, {rounds[0].load}: "
    notes = []
    outcomes = [outcome for round_ in rounds for outcome in round_.outcomes]
    if refused := sum(outcome.is_refused for outcome in outcomes):
        notes.append(
            f"{where}{refused} of {len(outcomes)} requests were refused: the queue is full"
        )
    increases = [counter_increases(round_) for round_ in rounds]
    if preemptions := sum(part["preemptions"] or 0 for part in increases):
        notes.append(f"{where}{preemptions:.0f} preemptions: the KV cache is too small for it")
    if all(part["generation_tokens"] is None for part in increases):
        url = rounds[0].target.url
        notes.append(f"{url}: its counters cannot be read, so nothing confirms the counts")
    pairs = {(o.expected_prompt_tokens, o.prompt_tokens) for r in rounds for o in answered(r)}
    if strange := [(a, b) for a, b in pairs if a is not None and b is not None and a != b]:
        asked, counted = sorted(a for a, _ in strange), sorted(b for _, b in strange)
        notes.append(
            f"{where}prompts meant to have {_span(asked)} tokens have {_span(counted)} "
            "by the server's count"
        )
    return notes


def _errors(rounds: Sequence[Round]) -> Iterator[Finding]:
    lost = failed(outcome for round_ in rounds for outcome in round_.outcomes)
    if lost:
        kinds = ", ".join(f"{n} x {kind}" for kind, n in Counter(o.error for o in lost).items())
        detail = f" ({lost[0].detail})" if lost[0].detail else ""
        yield Finding("errors", f"requests failed: {kinds}{detail}")


def _short_answers(rounds: Sequence[Round]) -> Iterator[Finding]:
    done = [outcome for round_ in rounds for outcome in answered(round_)]
    other = [o for o in done if num_output_tokens(o) != o.wanted_tokens]
    if other:
        mean = statistics.fmean(num_output_tokens(outcome) for outcome in other)
        wanted = statistics.fmean(outcome.wanted_tokens for outcome in other)
        text = f"{len(other)} of {len(done)} answers have {mean:.1f} tokens on average, not "
        yield Finding("unequal-work", f"{text}the {wanted:.1f} asked for (is ignore_eos taken?)")


def _counted_tokens(rounds: Sequence[Round]) -> Iterator[Finding]:
    counted = [counter_increases(round_)["generation_tokens"] for round_ in rounds]
    if any(value is None for value in counted):
        return
    theirs = sum(value or 0 for value in counted)
    ours = sum(num_output_tokens(outcome) for round_ in rounds for outcome in answered(round_))
    has_failures = any(outcome.error for round_ in rounds for outcome in round_.outcomes)
    if theirs > ours * (1 + _TOLERANCE) and not has_failures:
        text = f"the server generated {theirs:.0f} tokens, {ours} of them for this run"
        yield Finding("other-load", f"{text}; measure without other requests")
    elif theirs < ours * (1 - _TOLERANCE):
        text = f"the answers hold {ours} tokens, the server counted {theirs:.0f}"
        yield Finding("counters-differ", f"{text}; are several servers behind this address?")


def _restart(rounds: Sequence[Round]) -> Iterator[Finding]:
    for round_ in rounds:
        if (
            round_.before
            and round_.after
            and rates_between(round_.before, round_.after).had_restart
        ):
            yield Finding("restart", "the server started again during a round")
            return


def _client(rounds: Sequence[Round]) -> Iterator[Finding]:
    share = max(round_.cpu_s / round_.duration_s for round_ in rounds)
    if share > _BUSY:
        text = f"this client used {share:.0%} of a core, so it may be what was measured"
        yield Finding("client-limit", f"{text}; use fewer streams or several clients")
    lags = [o.sent_s - o.due_s for round_ in rounds for o in round_.outcomes]
    if (late := sum(lag * 1e3 > _LATE_MS for lag in lags)) > _TOLERANCE * len(lags):
        yield Finding("client-late", f"{late} of {len(lags)} requests left {_LATE_MS:.0f} ms late")


def _cache(rounds: Sequence[Round], expected: Expected) -> Iterator[Finding]:
    done = [outcome for round_ in rounds for outcome in answered(round_)]
    prompt_tokens = sum(outcome.prompt_tokens or 0 for outcome in done)
    by_counter = [counter_increases(round_)["prefix_hits"] for round_ in rounds]
    by_answer = [outcome.cached_tokens for outcome in done if outcome.cached_tokens is not None]
    if not by_answer and all(value is None for value in by_counter):
        if expected.num_repeated_prompts:
            text = f"{expected.num_repeated_prompts} prompts were sent more than once"
            yield Finding("repeated-prompts", f"{text}, and the server does not say what it cached")
        return
    cached = max(sum(value or 0 for value in by_counter), sum(by_answer))
    share = cached / prompt_tokens if prompt_tokens else 0.0
    if share > expected.cached_share + _TOLERANCE:
        text = f"{share:.0%} of the prompt tokens came from the prefix cache"
        yield Finding("prefix-cache", f"{text}; give another --seed, or a larger data set")


def _means(rounds: Sequence[Round]) -> tuple[float | None, float | None]:
    done = [outcome for round_ in rounds for outcome in answered(round_)]
    prompts = [outcome.prompt_tokens for outcome in done if outcome.prompt_tokens is not None]
    outputs = [num_output_tokens(outcome) for outcome in done]
    return (
        statistics.fmean(prompts) if prompts else None,
        statistics.fmean(outputs) if outputs else None,
    )


def _span(ordered: Sequence[int]) -> str:
    return f"{ordered[0]}" if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"
