"""Cost of schedule() plus update_from_output(), without a model.

Python -m tests.benchmarks.bench_scheduler.
"""

from __future__ import annotations

import statistics
import time

from engine.sched.scheduler_output import ModelRunnerOutput
from tests.sched.workload import make_request, make_scheduler


def step_cost_us(num_running: int, steps: int = 300) -> float:
    """Median microseconds of one decode step with `num_running` requests."""
    scheduler = make_scheduler(
        num_blocks=20_000, block_size=16, caching=True, tokens=16_384, seqs=num_running
    )
    for number in range(num_running):
        scheduler.add_request(make_request(scheduler, str(number), 60, 100_000))
    costs = []
    for _ in range(steps):
        start = time.perf_counter()
        planned = scheduler.schedule()
        planned_s = time.perf_counter() - start
        result = ModelRunnerOutput(
            list(planned.num_scheduled_tokens), [[7] for _ in planned.num_scheduled_tokens]
        )
        start = time.perf_counter()
        scheduler.update_from_output(planned, result)
        costs.append(planned_s + time.perf_counter() - start)
    return statistics.median(costs) * 1e6


if __name__ == "__main__":
    for count in (1, 32, 256):
        print(f"{count:4d} running: {step_cost_us(count):7.0f} us per step")
