"""Grammar: what the scheduler knows of a request's structured output. Its matcher is core's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Grammar(Protocol):
    """The grammar of one request, followed token by token; it survives preemptions."""

    @property
    def is_ready(self) -> bool:
        """False while it is being compiled; afterwards it can be used, or `error` says why not."""

    @property
    def error(self) -> str | None:
        """Why the request cannot go on; None while all is well."""

    @property
    def is_terminated(self) -> bool:
        """True once the end token was accepted: the output is complete."""

    def accept(self, token_id: int) -> bool:
        """Go on by one generated token; False when it cannot stand here."""

    def forced(self) -> list[int]:
        """Tokens of the text that must come next, whatever the model wants; often none."""

    def num_possible(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens can come next, one after the other."""
