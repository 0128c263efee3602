"""StructuredOutputManager: compiles grammars beside the engine loop and says which tokens may come.

Owns the tokenizer trie and the compiled grammars; a request's place in its grammar is its
RequestGrammar's. numpy and llguidance, no torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.core.grammar import GrammarModel, compile_grammar, load_tokenizer, plain_reason
from engine.logger import get_logger
from engine.model_config import ModelConfig
from engine.sampling_params import StructuredOutputsParams
from engine.sched.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

logger = get_logger(__name__)

_MAX_GRAMMARS = 128
_MAX_BYTES = 256 << 20
"""Compiled grammars that are kept, and what they may take together."""

_LEAST_BYTES = 256 << 10  # of any compiled grammar
_COMPILE_THREADS = 2


class RequestGrammar:
    """One request's place in its grammar (`engine.sched.grammar.Grammar`)."""

    __slots__ = ("_compiled", "_matcher", "_request_id", "is_terminated")

    def __init__(self, request_id: str, compiled: Future[LLMatcher | str]) -> None:
        self._request_id = request_id
        self._compiled = compiled
        self._matcher: LLMatcher | None = None
        self.is_terminated = False

    @property
    def is_ready(self) -> bool:
        """False while it is being compiled."""
        return self._compiled.done()

    @property
    def error(self) -> str | None:
        """Why it cannot be used."""
        compiled = self._compiled.result()
        return compiled if isinstance(compiled, str) else (self.matcher.get_error() or None)

    @property
    def matcher(self) -> LLMatcher:
        """This request's own copy of the compiled grammar."""
        if self._matcher is None:
            compiled = self._compiled.result()
            assert not isinstance(compiled, str), "`error` is asked first"
            self._matcher = compiled.deep_copy()
        return self._matcher

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False, with a line in the log, when it cannot stand here."""
        matcher = self.matcher
        # Where nothing can be added any more, the end token must still come.
        is_complete = matcher.is_stopped()
        # A matcher that has failed still takes the end token.
        if not matcher.consume_token(token_id) or matcher.is_error():
            logger.error("Grammar of request %s failed: %s", self._request_id, matcher.get_error())
            return False
        self.is_terminated = is_complete or matcher.stop_reason() == "EndOfSentence"
        return True

    def forced(self) -> list[int]:
        """Tokens of the text that must come next; none while the grammar has failed."""
        matcher = self.matcher
        return [] if matcher.is_error() or matcher.is_stopped() else matcher.compute_ff_tokens()

    def num_possible(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens can come next, one after the other."""
        matcher = self.matcher
        if matcher.is_error() or matcher.is_stopped():
            return 0
        return matcher.validate_tokens(list(token_ids))


class StructuredOutputManager:
    """Grammars of one engine. Costs nothing until the first structured request."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = GrammarModel.of(model)
        self._pool = ThreadPoolExecutor(_COMPILE_THREADS, thread_name_prefix="grammar")
        self._tokenizer: Future[LLTokenizer] | None = None
        self._executor: LLExecutor | None = None
        self._compiled: OrderedDict[StructuredOutputsParams, Future[LLMatcher | str]] = (
            OrderedDict()
        )
        self._num_bytes = 0

    def start(self, request_id: str, spec: StructuredOutputsParams) -> RequestGrammar:
        """A grammar for a new request; equal ones are compiled once."""
        if self._tokenizer is None:
            # First in the queue, so that the compilations that wait for it cannot fill the pool.
            self._tokenizer = self._pool.submit(load_tokenizer, self._model)
        compiled = self._compiled.get(spec)
        if compiled is None:
            compiled = self._pool.submit(_compile, self._tokenizer, spec)
            self._compiled[spec] = compiled
            self._num_bytes += _size(spec)
        self._compiled.move_to_end(spec)
        self._forget()
        return RequestGrammar(request_id, compiled)

    def _forget(self) -> None:
        """Drop the grammars that were asked for longest ago; requests keep their own copies."""
        while len(self._compiled) > 1 and (
            len(self._compiled) > _MAX_GRAMMARS or self._num_bytes > _MAX_BYTES
        ):
            oldest, _ = self._compiled.popitem(last=False)
            self._num_bytes -= _size(oldest)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a compilation ends, `timeout_s` at most."""
        pending = [compiled for compiled in self._compiled.values() if not compiled.done()]
        wait(pending, timeout_s, FIRST_COMPLETED)

    def bitmask(
        self, grammars: Collection[Grammar], drafts: Sequence[Sequence[int]] = ()
    ) -> NDArray[np.int32]:
        """One row per grammar, one bit per token, lowest bit first: may it come next?

        With `drafts`, one for each grammar, a row for each place in it follows.
        """
        from llguidance import LLExecutor
        from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

        assert self._tokenizer is not None, "a grammar was started"
        if self._executor is None:
            self._executor = LLExecutor()
        words = -(-self._tokenizer.result().vocab_size // 32)
        drafts = drafts or [()] * len(grammars)
        mask = np.zeros((len(grammars) + sum(map(len, drafts)), words), dtype=np.int32)
        rows, row = [], 0
        for grammar, draft in zip(grammars, drafts, strict=True):
            assert isinstance(grammar, RequestGrammar), "made by start()"
            rows.append((grammar.matcher, row))
            row += 1 + len(draft)
        fill_next_token_bitmask_par(self._executor, rows, mask)
        for (matcher, first), draft in zip(rows, drafts, strict=True):
            for number, token in enumerate(draft, start=1):
                matcher.consume_token(token)  # `num_possible` said that it can stand there
                fill_next_token_bitmask(matcher, mask, first + number)
            if draft:
                matcher.rollback(len(draft))
        return mask

    def shutdown(self) -> None:
        """Drop what is not compiled yet."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _size(spec: StructuredOutputsParams) -> int:
    return max(spec.compiled_bytes, spec.num_chars, _LEAST_BYTES)


def _compile(tokenizer: Future[LLTokenizer], spec: StructuredOutputsParams) -> LLMatcher | str:
    """The matcher, or why there is none: an exception would keep what it was raised over."""
    try:
        return compile_grammar(tokenizer.result(), spec)
    except BaseException as error:  # a panic of llguidance is no `Exception`
        return plain_reason(str(error)) or type(error).__name__
