"""The memory ledger: of each successful start what the plan said and what the engine logged.

One JSON line a start in a private file of the state folder. Knows nothing of plans or logs.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from app.registry.json_records import known_fields
from engine.machine.locks import file_lock
from engine.machine.ownership import make_private
from engine.machine.private_files import replace_file

_MOST_BYTES = 256 << 10  # some hundred starts; then the older half goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Memory and capacity of one start; None where it is not known. `other`: all but these two."""

    weights_bytes: int | None = None
    kv_bytes: int | None = None
    other_bytes: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One start: what the model and its flags were, and what it took.

    `estimated_other_bytes` is what the plan would have said without earlier starts; on a CPU,
    `process_bytes` is what the processes took of the RAM beside weights and KV cache.
    """

    at: float  # seconds since 1970
    server: str
    engine: str
    engine_version: str | None
    model: str
    shape: str  # the same for every name of a model
    device: str
    tensor_parallel_size: int
    max_model_len: int | None
    predicted: Figures
    actual: Figures
    estimated_other_bytes: int | None = None
    process_bytes: int | None = None
    calibrated_by: int = 0  # earlier starts that `predicted` rests on
    log_path: str = ""
    model_path: str | None = None


class MemoryLedger:
    """The file; several processes may use it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, entry: LedgerEntry) -> None:
        """Append one line; OSError when that is not possible."""
        line = json.dumps(asdict(entry), ensure_ascii=False).encode() + b"\n"
        with self._locked():
            if self._path.exists() and self._path.stat().st_size > _MOST_BYTES:
                self._drop_older_half()
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                if file.seek(0, os.SEEK_END) > 0:
                    file.seek(-1, os.SEEK_END)
                    # What a killed writer left unfinished must not swallow this line.
                    line = line if file.read(1) == b"\n" else b"\n" + line
                file.write(line)

    def read(self) -> tuple[tuple[LedgerEntry, ...], int]:
        """All entries, the oldest first, and how many lines are damaged."""
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return (), 0
        entries = [_read(line) for line in lines if line.strip()]
        good = tuple(entry for entry in entries if entry is not None)
        return good, len(entries) - len(good)

    def _drop_older_half(self) -> None:
        lines = self._path.read_bytes().split(b"\n")
        replace_file(self._path, b"\n".join(lines[len(lines) // 2 :]))

    def _locked(self) -> AbstractContextManager[None]:
        make_private(self._path.parent)
        return file_lock(self._path.with_suffix(".lock"))  # the ledger is replaced now and then


def open_ledger() -> MemoryLedger:
    """The ledger of this user on this machine."""
    from app.paths import ledger_path

    return MemoryLedger(ledger_path())


def _read(line: bytes) -> LedgerEntry | None:
    """None for a damaged line; keys of a later version are passed over."""
    try:
        document = json.loads(line)
        for name in ("predicted", "actual"):
            document[name] = Figures(**known_fields(Figures, document[name]))
        return LedgerEntry(**known_fields(LedgerEntry, document))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
