"""llama-server's GET /slots: what each of its slots works on. Prompt text is not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.client.errors import BadAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One place for a request. Numbers of the request are None while the slot is free."""

    number: int
    num_context_tokens: int
    is_busy: bool
    task: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_done: int | None = None  # cached ones included
    cached_tokens: int | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None  # None where the request set no limit

    @property
    def tokens_held(self) -> int | None:
        """Tokens whose KV lies in the slot, as far as the server tells."""
        if self.prompt_tokens_done is None or self.output_tokens is None:
            return None
        return self.prompt_tokens_done + self.output_tokens


def read_slots(document: Any) -> tuple[Slot, ...]:
    """The answer of GET /slots, of builds since 2024."""
    try:
        return tuple(_read_slot(entry) for entry in document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadAnswer("/slots answered in a form that this version does not know") from error


def _read_slot(entry: Any) -> Slot:
    number, num_context_tokens = int(entry["id"]), int(entry["n_ctx"])
    if not entry["is_processing"]:
        return Slot(number=number, num_context_tokens=num_context_tokens, is_busy=False)
    next_token = entry.get("next_token") or {}
    if isinstance(next_token, list):  # one per sequence in newer builds
        next_token = next_token[0]
    output = _number(next_token, "n_decoded")
    held, cached = _number(entry, "n_prompt_tokens"), _number(entry, "n_prompt_tokens_cache")
    processed = _number(entry, "n_prompt_tokens_processed")
    limit = _number(entry.get("params") or {}, "n_predict")
    return Slot(
        number=number,
        num_context_tokens=num_context_tokens,
        is_busy=True,
        task=_number(entry, "id_task"),
        prompt_tokens=None if held is None else held - (output or 0),
        prompt_tokens_done=None if processed is None else processed + (cached or 0),
        cached_tokens=cached,
        output_tokens=output,
        max_tokens=limit if limit is not None and limit >= 0 else None,
    )


def _number(entry: Any, name: str) -> int | None:
    value = entry.get(name)
    return None if value is None else int(value)
