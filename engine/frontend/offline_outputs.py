"""What the offline LLM returns: whole answers, in the shapes of vLLM's outputs.py.

The pieces that they are put together from are those of `engine.frontend.outputs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.frontend import outputs
from engine.frontend.logprobs import Logprob, PositionLogprobs

LogprobsByToken = dict[int, Logprob]


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer. `token_ids` hold the token that ended it, `text` does not.

    `logprobs` has one dict per token (token id -> Logprob), `cumulative_logprob` is the sum over
    the tokens of the answer; both are None unless asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[LogprobsByToken] | None
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All answers to one prompt. `prompt` is None when the prompt came as token ids.

    The first entry of `prompt_logprobs` is None: nothing predicts the first token.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobsByToken | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A vector of length 1."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The vector of one prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool = True


def request_output(
    request_id: str,
    prompt: str | None,
    prompt_token_ids: list[int],
    answers: Sequence[outputs.RequestDelta],
) -> RequestOutput:
    """The samples of one prompt, each with all of its tokens, in one object."""
    first = answers[0]
    prompt_logprobs: list[LogprobsByToken | None] | None = None
    if first.prompt_logprobs is not None:
        prompt_logprobs = [None, *map(_by_token, first.prompt_logprobs[1:])]
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=prompt_token_ids,
        prompt_logprobs=prompt_logprobs,
        outputs=[_completion(index, answer) for index, answer in enumerate(answers)],
        finished=all(answer.is_finished for answer in answers),
        num_cached_tokens=first.num_cached_tokens,
    )


def _completion(index: int, answer: outputs.RequestDelta) -> CompletionOutput:
    positions = answer.logprobs
    return CompletionOutput(
        index=index,
        text=answer.text,
        token_ids=answer.token_ids,
        cumulative_logprob=None
        if positions is None
        else sum(position.chosen.logprob or 0.0 for position in positions),
        logprobs=None if positions is None else [_by_token(position) for position in positions],
        finish_reason=None if answer.finish_reason is None else str(answer.finish_reason),
        stop_reason=answer.stop_reason,
    )


def _by_token(position: PositionLogprobs) -> LogprobsByToken:
    return {item.token_id: item for item in (position.chosen, *position.top)}
