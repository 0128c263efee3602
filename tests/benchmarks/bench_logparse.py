"""Speed and memory of the log parser: a large log made of the collected samples, one of a server
that ran for days, and a small one.

`python -m tests.benchmarks.bench_logparse [MEGABYTES] [FOLDER]`; --fuzz N reads N damaged pieces,
--mutate N reads each log of the folder in N forms in which its server never answered.
"""

from __future__ import annotations

import argparse
import collections
import io
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from logparse import LogParser, explain, parse_lines, to_document
from logparse.reading.restore import restored_lines
from logparse.reading.source import decoded_lines
from tests.logparse.mutations import mutated_logs
from tests.places import DATA, SHARED

SAMPLES = SHARED / "logs"
START = DATA / "seed_example10.log"
_SMALL_BYTES = 100_000


def sample_logs(folder: Path) -> list[bytes]:
    """The bytes of every sample."""
    logs = [path.read_bytes() for path in sorted(folder.glob("*.log"))]
    if not logs:
        raise SystemExit(f"no *.log in {folder}: name a folder with server logs")
    return [log if log.endswith(b"\n") else log + b"\n" for log in logs]


def write_large_log(target: Path, samples: list[bytes], size: int) -> None:
    """One sample after the other until `size` is reached."""
    written = 0
    with target.open("wb") as file:
        while written < size:
            for sample in samples:
                written += file.write(sample)


def write_long_log(target: Path, size: int, seed: int = 1) -> None:
    """One start, then hours of serving: a throughput line every ten seconds, access lines."""
    chance, clock, written = random.Random(seed), 0, 0
    server = "(APIServer pid=1000) INFO"
    with target.open("w") as file:
        written += file.write(START.read_text())
        written += file.write(f"{server}:     Application startup complete.\n")
        while written < size:
            clock += 10
            stamp = time.strftime("%m-%d %H:%M:%S", time.gmtime(clock))
            written += file.write(
                f"{server} {stamp} [loggers.py:257] Engine 000: Avg prompt throughput: "
                f"{chance.uniform(0, 900):.1f} tokens/s, Avg generation throughput: "
                f"{chance.uniform(0, 2000):.1f} tokens/s, Running: {chance.randrange(64)} reqs, "
                f"Waiting: {chance.randrange(9)} reqs, GPU KV cache usage: "
                f"{chance.uniform(0, 99):.1f}%, Prefix cache hit rate: 12.3%\n"
            )
            for _ in range(chance.randrange(40)):
                what = chance.choice(("GET /health", "POST /v1/chat/completions", "GET /metrics"))
                written += file.write(
                    f"{server}:     10.0.0.{chance.randrange(255)}:{chance.randrange(1024, 65535)}"
                    f' - "{what} HTTP/1.1" 200 OK\n'
                )


def peak_mib() -> float:
    """The most memory this process has held."""
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def bench_large(name: str, log: Path) -> None:
    """Throughput in process time, and the peak memory at every quarter."""
    size = log.stat().st_size
    start, peaks, seen, mark = time.process_time(), [], 0, size // 4
    parser = LogParser(tells_events=False)
    with log.open("rb") as stream:
        for line in restored_lines(decoded_lines(stream)):
            parser.feed(line)
            seen += len(line)
            if seen >= mark:
                peaks.append(peak_mib())
                mark += size // 4
    text = explain(parser.report()).text()
    spent = time.process_time() - start
    lines = parser.report().lines.total
    speed = f"{spent:.2f} s, {size / 1e6 / spent:.1f} MB/s"
    print(f"{name}, {size / 1e6:.0f} MB, {lines} lines: {speed}")
    print(f"peak memory by quarter, MiB: {', '.join(f'{peak:.1f}' for peak in peaks)}")
    print(f"first line of the explanation: {text.splitlines()[0]}")


def bench_small(samples: list[bytes]) -> None:
    """Process time of `python -m logparse` from its start to the explanation of 100 KB.

    With bytecode, as installed: where none may be written, all of the source would be compiled.
    """
    text = b"".join(samples)[:_SMALL_BYTES]
    times = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(6):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, "-m", "logparse", "-"],
                input=text,
                stdout=subprocess.DEVNULL,
                env=environment,
                check=False,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"{_SMALL_BYTES // 1000} KB in a fresh process: {min(times) * 1e3:.0f} ms process time")


def mutations(samples: list[bytes], count: int, seed: int) -> Iterator[bytes]:
    """`count` damaged pieces of logs: bytes flipped, cut, repeated, spliced, lines shuffled."""
    chance = random.Random(seed)
    for _ in range(count):
        source = chance.choice(samples)
        at = chance.randrange(len(source))
        piece = bytearray(source[at : at + chance.randrange(1, 4000)])
        for _ in range(chance.randrange(1, 8)):
            _mutate(piece, samples, chance)
        yield bytes(piece)


def _mutate(piece: bytearray, samples: list[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(piece) + 1)
    end = min(len(piece), at + chance.randrange(1, 60))
    kind = chance.randrange(6)
    if kind == 0:
        piece[at:end] = chance.randbytes(end - at)
    elif kind == 1:
        del piece[at:end]
    elif kind == 2:
        piece[at:at] = piece[at:end] * chance.randrange(1, 200)
    elif kind == 3:
        other = chance.choice(samples)
        start = chance.randrange(len(other))
        piece[at:end] = other[start : start + chance.randrange(1, 400)]
    elif kind == 4:
        lines = bytes(piece).splitlines(keepends=True)
        chance.shuffle(lines)
        piece[:] = b"".join(lines)
    else:
        piece[at:at] = chance.choice(
            (b"\r", b"\n", b"\0", b"\x1b[", b"> ", b"0: ", b"\xff", b"{", b"&lt;")
        )


def read_mutated(log: bytes) -> str:
    """Everything that is done with a log, in memory; the explanation."""
    parser = LogParser()
    for line in restored_lines(decoded_lines(io.BytesIO(log))):
        parser.feed(line)
    report = parser.report()
    to_document(report)
    return explain(report).text()


def fuzz(samples: list[bytes], count: int, seed: int) -> None:
    """Read mutated logs; the slowest is measured again, since a first match compiles its rule."""
    slowest, start = 0.0, time.process_time()
    for log in mutations(samples, count, seed):
        if (spent := _price(log)) > slowest:
            slowest = max(slowest, min(spent, _price(log), _price(log)))
    spent = time.process_time() - start
    print(f"{count} mutated logs in {spent:.0f} s; slowest {slowest * 1e6:.1f} s per MB")


def mutate(folder: Path, count: int, seed: int) -> None:
    """Count wrong answers: a log whose server never answered that is called ready."""
    logs = {}
    for path in sorted(folder.glob("*.log")):
        with path.open("rb") as stream:
            logs[path.name] = [line.rstrip("\n") for line in decoded_lines(stream)]
    outcomes: collections.Counter[str] = collections.Counter()
    for what, lines in mutated_logs(logs, count, seed):
        outcome = parse_lines(lines).outcome.value
        outcomes[outcome] += 1
        if outcome == "ready":
            print(f"called ready: {what}")
    print(f"{outcomes.total()} mutated logs of {len(logs)}: {dict(outcomes)}")


def _price(log: bytes) -> float:
    """Seconds per byte, with a kilobyte for the report itself."""
    before = time.process_time()
    read_mutated(log)
    return (time.process_time() - before) / (len(log) + 1000)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megabytes", nargs="?", type=int, default=200)
    parser.add_argument("folder", nargs="?", type=Path, default=SAMPLES)
    parser.add_argument("--fuzz", type=int, default=0, metavar="N")
    parser.add_argument("--mutate", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.mutate:
        mutate(arguments.folder, arguments.mutate, arguments.seed)
        return
    samples = sample_logs(arguments.folder)
    if arguments.fuzz:
        fuzz(samples, arguments.fuzz, arguments.seed)
        return
    bench_small(samples)
    size = arguments.megabytes * 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "large.log"
        write_large_log(log, samples, size)
        bench_large("samples", log)
        write_long_log(log, size)
        bench_large("one server", log)


if __name__ == "__main__":
    main()
