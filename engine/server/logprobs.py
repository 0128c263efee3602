"""Log probabilities in the shapes of the three places where the API has them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from engine.frontend.logprobs import Logprob, PositionLogprobs


def chat_logprobs(
    positions: Sequence[PositionLogprobs], *, as_ids: bool = False
) -> dict[str, object]:
    """`choices[].logprobs` of a chat completion; `as_ids` writes tokens as `token_id:7`."""
    content = [
        _written(
            {
                **_chat_token(position.chosen, as_ids),
                "top_logprobs": [_chat_token(top, as_ids) for top in position.top],
            }
        )
        for position in positions
    ]
    return {"content": content, "refusal": None}


def _chat_token(item: Logprob, as_ids: bool) -> dict[str, object]:
    return {"token": _word(item, as_ids), "logprob": item.logprob, "bytes": list(item.raw)}


def _word(item: Logprob, as_ids: bool) -> str:
    """Text does not always say which token it was: two may have the same, or none be whole."""
    return f"token_id:{item.token_id}" if as_ids else item.token


def prompt_logprobs(positions: Sequence[PositionLogprobs]) -> list[msgspec.Raw | None]:
    """vLLM's `prompt_logprobs`: one object per prompt token, by token id; null for the first."""
    return [
        None
        if position.chosen.logprob is None
        else _written(
            {
                str(item.token_id): {
                    "logprob": item.logprob,
                    "rank": item.rank,
                    "decoded_token": item.token,
                }
                for item in (position.chosen, *position.top)
            }
        )
        for position in positions
    ]


class CompletionLogprobs:
    """`choices[].logprobs` of one text completion, piece by piece when it is streamed.

    `text_offset` counts characters that were complete before the token, so the parts of one
    character share an offset.
    """

    def __init__(self, *, as_ids: bool = False) -> None:
        self._as_ids = as_ids
        self._num_chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, positions: Sequence[PositionLogprobs]) -> dict[str, object]:
        """The next positions; offsets go on where the last call ended."""
        return {
            "text_offset": [self._offset(position.chosen) for position in positions],
            "token_logprobs": [position.chosen.logprob for position in positions],
            "tokens": [_word(position.chosen, self._as_ids) for position in positions],
            "top_logprobs": [_by_token(position, self._as_ids) for position in positions],
        }

    def _offset(self, item: Logprob) -> int:
        offset = self._num_chars
        self._num_chars += len(self._decoder.decode(item.raw))
        return offset


def _by_token(position: PositionLogprobs, as_ids: bool) -> msgspec.Raw | None:
    """The most likely tokens, and the chosen one even if it is not among them."""
    if position.chosen.logprob is None:
        return None
    logprobs = {_word(item, as_ids): item.logprob for item in (*position.top, position.chosen)}
    return _written(logprobs)


def _written(value: object) -> msgspec.Raw:
    """JSON of one position: far smaller than its objects, and no long call at the end of all."""
    return msgspec.Raw(msgspec.json.encode(value))
