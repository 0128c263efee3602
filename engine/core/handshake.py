"""Socket addresses and error names of one engine start, shared by both ends; opens no socket
itself.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine import errors
from engine.machine.ownership import temporary_base

if TYPE_CHECKING:
    from engine.messages import CoreLinks

# sun_path holds 108 bytes on Linux and 104 on macOS.
_MAX_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class CoreAddresses:
    """Three fresh ipc sockets in a private folder.

    The folder is new at every start, so an old EngineCore whose parent was killed can never be
    spoken to by mistake.
    """

    folder: Path

    @classmethod
    def create(cls) -> CoreAddresses:
        """In a private folder that is made for this start."""
        return cls(socket_folder("handshake"))

    @property
    def handshake(self) -> str:
        """Address of the start-up conversation, which goes both ways."""
        return f"ipc://{self.folder}/handshake"

    @property
    def input(self) -> str:
        """Address at which EngineCore gets requests."""
        return f"ipc://{self.folder}/input"

    @property
    def output(self) -> str:
        """Address at which EngineCore's outputs arrive."""
        return f"ipc://{self.folder}/output"

    def remove(self) -> None:
        """Delete the sockets and the folder; what is gone already is no error."""
        remove_folder(self.folder)


@dataclass(frozen=True, slots=True)
class SharedAddresses:
    """Sockets of a server with several API servers, in a private folder of its own.

    A process that is started again takes over the addresses of the one before. The folder also
    holds what the processes count together (prometheus_client's files).
    """

    folder: Path

    @classmethod
    def create(cls) -> SharedAddresses:
        """In a private folder that is made for this start."""
        return cls(socket_folder("control-1000-1000"))

    def requests(self, server: int, engine: int) -> str:
        """Address at which an engine gets the requests of one API server."""
        return f"ipc://{self.folder}/in-{server}-{engine}"

    def outputs(self, server: int) -> str:
        """Address at which the outputs for one API server arrive, of all engines."""
        return f"ipc://{self.folder}/out-{server}"

    @property
    def stats(self) -> str:
        """Address at which the DPCoordinator gets the engines' statistics."""
        return f"ipc://{self.folder}/stats"

    @property
    def reports(self) -> str:
        """Address at which the DPCoordinator learns what the API servers sent to whom."""
        return f"ipc://{self.folder}/reports"

    @property
    def queues(self) -> str:
        """Address at which the DPCoordinator publishes both."""
        return f"ipc://{self.folder}/queues"

    def control(self, child: int, attempt: int) -> str:
        """Address at which the process that started a child speaks with it."""
        return f"ipc://{self.folder}/control-{child}-{attempt}"

    def http(self, server: int) -> str:
        """Socket file at which one API server answers the others."""
        return str(self.folder / f"http-{server}")

    def links(self, num_servers: int, engine: int) -> CoreLinks:
        """Where one engine finds the API servers and the coordinator."""
        from engine.messages import CoreLinks  # not before the processes are started

        clients = ((self.requests(n, engine), self.outputs(n)) for n in range(num_servers))
        return CoreLinks(tuple(clients), self.stats)

    def remove(self) -> None:
        """Delete all that is in the folder, and the folder; what is gone already is no error."""
        remove_folder(self.folder)


def socket_folder(longest_name: str) -> Path:
    """Make a folder that only this user may enter (mkdtemp gives mode 0700).

    A killed process leaves it behind; the pid in its name tells a cleaner so.
    """
    prefix = f"stoker-{os.getpid()}-"
    folder = tempfile.mkdtemp(prefix=prefix, dir=temporary_base())
    if len(os.path.join(folder, longest_name)) > _MAX_SOCKET_PATH:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix=prefix, dir="/tmp")
    return Path(folder)


def remove_folder(folder: Path) -> None:
    """Delete a folder and the files in it; what is gone already is no error."""
    for path in folder.glob("*"):
        path.unlink(missing_ok=True)
    if folder.is_dir():
        folder.rmdir()


def error_from_name(kind: str, message: str) -> errors.EngineError:
    """Rebuild an error of the engine's tree on the other side; else EngineError."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.EngineError):
        return known(message)
    return errors.EngineError(f"{kind}: {message}")
