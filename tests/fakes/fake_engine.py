"""A small server in place of an engine: vLLM-shaped lines, /health, bad manners on demand."""

from __future__ import annotations

import argparse
import http.server
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SLEEPER = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)"
)


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def say(
    text: str, process: str = "APIServer", where: str = "api_utils.py:346", level: str = "INFO"
) -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"({process} pid={os.getpid()}) {level} {stamp} [{where}] {text}", flush=True)


def _no_compiler() -> str:
    """The real words of a machine without a compiler."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from engine.kernels.native.build import BuildError, find_compiler

    os.environ["PATH"] = os.environ["CXX"] = ""
    try:
        return str(find_compiler())
    except BuildError as error:
        return str(error)


def _stop(*_: object) -> None:
    os.write(1, b"it was asked to stop\n")
    os._exit(0)


def _talk() -> None:
    for number in itertools.count(1):
        say(
            f"Engine 000: Avg prompt throughput: {number}.0 tokens/s, Avg generation throughput: "
            "2.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%, "
            "Prefix cache hit rate: 0.0%",
            where="loggers.py:257",
        )
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mode", default="good")
    mode, port = (lambda args: (args.mode, args.port))(parser.parse_args())
    signal.signal(signal.SIGTERM, _stop)
    if mode == "ignore-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("vLLM server version 0.30.0, serving model fake")
    say("Resolved architecture: LlamaForCausalLM", where="model.py:692")
    if mode == "slow-kernels":
        say(
            f"Native CPU kernels are not used: {_no_compiler()}.",
            where="selection.py:64",
            level="WARNING",
        )
    if os.environ.get("STOKER_API_KEY"):
        print("the key is", os.environ["STOKER_API_KEY"], flush=True)
    if mode == "grandchild":  # stays behind when its parent goes
        subprocess.Popen([sys.executable, "-c", SLEEPER])
    if mode == "stubborn-grandchild":
        child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()  # it ignores SIGTERM from here on
    if mode == "crash-at-start":
        print(f"(APIServer pid={os.getpid()}) Traceback (most recent call last):", flush=True)
        print(
            f"(APIServer pid={os.getpid()}) OSError: [Errno 98] Address already in use", flush=True
        )
        sys.exit(1)
    if mode == "talk":
        threading.Thread(target=_talk, daemon=True).start()
    if mode == "never-ready":
        time.sleep(600)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Health)
    say(f"Starting vLLM server on http://127.0.0.1:{port}", where="entry.py:139")
    server.serve_forever()


if __name__ == "__main__":
    main()
