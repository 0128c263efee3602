"""Turns the tokens of one request into text as they come, never showing half a character."""

from __future__ import annotations

from collections.abc import Sequence

from engine.frontend.token_pieces import REPLACEMENT
from engine.frontend.tokenizer import Tokenizer

# Prompt tokens that stand before the first output: some decoders drop a leading space at the start.
_CONTEXT_TOKENS = 8
_MAX_WINDOW_TOKENS = 24
# A character has at most 4 bytes and a token at least one, so more tokens than that cannot be
# waiting for the rest of one character: the model really wrote invalid bytes.
_MAX_PENDING_TOKENS = 8


class IncrementalDetokenizer:
    """Decodes a short window of tokens again for each new one; what is new in its text goes out.

    A token whose text no neighbour changes is looked up instead, while no character is incomplete.
    """

    __slots__ = (
        "_is_whole",
        "_num_shown_chars",
        "_num_shown_tokens",
        "_pieces",
        "_skip_special_tokens",
        "_tokenizer",
        "_window",
    )

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._pieces = tokenizer.pieces(skip_special_tokens=skip_special_tokens)
        self._window = list(prompt_token_ids[-_CONTEXT_TOKENS:])
        # Tokens of the window whose text is out, and the length of that text.
        self._num_shown_tokens = len(self._window)
        text = self._decode()
        self._num_shown_chars = len(text.rstrip(REPLACEMENT))
        # Whether the next token's text stands behind all text of the window.
        self._is_whole = 0 < self._num_shown_chars == len(text)

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text that became complete with these tokens; often, but not always, non-empty."""
        if len(token_ids) == 1:
            return self._feed_one(token_ids[0])
        return "".join([self._feed_one(token_id) for token_id in token_ids])

    def _feed_one(self, token_id: int) -> str:
        self._window.append(token_id)
        piece = self._pieces[token_id] if self._is_whole and self._pieces is not None else None
        if piece is not None:
            self._num_shown_chars += len(piece)
            self._shift_window()
            return piece
        text = self._decode()
        has_given_up = len(self._window) - self._num_shown_tokens > _MAX_PENDING_TOKENS
        if text.endswith(REPLACEMENT) and not has_given_up:
            complete = len(text.rstrip(REPLACEMENT))
            new = text[self._num_shown_chars : complete]
            self._num_shown_chars = max(self._num_shown_chars, complete)
            self._is_whole = False
            return new
        new = text[self._num_shown_chars :]
        self._is_whole = 0 < self._num_shown_chars <= len(text)
        self._num_shown_chars = max(self._num_shown_chars, len(text))
        self._shift_window()
        return new

    def _shift_window(self) -> None:
        """All text is out: drop old tokens once there are many; the newest stay as context."""
        if len(self._window) >= _MAX_WINDOW_TOKENS:
            del self._window[: self._num_shown_tokens]
            self._num_shown_chars = len(self._decode())
            self._is_whole = self._num_shown_chars > 0
        self._num_shown_tokens = len(self._window)

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=self._skip_special_tokens)
