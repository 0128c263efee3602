"""How long earlier starts of a model took on this machine: the last few of each, in one file."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.machine.private_files import replace_file

_STARTS_KEPT = 5
_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds until ready, and of each part of the start."""

    total_s: float
    phases: dict[str, float] = field(default_factory=dict)


class StartHistory:
    """One file; a damaged one counts as empty. Of two writers at once, the last one is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def typical(self, engine: str, model: str) -> StartTimes | None:
        """The medians of the last starts; None for a model that was never started here."""
        starts = self._read().get(_key(engine, model), [])
        if not starts:
            return None
        names = dict.fromkeys(name for start in starts for name in start.phases)
        phases = {
            name: statistics.median(s.phases[name] for s in starts if name in s.phases)
            for name in names
        }
        return StartTimes(statistics.median(start.total_s for start in starts), phases)

    def add(self, engine: str, model: str, times: StartTimes) -> None:
        """Remember one more start; raises OSError where the file cannot be written."""
        starts = self._read()
        key = _key(engine, model)
        starts[key] = [*starts.get(key, []), times][-_STARTS_KEPT:]
        values = {
            key: [{"total_s": one.total_s, "phases": one.phases} for one in several]
            for key, several in starts.items()
        }
        document = {"schema_version": _SCHEMA_VERSION, "starts": values}
        replace_file(self._path, json.dumps(document).encode())

    def _read(self) -> dict[str, list[StartTimes]]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            return {key: [_times(one) for one in several] for key, several in _starts(document)}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}


def _key(engine: str, model: str) -> str:
    return f"{engine} {model}"


def _starts(document: Any) -> list[tuple[str, list[Any]]]:
    return list(document["starts"].items()) if document["schema_version"] == _SCHEMA_VERSION else []


def _times(value: Any) -> StartTimes:
    phases = {str(name): float(seconds) for name, seconds in value["phases"].items()}
    return StartTimes(float(value["total_s"]), phases)
