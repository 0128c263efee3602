"""Cold start and throughput of a server: python -m tests.benchmarks.bench_serve [--url URL ...].

Without --url it starts `stoker serve --no-tui` on the default model. With two or more --url the
servers take turns, round by round, and the ratio to the first is printed: absolute figures move
with the host.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.load_client import LoadResult, run_load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", action="append", default=[], help="server that is already running")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options, engine_flags = parser.parse_known_args()
    if options.url:
        compare(options.url, options)
        return
    with stoker_server(engine_flags) as (url, cold_start_s):
        print(f"cold start to /health 200: {cold_start_s:.2f} s")
        compare([url], options)


def compare(urls: list[str], options: argparse.Namespace) -> None:
    """Alternate the servers; print each one's medians and the ratio to the first."""
    models = [model_of(url) for url in urls]
    for url, model in zip(urls, models, strict=True):
        asyncio.run(run_load(url, model, 2, max_tokens=8, salt=900))  # warm-up
    for concurrency in options.concurrency:
        results: list[list[LoadResult]] = [[] for _ in urls]
        for number in range(options.rounds):
            for index, (url, model) in enumerate(zip(urls, models, strict=True)):
                salt = concurrency * 100 + number
                result = asyncio.run(
                    run_load(url, model, concurrency, max_tokens=options.max_tokens, salt=salt)
                )
                results[index].append(result)
        base = statistics.median(item.tokens_per_s for item in results[0])
        for url, runs in zip(urls, results, strict=True):
            rate = statistics.median(item.tokens_per_s for item in runs)
            ttft = statistics.median(item.ttft_ms for item in runs)
            itl = statistics.median(item.itl_ms for item in runs)
            print(
                f"concurrency {concurrency:3d}  {rate:7.0f} tok/s  TTFT {ttft:7.1f} ms  "
                f"ITL {itl:6.1f} ms  x{rate / base:.2f}  {url}"
            )


def model_of(url: str) -> str:
    """First name in /v1/models."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as response:
        return str(json.load(response)["data"][0]["id"])


@contextmanager
def stoker_server(engine_flags: list[str]) -> Iterator[tuple[str, float]]:
    """`stoker serve` on a free port; yields its URL and the seconds to /health 200."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    stoker = Path(sys.executable).with_name("stoker")
    command = [str(stoker), "serve", "--no-tui", "--port", str(port), *engine_flags]
    subprocess.run([str(stoker), "models", "pull", "smollm2-135m"], check=True)
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        while not is_ready(url):
            if process.poll() is not None:
                assert process.stderr is not None
                raise SystemExit(process.stderr.read().decode())
            time.sleep(0.02)
        yield url, time.perf_counter() - start
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        print(f"stopped, exit code {process.returncode}", file=sys.stderr)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
