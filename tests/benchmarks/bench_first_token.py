"""Times to the first token: `python -m tests.benchmarks.bench_first_token [ROUNDS]`.

Prompts that arrive together take turns, and for comparison go into one step together. One
EngineCore in this process, closed loops of equal prompts, both ways in alternated rounds. Medians
of the rounds: look at the machine's load.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import dataclass

from engine.args import EngineArgs
from engine.core.engine_core import EngineCore
from engine.env import HostDevice
from engine.messages import EngineCoreRequest
from engine.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from engine.sched.joint_prefill import JointPrefill
from tests.default_model import default_model_folder


@dataclass(frozen=True, slots=True)
class Load:
    """`streams` requests at once, `prompts` in all."""

    streams: int
    prompts: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Milliseconds to first tokens, and until all was done."""

    p50_ms: float
    last_ms: float
    total_ms: float


LOADS = (
    Load(1, 4, 60, 16),
    Load(8, 8, 60, 64),
    Load(8, 24, 60, 64),
    Load(32, 64, 60, 64),
    Load(64, 128, 60, 16),
    Load(8, 8, 512, 16),
    Load(8, 8, 3900, 16),
)
_VOCABULARY = range(1000, 20_000)


def main() -> None:
    """Two lines per load."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    core = engine()
    limit = core.config.scheduler.max_joint_prefill_tokens
    budget = core.config.scheduler.max_num_batched_tokens
    assert limit is not None, "no native kernels here"
    run(core, Load(1, 1, 60, 2))
    for load in LOADS:
        found: dict[int | None, list[Outcome]] = {limit: [], None: []}
        for number in range(rounds):
            for most in sorted(found, key=str, reverse=bool(number % 2)):
                core.scheduler._prefill = JointPrefill(most, budget)
                found[most].append(run(core, load))
        for most, outcomes in found.items():
            print_line(load, most, outcomes)
    core.shutdown()


def engine() -> EngineCore:
    """The default model, without a prefix cache and without drafts."""
    args = EngineArgs(
        dtype="bfloat16",
        max_model_len=4096,
        kv_cache_memory_bytes=2 << 30,
        enable_prefix_caching=False,
        speculative_config="null",
    )
    model = ModelConfig.from_folder(default_model_folder(), "default")
    return EngineCore(args.create_engine_config(model, HostDevice("cpu", "cpu", None)))


def run(core: EngineCore, load: Load) -> Outcome:
    """Each request that ends makes room for the next one."""
    dice, born, first_ms = random.Random(0), dict[str, float](), dict[str, float]()

    def add() -> None:
        name = f"{len(born)}"
        born[name] = time.perf_counter()
        core.add_request(
            EngineCoreRequest(
                request_id=name,
                prompt_token_ids=[dice.choice(_VOCABULARY) for _ in range(load.prompt_tokens)],
                sampling_params=SamplingParams(temperature=0.0, max_tokens=load.output_tokens),
                arrival_time=time.time(),
            )
        )

    start = time.perf_counter()
    for _ in range(load.streams):
        add()
    while not core.is_idle:
        outputs, now = core.step().outputs, time.perf_counter()
        for output in outputs:
            first_ms.setdefault(output.request_id, (now - born[output.request_id]) * 1e3)
            if output.finish_reason is not None and len(born) < load.prompts:
                add()
    total_ms = (time.perf_counter() - start) * 1e3
    return Outcome(statistics.median(first_ms.values()), max(first_ms.values()), total_ms)


def print_line(load: Load, most: int | None, outcomes: list[Outcome]) -> None:
    """Medians over the rounds."""
    p50, last, total = (
        statistics.median(getattr(outcome, name) for outcome in outcomes)
        for name in ("p50_ms", "last_ms", "total_ms")
    )
    way = "together" if most is None else "in turns"
    print(
        f"{load.streams:3d} streams, {load.prompts:3d} x {load.prompt_tokens:4d} + "
        f"{load.output_tokens:2d} tokens, {way}: TTFT p50 {p50:7.0f}, last {last:7.0f}, "
        f"all {total:7.0f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
