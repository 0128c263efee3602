"""A KVCacheManager with a clock, for traces: how long its answers to one plan took together."""

from __future__ import annotations

import time

from engine.sched.kv_cache_manager import KVCacheManager, PrefixHits
from engine.sched.request import Request
from engine.sched.scheduler_output import BlockIds


class TimedKVCacheManager(KVCacheManager):
    """`spent_s` grows with each prefix lookup and each allocation."""

    spent_s = 0.0

    def get_computed_blocks(self, request: Request) -> PrefixHits:
        start_s = time.monotonic()
        hits = super().get_computed_blocks(request)
        self.spent_s += time.monotonic() - start_s
        return hits

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: PrefixHits | None = None,
        *,
        must_fit_tokens: int = 0,
    ) -> BlockIds | None:
        start_s = time.monotonic()
        found = super().allocate_slots(
            request, num_new_tokens, hits, must_fit_tokens=must_fit_tokens
        )
        self.spent_s += time.monotonic() - start_s
        return found
