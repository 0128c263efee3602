"""Socket addresses and error names of one engine start, shared by both ends; opens no socket
itself.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine import errors
from engine.machine.ownership import temporary_base

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
        """Make a folder that only this user may enter (mkdtemp gives mode 0700).

        A killed process leaves it behind; the pid in its name tells a cleaner so.
        """
        prefix = f"stoker-{os.getpid()}-"
        folder = tempfile.mkdtemp(prefix=prefix, dir=temporary_base())
        if len(os.path.join(folder, "handshake")) > _MAX_SOCKET_PATH:
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix=prefix, dir="/tmp")
        return cls(Path(folder))

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
        for path in self.folder.glob("*"):
            path.unlink(missing_ok=True)
        if self.folder.is_dir():
            self.folder.rmdir()


def error_from_name(kind: str, message: str) -> errors.EngineError:
    """Rebuild an error of the engine's tree on the other side; else EngineError."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.EngineError):
        return known(message)
    return errors.EngineError(f"{kind}: {message}")
