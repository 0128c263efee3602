"""A small program in the place of an engine for `stoker selftest`: a server with one child.

Run by path; uses the standard library only; never gives its shared memory back. MODE says how it
behaves:

good | idle | busy | frozen    ready; no request, one that moves, one whose counters stand still
hung                           ready and without a request, but it answers only the first one
stubborn                       ready; it and its child ignore SIGTERM
runaway                        ready; a grandchild hides: no parent, a session of its own, an empty
                               environment (but for the selftest's variable); it ignores SIGTERM
hold:N | die:N                 stays, or ends, in part N (0 to 3) of its start
"""

from __future__ import annotations

import http.server
import itertools
import mmap
import os
import signal
import subprocess
import sys
import threading
import time

_PARTS = 4
# Like an EngineCore it ends when its parent has gone, unless it is stubborn.
_CHILD = """
import os, signal, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1] == "runaway" and os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    if os.fork():
        os._exit(0)
    wiped = {name: value for name, value in os.environ.items() if "SELFTEST" in name}
    words = ["-I", "-S", "-c", "print('up', flush=True); import time; time.sleep(3600)"]
    os.execve(sys.executable, [sys.executable, *words], wiped)
if sys.argv[1] != "runaway":
    print("up", flush=True)
parent = os.getppid()
while sys.argv[1] == "stubborn" or os.getppid() == parent:
    time.sleep(0.05)
"""


def main() -> None:
    """Run as `engine.py PORT MODE`."""
    port, (mode, _, part) = int(sys.argv[1]), sys.argv[2].partition(":")
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD, mode], env=os.environ, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    for number in range(_PARTS):
        print(f"part {number} of the start", flush=True)
        if part == str(number):
            _hold_or_die(mode)
    memory = _shared_memory(port)
    threading.Thread(target=_end_with, args=(child,), daemon=True).start()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _handler(mode))
    print(f"ready on port {port}", flush=True)
    server.serve_forever()
    memory.close()


def _shared_memory(port: int) -> mmap.mmap:
    """Left to whoever stops this program, as by a killed engine."""
    if not os.path.isdir("/dev/shm"):
        return mmap.mmap(-1, 4096)
    file = os.open(f"/dev/shm/stoker-selftest-{port}", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(file, 4096)
    memory = mmap.mmap(file, 4096)
    os.close(file)
    return memory


def _hold_or_die(mode: str) -> None:
    if mode == "die":
        sys.exit(1)
    print("holding", flush=True)
    time.sleep(600)


def _end_with(child: subprocess.Popen[bytes]) -> None:
    """A server without its core is of no use."""
    child.wait()
    os._exit(1)


def _handler(mode: str) -> type[http.server.BaseHTTPRequestHandler]:
    steps, questions = itertools.count(1), itertools.count(1)

    def body(path: str) -> str:
        if path != "/metrics":
            return ""
        step = next(steps) if mode == "busy" else 1
        labels = '{engine="0",model_name="selftest"}'
        return (
            f"vllm:num_requests_running{labels} {1 if mode in ('busy', 'frozen') else 0}\n"
            f"vllm:num_requests_waiting{labels} 0\n"
            f"vllm:generation_tokens_total{labels} {step}\n"
        )

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = body(self.path).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if mode == "hung" and next(questions) > 1:
                time.sleep(600)
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


if __name__ == "__main__":
    main()
