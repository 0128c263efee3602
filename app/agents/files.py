"""Settings written into a project: all of them or none, and nothing of the user's is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.agents.settings import WRITTEN, SettingsFile
from app.errors import UsageError
from engine.machine.private_files import replace_file


def write_settings(project: Path, files: Sequence[SettingsFile]) -> list[Path]:
    """The paths that were written; UsageError before the first, where one cannot be."""
    planned = [(_target(project, file), file) for file in files]
    contents = [(path, file.content(_before(path, file))) for path, file in planned]
    for path, content in contents:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content.encode())
    return [path for path, _ in contents]


def _target(project: Path, file: SettingsFile) -> Path:
    """Links are followed: the file behind one is changed, the link stays."""
    if not project.is_dir():
        raise UsageError(f"--project {project} is no folder", hint="name the project's folder")
    path = (project / file.path).resolve()
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="move it away")
    return path


def _before(path: Path, file: SettingsFile) -> dict[str, Any] | None:
    """The JSON object that is there; UsageError for a file that is not ours to write."""
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    if file.values is None:
        if text.strip() and not text.startswith(WRITTEN):
            raise UsageError(
                f"{path} is there, and not written by Stoker",
                hint="add what `stoker connect` prints without --write, or move the file away",
            )
        return None
    try:
        document = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise UsageError(
            f"{path} is no JSON, so nothing can be added to it: {error}",
            hint="add what `stoker connect` prints without --write (comments are no JSON)",
        ) from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no JSON object", hint="move it away")
    return document
