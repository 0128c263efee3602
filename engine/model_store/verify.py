"""Compares every file of a model on this machine with the hash that it had when it came here.

The hub's cache names its files by their hashes, and our own cache writes them down: no network.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from engine.errors import CorruptModelError
from engine.machine.hub import hub_cache
from engine.model_files.checkpoint import checkpoint_files
from engine.model_store.file_hashes import NOTED, file_sha256, has_blob_name, noted_hashes
from engine.model_store.files import list_hub_models
from engine.model_store.store import ModelStore, find_local_model

WHOLE = "whole"
UNKNOWN = "unknown"
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """`damaged` and `missing` are names within the model; `unknown` are those without a hash."""

    name: str
    path: Path
    num_checked: int = 0
    damaged: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    fault: str | None = None  # what is wrong with the whole
    repair: str | None = None  # the command that does

    @property
    def state(self) -> str:
        """DAMAGED is certain; WHOLE means that every file has the hash that it had."""
        if self.damaged or self.missing or self.fault:
            return DAMAGED
        return WHOLE if self.num_checked and not self.unknown else UNKNOWN


def verify_model(store: ModelStore, name: str) -> Verification:
    """Reads every file of the model; a ModelError says that there is none on this machine."""
    folder = store.folder(name) or find_local_model(store, name)
    if hub_cache(os.environ) in folder.parents:
        return _verify_snapshot(name, folder)
    return _verify_folder(store, name, folder)


def names_on_this_machine(store: ModelStore) -> list[str]:
    """Every model that can be verified by its name: of our cache, then of the hub's."""
    own = [model.name for model in store.list_models() if model.path is not None]
    return own + [model.name for model in list_hub_models()]


def forget_damaged(found: Verification) -> None:
    """Take out of the hub's cache what is damaged, so that the model is asked for there again."""
    for name in found.damaged:
        path = found.path / name
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    # What `main` was: with it the snapshot would count as complete.
    (found.path.parents[1] / "refs" / "main").unlink(missing_ok=True)


def _verify_snapshot(name: str, folder: Path) -> Verification:
    """A file is a link to a blob that is called by its hash; a copy tells nothing."""
    damaged, missing, unknown = [], [], []
    num_checked = 0
    for path in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        inside = path.relative_to(folder).as_posix()
        if not path.exists():
            missing.append(inside)
            continue
        verdict = has_blob_name(path, path.resolve().name) if path.is_symlink() else None
        num_checked += verdict is not None
        if verdict is None:
            unknown.append(inside)
        elif not verdict:
            damaged.append(inside)
    fault = None if damaged or missing else _incomplete(folder)
    return Verification(
        name=name,
        path=folder,
        num_checked=num_checked,
        damaged=tuple(damaged),
        missing=tuple(missing),
        unknown=tuple(unknown),
        fault=fault,
        repair=f"stoker models pull --repair {name}" if damaged or missing or fault else None,
    )


def _verify_folder(store: ModelStore, name: str, folder: Path) -> Verification:
    hashes = noted_hashes(folder)
    repair = _repair_of(store, name, folder)
    if hashes is None:
        names = tuple(sorted(path.name for path in folder.iterdir() if path.is_file()))
        fault = _incomplete(folder)
        return Verification(
            name=name, path=folder, unknown=names, fault=fault, repair=repair if fault else None
        )
    missing = tuple(one for one in sorted(hashes) if not (folder / one).is_file())
    present = [one for one in sorted(hashes) if one not in missing]
    damaged = tuple(one for one in present if file_sha256(folder / one) != hashes[one])
    others = {path.name for path in folder.iterdir() if path.is_file()} - {*hashes, NOTED}
    return Verification(
        name=name,
        path=folder,
        num_checked=len(present),
        damaged=damaged,
        missing=missing,
        unknown=tuple(sorted(others)),
        repair=repair if damaged or missing else None,
    )


def _repair_of(store: ModelStore, name: str, folder: Path) -> str | None:
    """What gets a model of our cache again; None for a folder that the user keeps."""
    if store.builtin(name) is not None:
        return f"stoker models pull --repair {name}"
    if store.folder(folder.name) == folder:  # serving the GGUF file converts it again
        return f"stoker models rm {folder.name}"
    return None


def _incomplete(folder: Path) -> str | None:
    """What a look at names and headers alone finds."""
    try:
        checkpoint_files(folder)
    except CorruptModelError as error:
        return str(error)
    return None
