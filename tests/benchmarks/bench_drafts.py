"""Servers with and without drafts: the same tokens, and how much sooner they come.

    python -m tests.benchmarks.bench_drafts --streams 1 8 [FLAGS]

Both answer the prompts of `draft_prompts.py`, greedily, in waves that take turns, and so under
the same load of other programs. They are started anew for each number of streams, since what was
answered before is the best draft for the same question. Other flags are the servers'. Exits with 1
where a token differs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import httpx

from engine.speculative_config import NO_DRAFTS
from tests.benchmarks.draft_prompts import prompts
from tests.e2e.running_server import ENGINE, STOKER, Server, free_port, started

_TIMEOUT_S = 600.0
_WARM_UP = [f"Count from {number} to {number + 5}." for number in range(4)]


@dataclass(frozen=True, slots=True)
class Load:
    """Questions to `model`, so many at once, answered with at most so many tokens."""

    model: str
    streams: int
    tokens: int


@dataclass(slots=True)
class Took:
    """Sums of waves; CPU seconds are those of EngineCore."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_tokens: int = 0


@dataclass
class Candidate:
    """One server."""

    server: Server
    took: Took = field(default_factory=Took)

    def ask(self, questions: Sequence[str], load: Load) -> tuple[list[list[int]], float]:
        """The tokens of each answer, and the seconds until the last one."""
        core = self.server.engine_core()
        before, start = core.cpu_times(), time.perf_counter()
        answers = asyncio.run(_answers(self.server.url, questions, load))
        wall_s, after = time.perf_counter() - start, core.cpu_times()
        self.took.wall_s += wall_s
        self.took.cpu_s += after.user + after.system - before.user - before.system
        self.took.num_tokens += sum(map(len, answers))
        return answers, wall_s


async def _answers(url: str, questions: Sequence[str], load: Load) -> list[list[int]]:
    limit = asyncio.Semaphore(load.streams)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S) as client:

        async def answer(question: str) -> list[int]:
            body = {
                "model": load.model,
                "messages": [{"role": "user", "content": question}],
                "temperature": 0,
                "max_tokens": load.tokens,
                "return_token_ids": True,
            }
            async with limit:
                response = await client.post("/v1/chat/completions", json=body)
            response.raise_for_status()
            return list(response.json()["choices"][0]["token_ids"])

        return await asyncio.gather(*map(answer, questions))


@dataclass(frozen=True, slots=True)
class Kind:
    """What the answers to one kind of prompt were like, with and without drafts."""

    num_equal: int
    num_answers: int
    ratios: list[float]  # of tokens a second, wave by wave
    drafting: Took
    plain: Took

    def line(self) -> str:
        """Ratios are those with drafts beside without."""
        with_drafts, without = self.drafting, self.plain
        low, _, high = statistics.quantiles(self.ratios * 2, n=4)
        cpu = without.cpu_s / with_drafts.cpu_s
        return (
            f"same tokens {self.num_equal}/{self.num_answers}  tokens/s x"
            f"{without.wall_s / with_drafts.wall_s:.2f} (waves: {low:.2f} to {high:.2f}; "
            f"{without.num_tokens / without.wall_s:.0f} -> "
            f"{with_drafts.num_tokens / with_drafts.wall_s:.0f})  "
            f"tokens per CPU second x{cpu:.2f}"
        )


def waves(questions: Sequence[str], streams: int) -> list[Sequence[str]]:
    """One question each for one stream, else about two for each of them, in equal parts."""
    count = len(questions) if streams == 1 else max(1, round(len(questions) / (2 * streams)))
    return [questions[number::count] for number in range(count)]


def compare(
    pair: tuple[Server, Server], questions: Sequence[str], load: Load, turns: Iterator[bool]
) -> Kind:
    """Ask both servers; `turns` say whether the drafting one is first in the next wave."""
    drafting, plain = candidates = [Candidate(server) for server in pair]
    num_equal, ratios = 0, []
    for wave in waves(questions, load.streams):
        order = candidates if next(turns) else candidates[::-1]
        found = {id(one): one.ask(wave, load) for one in order}
        (tokens, wall_s), (expected, plain_s) = found[id(drafting)], found[id(plain)]
        ratios.append(plain_s / wall_s)
        for question, ours, theirs in zip(wave, tokens, expected, strict=True):
            num_equal += ours == theirs
            if ours != theirs:
                print(f"differs: {question!r}\n  drafts {ours}\n  plain  {theirs}")
    return Kind(num_equal, len(questions), ratios, drafting.took, plain.took)


@contextlib.contextmanager
def server(model: str, flags: Sequence[str]) -> Iterator[Server]:
    """The engine, started without the tool around it."""
    port = free_port()
    with started([*ENGINE, "serve", model, "--port", str(port), *flags], port) as running:
        yield running
        running.stop()


def main() -> None:
    """A line for each number of streams and kind of prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompts", type=int, default=50, help="of each kind")
    parser.add_argument("--kinds", nargs="+", default=["edits", "retrieval", "code", "prose"])
    parser.add_argument("--tokens", type=int, default=128, help="most of an answer")
    options, flags = parser.parse_known_args()
    subprocess.run([str(STOKER), "models", "pull", options.model], check=True)
    questions = prompts(options.prompts)
    are_equal = True
    for streams in options.streams:
        load = Load(options.model, streams, options.tokens)
        no_drafts = ["--speculative-config", NO_DRAFTS]
        with (
            server(options.model, flags) as drafting,
            server(options.model, [*flags, *no_drafts]) as plain,
        ):
            pair = drafting, plain
            turns = itertools.cycle([True, False])
            compare(pair, _WARM_UP, load, turns)
            for name in options.kinds:
                kind = compare(pair, questions[name], load, turns)
                are_equal &= kind.num_equal == kind.num_answers
                print(f"{streams:3d} streams  {name:10s} {kind.line()}", flush=True)
    raise SystemExit(0 if are_equal else 1)


if __name__ == "__main__":
    main()
