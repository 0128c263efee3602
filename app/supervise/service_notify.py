"""systemd's notify protocol: readiness, status, watchdog and the end, as datagrams on its socket.

The protocol is six words on an AF_UNIX datagram socket (man sd_notify); the packages that speak it
are a C binding or years old, so it is spoken here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from dataclasses import dataclass

_SOCKET, _WATCHDOG, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """Who started us and wants to hear of it; without an address nobody does.

    `watchdog_s` is the silence after which it would end us, None where it does not watch.
    """

    address: str | None = None
    watchdog_s: float | None = None

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> ServiceManager:
        """Read what systemd has set, and take it out: children must not speak for us."""
        address = environ.pop(_SOCKET, None)
        watchdog = environ.pop(_WATCHDOG, "")
        pid = environ.pop(_WATCHDOG_PID, "")
        is_ours = pid in ("", str(os.getpid()))
        if not address or address[0] not in "/@":
            return cls()
        return cls(address, int(watchdog) / 1e6 if is_ours and watchdog.isdigit() else None)

    def ready(self) -> None:
        """READY=1: the server answers requests."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send("STATUS=" + " ".join(text.split()))

    def more_time(self, seconds: float) -> None:
        """The start or the stop goes on, and may take so much longer from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def alive(self) -> None:
        """The server moves; left out, the service manager ends it."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Settings are read again; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """STOPPING=1: whoever watches need not restart it."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self.address is None:
            return
        # `@` stands for the zero byte of an abstract address.
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with (
            contextlib.suppress(OSError),  # it is not ours to fail when nobody listens
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.sendto(message.encode(), name)
