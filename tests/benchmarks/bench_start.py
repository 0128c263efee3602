"""Seconds from `stoker serve` to /health 200: python -m tests.benchmarks.bench_start [FLAGS].

The first start packs the weights, the later ones find them packed; `--starts N` says how many.
`--where` prints where the time of the later ones goes, as a table of parts.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import psutil

from engine.env import user_cache_dir
from tests.benchmarks.start_parts import StartWatch, import_table, table
from tests.e2e.running_server import STOKER, free_port, health


def main() -> None:
    """One line per start, and the median of those that found the weights packed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--where", action="store_true", help="where the time goes")
    options, engine_flags = parser.parse_known_args()
    subprocess.run([str(STOKER), "models", "pull", "smollm2-135m"], check=True)
    print(f"kernels and packed weights are kept under {user_cache_dir()}")
    found = []
    for number in range(options.starts):
        with tempfile.TemporaryDirectory() if options.where else nullcontext() as state:
            marks = start_and_stop(engine_flags, None if state is None else Path(state))
        print(f"start {number + 1}: {marks['ready']:.2f} s to /health 200", flush=True)
        found.append(marks)
    warm = found[1:] or found
    median_s = statistics.median(marks["ready"] for marks in warm)
    print(f"median of {len(warm)}: {median_s:.2f} s")
    if options.where:
        print(f"\n{table(warm)}\n\n{import_table()}")


def start_and_stop(engine_flags: list[str], state: Path | None) -> Mapping[str, float]:
    """Start a server, wait until it is healthy, stop it; when what happened, in seconds.

    With a folder for its state its log is followed; without one only `ready` is known.
    """
    port = free_port()
    command = [str(STOKER), "serve", "--no-tui", "--port", str(port), *engine_flags]
    environment = dict(os.environ)
    if state is not None:
        environment |= {"STOKER_STATE_DIR": str(state), "STOKER_LOGGING_LEVEL": "DEBUG"}
    begun_s = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    watch = None if state is None else StartWatch(state, begun_s)
    try:
        while health(f"http://127.0.0.1:{port}") != 200:
            if process.poll() is not None:
                assert process.stderr is not None
                raise SystemExit(process.stderr.read().decode())
            time.sleep(0.02)
        ready_s = time.monotonic() - begun_s
        if watch is None:
            return {"ready": ready_s}
        return watch.finish(ready_s, psutil.Process(process.pid))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


if __name__ == "__main__":
    main()
