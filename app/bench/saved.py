"""A result that is written load by load, so that a run which was stopped can go on.

The file is a document of `stoker bench` at every moment; `is_complete` says whether it is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.bench.compare import SCHEMA, is_whole
from app.errors import StokerError, UsageError
from engine.machine.private_files import replace_file

# What must be as it was for a run to go on; the rest of the workload follows from it.
_NOT_COMPARED = ("seed",)


def saved_result(path: Path) -> dict[str, Any] | None:
    """The document in `path`, None where there is no file; UsageError for any other file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        _require_place(path)
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _not_ours(path, str(error)) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _not_ours(path, f"it is no {SCHEMA} document")
    if not is_whole(document) or not _can_go_on(document):
        raise _not_ours(path, "it was not written by --save")
    return document


def _can_go_on(document: Mapping[str, Any]) -> bool:
    """Whether what a run goes on from is there, beside what results are compared by."""
    ratios, notes, loads = (document.get(name) for name in ("ratios", "notes", "loads"))
    return (
        isinstance(document["workload"].get("seed"), int)
        and isinstance(ratios, list)
        and isinstance(notes, list)
        and isinstance(loads, list)
        and all(isinstance(load, list) and len(load) == 2 for load in loads)
    )


def _require_place(path: Path) -> None:
    """Raise UsageError before anything is measured where the file could not be written."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise _not_ours(path, "its folder is not there")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _not_ours(path, "this user may not make a file in its folder")


def require_same_work(path: Path, saved: Mapping[str, Any], workload: Mapping[str, Any]) -> None:
    """Raise UsageError where the run in `path` measured something else."""
    before = saved["workload"]
    for name, value in workload.items():
        if name not in _NOT_COMPARED and before.get(name) != value:
            raise UsageError(
                f"{path} holds another run: its {name} is {before.get(name)}, asked is {value}",
                hint="give the options that it began with, or another file to --save",
            )


def write_result(path: Path, document: Mapping[str, Any]) -> None:
    """Put the document in the place of the last one."""
    whole = {"schema": SCHEMA, "schema_version": 1, **document}
    replace_file(path, (json.dumps(whole, indent=2) + "\n").encode())


def _not_ours(path: Path, why: str) -> StokerError:
    return UsageError(
        f"--save {path}: {why}",
        hint="name a file that does not exist yet; nothing was changed",
    )
