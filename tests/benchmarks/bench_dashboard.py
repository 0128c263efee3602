"""What the dashboard costs: python -m tests.benchmarks.bench_dashboard [SECONDS] [SIZE, as 120x40]

`stoker top` in a pseudo terminal, once a second on a real vLLM's /metrics, whose numbers move.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from app.client.metrics.sample import read_sample
from tests.client.local_server import Answer, Call, serving
from tests.places import SHARED

REAL = SHARED / "metrics" / "vllm-0.30.0-busy.txt"
SETTLE_S = 4.0
_COUNTED = re.compile(r"^(vllm:\S*(?:_total|_bucket|_sum|_count)\{[^\n]*\}) (\S+)$", re.M)


def moving(text: str) -> Callable[[Call], Answer]:
    """The text with every counter a little further at each scrape."""
    number = 0

    def answer(_call: Call) -> Answer:
        nonlocal number
        number += 1
        moved = _COUNTED.sub(lambda m: f"{m[1]} {float(m[2]) * (1 + number / 1000)}", text)
        return Answer([moved.encode()])

    return answer


def best_ms(action: Callable[[], object], times: int = 30) -> float:
    """The shortest of several runs."""
    found = []
    for _ in range(times):
        start_s = time.perf_counter()
        action()
        found.append(time.perf_counter() - start_s)
    return 1000 * min(found)


def in_terminal(words: list[str], size: tuple[int, int]) -> tuple[int, int]:
    """Start a program in a pseudo terminal; its pid and the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
        os.execv(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    return pid, terminal


class Screen(threading.Thread):
    """Reads what the program writes and notes when `words` were first there."""

    def __init__(self, terminal: int, words: bytes) -> None:
        super().__init__(daemon=True)
        self._terminal = terminal
        self._words = words
        self.seen = threading.Event()
        self.num_bytes = 0

    def run(self) -> None:
        tail = b""
        while True:
            try:
                piece = os.read(self._terminal, 1 << 16)
            except OSError:
                return
            self.num_bytes += len(piece)
            tail = (tail + piece)[-(1 << 17) :]
            if self._words in tail:
                self.seen.set()


def measure(url: str, seconds: float, size: tuple[int, int]) -> None:
    """One run: first picture, then the cost of `seconds` at rest."""
    program = str(Path(sys.executable).with_name("stoker"))
    start_s = time.perf_counter()
    pid, terminal = in_terminal([program, "top", url], size)
    screen = Screen(terminal, b"KV cache")
    screen.start()
    assert screen.seen.wait(60), "no picture"
    first_s = time.perf_counter() - start_s
    process = psutil.Process(pid)
    first_cpu_s = sum(process.cpu_times()[:2])
    time.sleep(SETTLE_S)
    before, before_s, before_bytes = process.cpu_times(), time.perf_counter(), screen.num_bytes
    time.sleep(seconds)
    after, spent_s = process.cpu_times(), time.perf_counter() - before_s
    cpu_s = after.user + after.system - before.user - before.system
    written = (screen.num_bytes - before_bytes) / spent_s
    print(f"  first picture     {first_s:.2f} s ({first_cpu_s:.2f} s of CPU)")
    print(f"  CPU at 1 Hz       {100 * cpu_s / spent_s:.1f} % of a core over {spent_s:.0f} s")
    print(f"  resident memory   {process.memory_info().rss / (1 << 20):.0f} MiB")
    print(f"  to the terminal   {written / 1024:.1f} KiB/s")
    os.write(terminal, b"q")
    os.waitpid(pid, 0)


def main() -> None:
    """Parse times, then the dashboard."""
    from prometheus_client.parser import text_string_to_metric_families as reference

    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    width, height = (sys.argv[2] if len(sys.argv) > 2 else "120x40").split("x")
    text = REAL.read_text(encoding="utf-8")
    print(f"{len(text) / 1000:.1f} kB of /metrics:")
    print(f"  read_sample       {best_ms(lambda: read_sample(text, 0.0)):.2f} ms")
    print(f"  prometheus_client {best_ms(lambda: list(reference(text))):.2f} ms (parser alone)")
    with serving({"/metrics": moving(text)}) as server:
        print(f"stoker top at {width}x{height}:")
        measure(server.url, seconds, (int(width), int(height)))


if __name__ == "__main__":
    main()
