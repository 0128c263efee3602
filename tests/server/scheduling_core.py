"""A scripted EngineCore that keeps a real scheduler, for what /debug tells.

Not beside FakeCore: the scheduler's workload loads numpy, which no API server may.
"""

from __future__ import annotations

import asyncio
import json

from engine.sched.snapshot import (
    StepHistory,
    blocks_document,
    requests_document,
    scheduler_document,
)
from tests.sched.workload import Run, make_request, make_scheduler
from tests.server.fake_core import FakeCore


class CoreWithScheduler(FakeCore):
    """Answers /debug from a real scheduler that has run one step."""

    is_stuck = False

    async def call_utility(
        self, method: str, engine: int = 0, /
    ) -> bool | int | float | str | None:
        self.utilities.append(method)
        if self.is_stuck:
            await asyncio.Event().wait()
        scheduler = make_scheduler(num_blocks=20)
        scheduler.add_request(make_request(scheduler, "a", 9, 5))
        Run(scheduler).step()
        if method.startswith("debug_trace:"):
            return None  # EngineCore does not know it, the API server does
        documents = {
            "debug_scheduler": scheduler_document(scheduler, StepHistory()),
            "debug_requests": requests_document(scheduler, 3.0),
            "debug_blocks": blocks_document(scheduler),
        }
        return json.dumps(documents[method])
