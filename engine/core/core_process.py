"""The EngineCore process as its parent holds it: a child that imports torch while the parent is
still busy with imports of its own. Knows nothing of messages; imports nothing but the standard
library.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading

from engine.core.handshake import CoreAddresses
from engine.machine.children import engine_command
from engine.machine.secrets import child_environment


class CoreProcess:
    """A running child and the addresses at which it looks for its parent."""

    def __init__(self, addresses: CoreAddresses, *, log_fd: int | None = None) -> None:
        """Start it. `log_fd` is where it writes its log; None is this process's stdout."""
        words = ["--handshake", addresses.handshake, "--parent", str(os.getpid())]
        self.addresses = addresses
        self._process = subprocess.Popen(
            engine_command("core", *words),
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while nobody has noticed its end."""
        return self._process.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens when it is gone."""
        self._process.send_signal(number)

    async def wait(self) -> int:
        """The exit code, once it has ended."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def deliver(code: int) -> None:
            if not ended.done():
                ended.set_result(code)

        def watch() -> None:
            code = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(deliver, code)

        threading.Thread(target=watch, daemon=True, name="core-exit").start()
        return await ended

    def discard(self) -> None:
        """End it at once, where no client did; may be called more than once."""
        self._process.kill()
        self._process.wait()
        self.addresses.remove()
