"""Ends a server when its supervisor and its guard have both been killed.

Called as `python -I -S second_guard.py SUPERVISOR GUARD SERVER MARK`, Linux only. The server's shim
starts it, before the server is there, as a process that belongs to nobody: neither the supervisor's
nor the server's end takes it along. It sleeps until one of them ends; a server that ends under a
living supervisor needs nobody here.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys

# The kernel tells of a death first to the children of who died: the server may be seen to end
# before the supervisor whose end it follows.
_DEATH_S = 5.0
_GUARD_S = 12.0  # what the guard may take for its work; one that stands still takes longer


def main() -> None:
    """Wait for the end of the server or of the supervisor, then for that of the guard."""
    supervisor, guard, server = (int(word) for word in sys.argv[1:4])
    ends = {pid: _open(pid) for pid in (supervisor, guard, server)}
    ended = _wait([ends[supervisor], ends[server]], None)
    if ends[supervisor] not in ended and _wait([ends[supervisor]], _DEATH_S * 1000) == []:
        return
    _wait([ends[guard]], _GUARD_S * 1000)
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from session_guard import end_server  # type: ignore[import-not-found]

    end_server(server, sys.argv[4].encode(), [])


def _open(pid: int) -> int:
    """A descriptor that is readable once the process has ended; at once for one that is gone."""
    with contextlib.suppress(ProcessLookupError):
        return os.pidfd_open(pid)
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _wait(descriptors: list[int], timeout_ms: float | None) -> list[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(timeout_ms)]


if __name__ == "__main__":
    main()
