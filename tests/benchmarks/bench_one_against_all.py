"""What /health and small requests see while one client asks for too much.

Python -m tests.benchmarks.bench_one_against_all URL [NAME...], against a running server.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

_WORDS = "The quick brown fox jumps over the lazy dog. "
_STEP_S = 0.01


def _list(entry: str, count: int) -> str:
    return "[" + ",".join([entry] * count) + "]"


def _body(field: str, value: str, prompt: str | None = None) -> str:
    """The JSON is put together as text: most of these are too large to be made otherwise."""
    beside = "" if prompt is None else f',"prompt":{json.dumps(prompt)}'
    return f'{{"{field}":{value}{beside}}}'


def _grammar(first: str) -> str:
    return json.dumps("start: " + "|".join(f'"{first}{number:x}"' for number in range(60_000)))


BODIES: dict[str, tuple[str, Callable[[], str]]] = {
    "bad words": (
        "/v1/completions",
        lambda: _body("bad_words", _list(json.dumps("word " * 20_000), 128), "a"),
    ),
    "long text": ("/tokenize", lambda: json.dumps({"prompt": _WORDS * 330_000})),
    "text at the limit": ("/tokenize", lambda: json.dumps({"prompt": _WORDS * 22_000})),
    "texts": ("/tokenize", lambda: _body("prompt", _list('"ab"', 2_500_000))),
    "messages": (
        "/v1/chat/completions",
        lambda: _body("messages", _list('{"role":"user","content":""}', 500_000)),
    ),
    "messages at the limit": (
        "/v1/chat/completions",
        lambda: _body("messages", _list('{"role":"user","content":"hello"}', 16_000)),
    ),
    "prompts": ("/v1/completions", lambda: _body("prompt", _list('"a"', 4_000_000))),
    "token ids": ("/detokenize", lambda: _body("tokens", _list("11", 4_000_000))),
    "token ids at the limit": ("/detokenize", lambda: _body("tokens", _list("11", 260_000))),
    "lists at the limit": ("/v1/completions", lambda: _body("prompt", _list("[1]", 32_000))),
    "slow grammar": (
        "/v1/completions",
        lambda: _body("guided_grammar", _grammar("g"), "x"),
    ),
    "short slow grammar": (
        "/v1/completions",
        lambda: '{"prompt":"x","guided_regex":"a{1000000}"}',
    ),
    "log probabilities": (
        "/v1/completions",
        lambda: json.dumps(
            {"prompt": [list(range(10, 1500))] * 4, "max_tokens": 1, "prompt_logprobs": 20}
        ),
    ),
}


async def _post(url: str, body: bytes) -> str:
    """By a process of its own: what sending costs must not slow the probes."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(body)
        words = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-m", "300", "-H", "Expect:"]
        words += ["-H", "Content-Type: application/json", "--data-binary", f"@{file.name}", url]
        process = await asyncio.create_subprocess_exec("curl", *words, stdout=-1)
        status, _ = await process.communicate()
    return status.decode()


async def _probe(url: str, body: object, found_ms: list[float]) -> None:
    async with httpx.AsyncClient(timeout=300) as client:
        while True:
            start = time.perf_counter()
            await (client.get(url) if body is None else client.post(url, json=body))
            found_ms.append((time.perf_counter() - start) * 1000)
            await asyncio.sleep(_STEP_S)


async def measure(base: str, name: str) -> str:
    """One line of the report."""
    path, make = BODIES[name]
    health_ms: list[float] = []
    small_ms: list[float] = []
    small = {"prompt": "Hello", "max_tokens": 4}
    probes = [
        asyncio.create_task(_probe(f"{base}/health", None, health_ms)),
        asyncio.create_task(_probe(f"{base}/v1/completions", small, small_ms)),
    ]
    body = make().encode()
    while not small_ms:
        await asyncio.sleep(_STEP_S)
    health_ms.clear()
    start = time.perf_counter()
    status = await _post(base + path, body)
    took_s = time.perf_counter() - start
    for probe in probes:
        probe.cancel()
    await asyncio.gather(*probes, return_exceptions=True)
    health_ms.sort()
    p99 = health_ms[int(len(health_ms) * 0.99)] if health_ms else took_s * 1000
    return (
        f"{name:24s} {status} in {took_s:6.2f} s   /health p99 {p99:6.0f} ms   "
        f"small requests, worst {max(small_ms):6.0f} ms"
    )


async def _main(base: str, names: list[str]) -> None:
    for name in names or BODIES:
        print(await measure(base.rstrip("/"), name), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2:]))
