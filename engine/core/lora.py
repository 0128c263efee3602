"""LoraAdapters: which adapters the workers of an engine hold, and when one may go.

Decides nothing about names; the API server gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from engine.lora_adapters import LoraRequest


class LoraAdapters:
    """`call_workers` runs a method on every rank and returns the answers."""

    def __init__(self, call_workers: Callable[..., list[Any]]) -> None:
        self._call_workers = call_workers
        self._loaded: dict[int, LoraRequest] = {}
        self._retired: set[int] = set()

    def load(self, request: LoraRequest) -> str | None:
        """Load it on every rank, or on none; None, or what is in the way."""
        if request.lora_id in self._retired:
            return f"The LoRA adapter `{request.name}` has been unloaded."
        if request.lora_id in self._loaded:
            return None
        errors = [error for error in self._call_workers("load_adapter", request) if error]
        if errors:
            self._call_workers("remove_adapter", request.lora_id)
            return str(errors[0])
        self._loaded[request.lora_id] = request
        return None

    def load_again(self) -> None:
        """The workers have lost all that they held. One that cannot be loaded any more is tried
        again when a request asks for it, which is told why.
        """
        held, self._loaded = self._loaded, {}
        for request in held.values():
            self.load(request)

    def retire(self, lora_id: int) -> None:
        """No new request gets it; it goes once no request uses it."""
        self._retired.add(lora_id)

    def remove_unused(self, used: Callable[[], Iterable[int]]) -> None:
        """Free retired adapters that no living request has; `used` is asked if there are any."""
        waiting = self._retired & self._loaded.keys()
        for lora_id in sorted(waiting.difference(used()) if waiting else ()):
            self._call_workers("remove_adapter", lora_id)
            del self._loaded[lora_id]
