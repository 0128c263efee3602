"""Seconds from `stoker serve` to /health 200: python -m tests.benchmarks.bench_start [FLAGS].

The first start packs the weights, the later ones find them packed; `--starts N` says how many.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import time

from engine.env import user_cache_dir
from tests.e2e.running_server import STOKER, free_port, health


def main() -> None:
    """One line per start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    options, engine_flags = parser.parse_known_args()
    subprocess.run([str(STOKER), "models", "pull", "smollm2-135m"], check=True)
    print(f"kernels and packed weights are kept under {user_cache_dir()}")
    for number in range(options.starts):
        print(f"start {number + 1}: {seconds_to_health(engine_flags):.2f} s to /health 200")


def seconds_to_health(engine_flags: list[str]) -> float:
    """Start a server, wait until it is healthy, stop it."""
    port = free_port()
    command = [str(STOKER), "serve", "--no-tui", "--port", str(port), *engine_flags]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        while health(f"http://127.0.0.1:{port}") != 200:
            if process.poll() is not None:
                assert process.stderr is not None
                raise SystemExit(process.stderr.read().decode())
            time.sleep(0.02)
        return time.perf_counter() - start
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


if __name__ == "__main__":
    main()
