"""Why the prefix cache did not have more of a prompt, in words; as our own engine tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.client.terminal_text import strip_escapes

_CAUSES = {
    "no_predecessor": "no earlier request begins like this one",
    "other_text": "from token {place:,} on the text is another one",
    "rewritten_answer": "the model's own answer comes back in other tokens from token {place:,} on",
    "rendered_anew": "the template wrote the same messages in other tokens from token {place:,} on",
    "partial_block": "only full blocks can be found, so {lost:,} tokens are computed again",
    "not_computed": "the earlier request is still being computed, {lost:,} of its tokens were not "
    "there yet",
    "evicted": "{lost:,} tokens were evicted to make room for other requests",
    "emptied": "{lost:,} tokens went when the whole cache was emptied, as for a server's sleep",
    "other_salt": "the earlier request has another cache_salt, so {lost:,} tokens are not shared",
    "other_adapter": "the earlier request uses another adapter, so {lost:,} tokens are not shared",
    "other_image": "from token {place:,} on there is another image",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMiss:
    """Compared with the earlier request that shares most of the prompt's beginning.

    `matched_tokens` of the prompt are equal to it; `lost_tokens` of these were not in the cache.
    """

    cause: str
    matched_tokens: int
    lost_tokens: int

    def sentence(self) -> str:
        """What is equal, and the cause in words; that of a newer server is given as it is."""
        words = _CAUSES.get(self.cause, self.cause.replace("_", " "))
        why = words.format(place=self.matched_tokens + 1, lost=self.lost_tokens)
        return f"{self.matched_tokens:,} tokens as before; {why}"


def read_prefix_miss(entry: Any) -> PrefixMiss | None:
    """The `prefix_miss` of a /debug document; None where nothing was lost or told."""
    if entry is None:
        return None
    return PrefixMiss(
        cause=strip_escapes(str(entry["cause"])),
        matched_tokens=int(entry["matched_tokens"]),
        lost_tokens=int(entry["lost_tokens"]),
    )
