"""DraftCheck: which tokens of the drafts in one step the model would have chosen itself.

Each position gets the token that the request would have got there, by the same random number: so
drafts change how many tokens a step gives, and never which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.kernels.step_batch import IntArray, within_runs


@dataclass(frozen=True, slots=True)
class DraftCheck:
    """The positions of a step that ask for a token, several for a request with a draft.

    `owner` is the request of each position, `ahead` how far it lies behind the request's last
    token; `drafts` has a list per request.
    """

    drafts: Sequence[Sequence[int]]
    owner: IntArray
    ahead: IntArray

    @classmethod
    def of(cls, drafts: Mapping[str, Sequence[int]], req_ids: Sequence[str]) -> DraftCheck:
        """Of the requests that get a token, in the order of the step."""
        listed = [drafts.get(req_id, ()) for req_id in req_ids]
        widths = np.array([1 + len(draft) for draft in listed], dtype=np.int64)
        owner = np.repeat(np.arange(len(listed)), widths)
        return cls(listed, owner, within_runs(widths))

    def kept(self, tokens: IntArray) -> list[list[int]]:
        """Each request's new tokens: its draft as far as it came true, and the token behind that.

        `tokens` are the chosen ones, by position; one below 0 (no numbers) is the last.
        """
        chosen, start, found = tokens.tolist(), 0, []
        for draft in self.drafts:
            count = 1
            while count <= len(draft) and chosen[start + count - 1] == draft[count - 1]:
                count += 1
            found.append(chosen[start : start + count])
            start += 1 + len(draft)
        return found
