"""Runs in the child before the real program: asks the kernel for a signal when its parent dies.

Called as `python -I -S child_shim.py PARENT_PID SIGNAL N GUARD... COMMAND...`; imports nothing of
Stoker. A shim, since code between fork and exec is not safe in a process with threads. It also
makes the program the parent of its orphans, so that they are found below it, whatever they do to
hide, and starts the second guard, a script with its first words, where N, their number, is not 0.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MARK = "STOKER_SERVER_MARK"


def main() -> None:
    """Set both, look whether the parent died meanwhile, become COMMAND."""
    parent, death_signal, num_guard_words = (int(word) for word in sys.argv[1:4])
    guard, command = sys.argv[4 : 4 + num_guard_words], sys.argv[4 + num_guard_words :]
    if sys.platform == "linux":
        import ctypes

        if guard:
            _start_second_guard(guard)

        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() == parent:
        os.execv(command[0], command)


def _start_second_guard(guard: list[str]) -> None:
    """A child of a child that ends at once: in nobody's session, and adopted by process 1."""
    server, mark = os.getpid(), os.environ[_MARK]
    words = [*guard, str(server), f"{_MARK}={mark}"]
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in range(3):  # the server's output ends with the server
                os.dup2(nothing, number)
            os.execve(sys.executable, [sys.executable, "-I", "-S", *words], {})
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
