"""CPU time of the API server per streamed token: python -m tests.benchmarks.bench_api_server.

`--against FOLDER` names another checkout with its own `.venv`, whose server takes turns with this
one's: both stand under the same load of other programs then, so that the ratio means something on a
busy machine. The client asks for nothing but chats: `stoker bench` has tokens counted, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from engine.machine.ports import free_port
from tests.e2e.running_server import STOKER, Server, started
from tests.places import ROOT

_QUESTION = "Tell story {number} of the sea and the wind, which people like to hear at night. "


@dataclass(frozen=True)
class Load:
    """Chats one after another in each of `streams`."""

    streams: int
    chats: int
    tokens: int

    @property
    def num_tokens(self) -> int:
        return self.streams * self.chats * self.tokens

    async def run(self, port: int) -> None:
        """Send it; returns when the last answer has come."""
        await asyncio.gather(*(self._stream(port, number) for number in range(self.streams)))

    async def _stream(self, port: int, number: int) -> None:
        for chat in range(self.chats):
            await self._chat(port, number * self.chats + chat)

    async def _chat(self, port: int, number: int) -> None:
        body = {
            "messages": [{"role": "user", "content": _QUESTION.format(number=number) * 3}],
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        raw = json.dumps(body).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + raw)
        answer = await reader.read()
        writer.close()
        assert b'"completion_tokens":%d' % self.tokens in answer, answer[-500:]


@dataclass(frozen=True)
class Round:
    """Microseconds of CPU per streamed token, and how many came a second."""

    user: float
    system: float
    tokens_per_s: float

    @property
    def total(self) -> float:
        return self.user + self.system


@dataclass
class Candidate:
    """A checkout's server, and what its rounds took."""

    name: str
    port: int
    server: Server
    rounds: list[Round] = field(default_factory=list)

    def measure(self, load: Load) -> Round:
        process = psutil.Process(self.server.process.pid)
        before, start = process.cpu_times(), time.perf_counter()
        asyncio.run(load.run(self.port))
        after, elapsed_s = process.cpu_times(), time.perf_counter() - start
        user, system = after.user - before.user, after.system - before.system
        scale = 1e6 / load.num_tokens
        return Round(user * scale, system * scale, load.num_tokens / elapsed_s)

    def median(self, name: str) -> float:
        values: list[float] = [getattr(one, name) for one in self.rounds]
        return statistics.median(values)


@contextlib.contextmanager
def candidate(folder: Path, flags: list[str]) -> Iterator[Candidate]:
    """The engine of one checkout, started without the tool around it."""
    port = free_port()
    command = [str(folder / ".venv/bin/python"), str(folder / "engine/__main__.py"), "serve"]
    with started([*command, "smollm2-135m", "--port", str(port), *flags], port) as server:
        yield Candidate(folder.name, port, server)
        server.stop()


def main() -> None:
    """A line per round, then the medians and their ratios; other flags are the servers'."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--chats", type=int, default=2, help="of each stream and round")
    options, flags = parser.parse_known_args()
    load = Load(options.streams, options.chats, 128)
    subprocess.run([str(STOKER), "models", "pull", "smollm2-135m"], check=True)
    with contextlib.ExitStack() as stack:
        folders = [ROOT, *([options.against.resolve()] if options.against else [])]
        candidates = [stack.enter_context(candidate(folder, flags)) for folder in folders]
        for one in candidates:  # what only the first requests do
            one.measure(Load(options.streams, 1, 16))
        for number in range(options.rounds):
            for one in candidates:
                took = one.measure(load)
                one.rounds.append(took)
                print(
                    f"round {number + 1}  {one.name:12s} {took.total:6.1f} us a token "
                    f"({took.user:.1f} user, {took.system:.1f} system), "
                    f"{took.tokens_per_s:.0f} tok/s",
                    flush=True,
                )
        for name, unit in (("total", "us a token"), ("tokens_per_s", "tok/s")):
            medians = [one.median(name) for one in candidates]
            texts = [
                f"{one.name} {value:.1f}" for one, value in zip(candidates, medians, strict=True)
            ]
            ratio = f", ratio {medians[0] / medians[1]:.3f}" if len(medians) == 2 else ""
            print(f"{unit:12s} {', '.join(texts)}{ratio}")


if __name__ == "__main__":
    main()
