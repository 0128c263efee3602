"""StructuredOutputManager: compiles grammars beside the engine loop and says which tokens may come.

Owns the tokenizer trie and the compiled grammars; a request's place in its grammar is its
RequestGrammar's. numpy and llguidance, no torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.core.grammar import grammar_of
from engine.logger import get_logger
from engine.model_config import ModelConfig
from engine.sampling_params import StructuredOutputsParams
from engine.sched.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

logger = get_logger(__name__)

_MAX_GRAMMARS = 128  # compiled ones that are kept, a few hundred KiB each
_COMPILE_THREADS = 2


class RequestGrammar:
    """One request's place in its grammar (`engine.sched.grammar.Grammar`)."""

    __slots__ = ("_compiled", "_matcher", "_request_id", "is_terminated")

    def __init__(self, request_id: str, compiled: Future[LLMatcher]) -> None:
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
        cause = self._compiled.exception()
        return str(cause) if cause is not None else (self.matcher.get_error() or None)

    @property
    def matcher(self) -> LLMatcher:
        """This request's own copy of the compiled grammar."""
        if self._matcher is None:
            self._matcher = self._compiled.result().deep_copy()
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


class StructuredOutputManager:
    """Grammars of one engine. Costs nothing until the first structured request."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        self._pool = ThreadPoolExecutor(_COMPILE_THREADS, thread_name_prefix="grammar")
        self._tokenizer: Future[LLTokenizer] | None = None
        self._executor: LLExecutor | None = None
        self._compiled: OrderedDict[StructuredOutputsParams, Future[LLMatcher]] = OrderedDict()

    def start(self, request_id: str, spec: StructuredOutputsParams) -> RequestGrammar:
        """A grammar for a new request; equal ones are compiled once."""
        if self._tokenizer is None:
            # First in the queue, so that the compilations that wait for it cannot fill the pool.
            self._tokenizer = self._pool.submit(_load_tokenizer, self._model)
        compiled = self._compiled.get(spec)
        if compiled is None:
            compiled = self._pool.submit(_compile, self._tokenizer, spec)
            self._compiled[spec] = compiled
            if len(self._compiled) > _MAX_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(spec)
        return RequestGrammar(request_id, compiled)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a compilation ends, `timeout_s` at most."""
        pending = [compiled for compiled in self._compiled.values() if not compiled.done()]
        wait(pending, timeout_s, FIRST_COMPLETED)

    def bitmask(self, grammars: Collection[Grammar]) -> NDArray[np.int32]:
        """One row per grammar, one bit per token, lowest bit first: may it come next?"""
        from llguidance import LLExecutor
        from llguidance.numpy import fill_next_token_bitmask_par

        assert self._tokenizer is not None, "a grammar was started"
        if self._executor is None:
            self._executor = LLExecutor()
        words = -(-self._tokenizer.result().vocab_size // 32)
        mask = np.zeros((len(grammars), words), dtype=np.int32)
        rows = []
        for row, grammar in enumerate(grammars):
            assert isinstance(grammar, RequestGrammar), "made by start()"
            rows.append((grammar.matcher, row))
        fill_next_token_bitmask_par(self._executor, rows, mask)
        return mask

    def shutdown(self) -> None:
        """Drop what is not compiled yet."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _load_tokenizer(model: ModelConfig) -> LLTokenizer:
    from llguidance import LLTokenizer

    text = (Path(model.path) / "tokenizer.json").read_text(encoding="utf-8")
    eos = list(model.eos_token_ids) or None
    try:
        # The model may have logits for more ids than the tokenizer has tokens; they are forbidden.
        return LLTokenizer(text, n_vocab=model.vocab_size, eos_token=eos)
    except ValueError:  # the tokenizer has the larger vocabulary, or is none that llguidance reads
        return LLTokenizer(text, eos_token=eos)


def _compile(tokenizer: Future[LLTokenizer], spec: StructuredOutputsParams) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    # Verbose errors would write the client's schema and text into the log.
    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(tokenizer.result(), grammar_of(spec), log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher
