"""Runs in the child before the real program: asks the kernel to kill it when its parent dies.

Called as `python -I -S child_shim.py PARENT_PID COMMAND...`; imports nothing of Stoker. A shim,
since code between fork and exec is not safe in a process with threads.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set the death signal, look whether the parent died meanwhile, become COMMAND."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent:
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
