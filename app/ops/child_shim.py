"""Runs in the child before the real program: asks the kernel for a signal when its parent dies.

Called as `python -I -S child_shim.py PARENT_PID SIGNAL COMMAND...`; imports nothing of Stoker. A
shim, since code between fork and exec is not safe in a process with threads. It also makes the
program the parent of its orphans, so that they are found below it, whatever they do to hide.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Set both, look whether the parent died meanwhile, become COMMAND."""
    parent, death_signal, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() == parent:
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
