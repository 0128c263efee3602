"""Why a request was not served from the prefix cache: compared with what was asked before it.

Keeps the token ids of the newest requests; those of an image, which are all the same, stand for it
with the numbers of its digest. Decides nothing: the scheduler tells it what it did.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from engine.messages import ImageInput, MissCause, PrefixMiss
from engine.sched.request import Request

MAX_REQUESTS = 64
MAX_TOKENS = 1 << 20
_BYTES = array("i").itemsize


@dataclass(slots=True)
class _Earlier:
    """A request that was admitted before; `request` while it lives, whose answer still grows."""

    token_bytes: bytes
    num_prompt_tokens: int
    cache_salt: str | None
    message_digests: tuple[bytes, ...]
    request: Request | None
    lora_id: int
    images: tuple[range, ...]  # places of their tokens
    is_emptied: bool = False  # the whole cache was, after it had been computed

    @property
    def num_tokens(self) -> int:
        return len(self.token_bytes) // _BYTES

    @property
    def num_computed_tokens(self) -> int:
        return self.num_tokens if self.request is None else self.request.num_computed_tokens


class PrefixHistory:
    """The newest requests of one engine, at most MAX_REQUESTS and MAX_TOKENS of them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._earlier: dict[str, _Earlier] = {}  # oldest first
        self._num_tokens = 0

    def admit(self, request: Request, num_cached_tokens: int) -> PrefixMiss | None:
        """Remembers a request at its first admission, and says why it found no more than this.

        None where nothing was lost: all that an earlier request had was there.
        """
        tokens = _packed(request.token_ids, request.images)
        nearest, matched = self._nearest(tokens, request.cache_salt)
        miss = self._explain(request, nearest, matched, num_cached_tokens)
        self._remember(
            request.request_id,
            _Earlier(
                tokens,
                request.num_prompt_tokens,
                request.cache_salt,
                request.message_digests,
                request,
                request.lora_id,
                _places(request.images),
            ),
        )
        return miss

    def end(self, request: Request) -> None:
        """The request's answer may be the beginning of the next prompt."""
        earlier = self._earlier.get(request.request_id)
        if earlier is not None:
            self._num_tokens -= earlier.num_tokens
            earlier.token_bytes = _packed(request.token_ids, request.images)
            earlier.request = None
            earlier.is_emptied = False  # if it was, all has been computed anew
            self._num_tokens += earlier.num_tokens

    def note_emptied(self) -> None:
        """Nothing of what was computed so far can be found any more."""
        for earlier in self._earlier.values():
            earlier.is_emptied = True

    def _remember(self, request_id: str, earlier: _Earlier) -> None:
        self._earlier[request_id] = earlier
        self._num_tokens += earlier.num_tokens
        while len(self._earlier) > MAX_REQUESTS or (
            self._num_tokens > MAX_TOKENS and len(self._earlier) > 1
        ):
            oldest = self._earlier.pop(next(iter(self._earlier)))
            self._num_tokens -= oldest.num_tokens

    def _nearest(self, tokens: bytes, cache_salt: str | None) -> tuple[_Earlier | None, int]:
        """The request with the longest equal beginning, and its length; of several the newest of
        the same salt.
        """
        best, matched, wanted = None, 0, tokens[:_BYTES]
        for earlier in reversed(self._earlier.values()):
            # One comparison tells most of them: as far as the best one, and a token further.
            if earlier.token_bytes.startswith(wanted) and len(wanted) > matched * _BYTES:
                best, matched = earlier, _num_equal(tokens, earlier.token_bytes)
                wanted = tokens[: (matched + 1) * _BYTES]
            elif (
                best is not None
                and best.cache_salt != cache_salt == earlier.cache_salt
                and earlier.token_bytes.startswith(tokens[: matched * _BYTES])
            ):
                best = earlier
        return best, matched

    def _explain(
        self, request: Request, nearest: _Earlier | None, matched: int, num_cached_tokens: int
    ) -> PrefixMiss | None:
        cause = self._cause(request, nearest, matched, num_cached_tokens)
        if cause is None:
            return None
        return PrefixMiss(cause, matched, max(0, matched - num_cached_tokens))

    def _cause(
        self, request: Request, nearest: _Earlier | None, matched: int, num_cached_tokens: int
    ) -> MissCause | None:
        if nearest is None:
            return MissCause.NO_PREDECESSOR
        # The last token is always computed: its logits are needed.
        findable = min(matched, request.num_tokens - 1) // self._block_size * self._block_size
        if num_cached_tokens < findable:
            if request.cache_salt != nearest.cache_salt:
                is_same = request.lora_id == nearest.lora_id
                return MissCause.OTHER_SALT if is_same else MissCause.OTHER_ADAPTER
            if nearest.is_emptied:
                return MissCause.EMPTIED
            is_computed = nearest.num_computed_tokens >= findable
            return MissCause.EVICTED if is_computed else MissCause.NOT_COMPUTED
        if matched < min(nearest.num_tokens, request.num_tokens):
            if matched >= nearest.num_prompt_tokens:
                return MissCause.REWRITTEN_ANSWER
            if _is_image(matched, nearest.images) and _is_image(matched, _places(request.images)):
                return MissCause.OTHER_IMAGE
            return MissCause.RENDERED_ANEW if _goes_on(request, nearest) else MissCause.OTHER_TEXT
        return MissCause.PARTIAL_BLOCK if num_cached_tokens < matched else None


def _goes_on(request: Request, earlier: _Earlier) -> bool:
    """Whether it is the same chat: all that the earlier one was asked comes first again."""
    messages = earlier.message_digests
    return bool(messages) and request.message_digests[: len(messages)] == messages


def _packed(token_ids: Sequence[int], images: Sequence[ImageInput]) -> bytes:
    packed = array("i", token_ids)
    for image in images:
        words = array("i", image.digest)
        repeated = words * (image.num_tokens // len(words) + 1)
        packed[image.offset : image.end] = repeated[: image.num_tokens]
    return packed.tobytes()


def _places(images: Sequence[ImageInput]) -> tuple[range, ...]:
    return tuple(range(image.offset, image.end) for image in images)


def _is_image(place: int, images: Sequence[range]) -> bool:
    return any(place in image for image in images)


def _num_equal(left: bytes, right: bytes) -> int:
    """Equal leading tokens, found by halves: comparing bytes is the fastest that there is."""
    low, high = 0, min(len(left), len(right)) // _BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * _BYTES : middle * _BYTES] == right[low * _BYTES : middle * _BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
