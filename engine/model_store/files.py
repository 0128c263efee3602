"""What lies in a folder of a model, and which models lie in the cache of the hub.

Looked at, never changed. `ModelStore` makes models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.machine.hub import hub_cache
from engine.model_files.checkpoint import checkpoint_headers

READY = "ready"
DAMAGED = "damaged"
NOT_DOWNLOADED = "not downloaded"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One line of `stoker models list`. `path` is None while the model is not on this machine."""

    name: str
    source: str  # built-in, stoker cache or Hugging Face cache
    path: Path | None
    size_bytes: int | None
    state: str


def folder_state(folder: Path) -> str:
    """READY when the folder has a config and safetensors weights; a name is no proof by itself."""
    if not folder.is_dir():
        return NOT_DOWNLOADED
    weights = [path for path in folder.glob("*.safetensors") if path.stat().st_size > 0]
    return READY if weights and (folder / "config.json").is_file() else DAMAGED


def folder_bytes(folder: Path) -> int:
    """Size of all files below the folder; links count as what they point to."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def list_hub_models(environment: Mapping[str, str] | None = None) -> tuple[StoredModel, ...]:
    """Models in the Hugging Face cache, shared with other programs; looked at, never changed."""
    models = []
    for repo in sorted(hub_cache(environment or os.environ).glob("models--*--*")):
        name = "/".join(repo.name.split("--")[1:])
        snapshots = [path for path in repo.glob("snapshots/*") if path.is_dir()]
        ready = [path for path in snapshots if folder_state(path) == READY]
        path = (ready or snapshots or [repo])[-1]
        state = READY if ready else "incomplete"
        models.append(StoredModel(name, "Hugging Face cache", path, folder_bytes(path), state))
    return tuple(models)


def find_hub_model(name: str) -> Path | None:
    """Folder of a model of the hub that is complete on this machine; asks no network."""
    for model in list_hub_models():
        if model.name == name and model.state == READY:
            return model.path
    return None


def count_parameters(folder: Path) -> int | None:
    """Sum over the safetensors headers; None when there are no such files."""
    if not any(folder.glob("*.safetensors")):
        return None
    headers = checkpoint_headers(folder).values()
    return sum(entry.num_values for header in headers for entry in header.values())
