"""A lean streaming load client: it shares the cores with the server.

So it costs as little as it can.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

_WORDS = ("river", "stone", "cloud", "paper", "garden", "window", "summer", "letter", "bridge")


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One run: tokens per second over all streams, and latency medians in milliseconds."""

    concurrency: int
    output_tokens: int
    elapsed_s: float
    ttft_ms: float
    itl_ms: float

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.elapsed_s


def prompt_text(number: int, num_words: int = 50) -> str:
    """A prompt that differs from every other from its first word on, so no prefix is shared."""
    words = [_WORDS[(number * 7 + i * i + i * number) % len(_WORDS)] for i in range(num_words)]
    return f"{number} " + " ".join(words)


async def run_load(
    url: str, model: str, concurrency: int, *, max_tokens: int = 128, salt: int = 0
) -> LoadResult:
    """`concurrency` streams at once through /v1/completions, greedy, ignore_eos."""
    start = time.perf_counter()
    streams = await asyncio.gather(
        *(
            _stream(url, model, prompt_text(salt * 1000 + number), max_tokens)
            for number in range(concurrency)
        )
    )
    elapsed = time.perf_counter() - start
    gaps = [b - a for _, stamps in streams for a, b in itertools.pairwise(stamps)]
    return LoadResult(
        concurrency=concurrency,
        output_tokens=sum(tokens for tokens, _ in streams),
        elapsed_s=elapsed,
        ttft_ms=statistics.median(stamps[0] - start for _, stamps in streams) * 1e3,
        itl_ms=statistics.median(gaps) * 1e3 if gaps else 0.0,
    )


async def _stream(url: str, model: str, prompt: str, max_tokens: int) -> tuple[int, list[float]]:
    """Tokens by the server's own usage, and when each chunk with text came."""
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r}: {(await reader.read())[-500:]!r}")
    stamps: list[float] = []
    tokens = 0
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        if b'"choices":[]' in line.replace(b" ", b""):
            tokens = json.loads(line[6:])["usage"]["completion_tokens"]
        else:
            stamps.append(time.perf_counter())
    writer.close()
    return tokens, stamps
