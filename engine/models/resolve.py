"""Turns a folder, a GGUF file, a built-in name or a hub id into a checked local folder.

It holds safetensors. Looks only at headers and metadata; loading is the worker's. No torch, no
transformers.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from engine.env import models_dir
from engine.errors import (
    CorruptModelError,
    EngineError,
    GatedModelError,
    ModelError,
    ModelNotFoundError,
    ModelStoreError,
    OfflineError,
)
from engine.machine.hub import gated_steps, is_hub_id, offline_variable
from engine.model_files.checkpoint import checkpoint_files
from engine.model_store.disk_space import HUB_CACHE_ELSEWHERE
from engine.model_store.hub_download import HUB_IGNORED, HUB_PATTERNS, download_snapshot
from engine.model_store.progress import told_by_step, told_by_tenth
from engine.model_store.store import ModelStore
from engine.models.gguf_convert import CONVERTER_VERSION, convert_gguf

Download = Callable[[str, bool], str]
"""(hub id, local_files_only) -> folder; raises what huggingface_hub raises."""


def resolve_model(
    model: str,
    *,
    cache_dir: Path | None = None,
    on_progress: Callable[[str], None] | None = None,
    download: Download | None = None,
) -> Path:
    """The checked folder of `model`. Raises one of the ModelError family, each with what to do.

    `cache_dir` holds converted GGUF files (default: the user's cache). `on_progress` gets lines for
    the log. `download` replaces huggingface_hub's snapshot_download.
    """
    say = on_progress or _silent
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked(path.absolute())
    if path.is_file():
        return _from_file(path.absolute(), cache_dir or models_dir(), say)
    if (stored := _from_store(model, ModelStore(cache_dir), say)) is not None:
        return stored
    if not is_hub_id(model):
        raise ModelNotFoundError(
            f"{model} does not exist. Give a folder with config.json and safetensors files, a "
            ".gguf file, or a Hugging Face id such as HuggingFaceTB/SmolLM2-135M-Instruct."
        )
    return _from_hub(model, download or _downloader(model, say), say)


def converted_folder(source: Path, cache_dir: Path) -> Path:
    """Folder for the conversion of `source`; another one when the file or the converter changes."""
    stat = source.stat()
    identity = f"{source.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return cache_dir / f"{source.stem}-{key}-v{CONVERTER_VERSION}"


def _downloader(repo_id: str, say: Callable[[str], None]) -> Download:
    """The files that this engine reads, of the cache alone or of the hub."""

    def download(_: str, local_files_only: bool) -> str:
        if not local_files_only:
            return download_snapshot(repo_id, told_by_tenth(repo_id, say))
        from huggingface_hub import snapshot_download

        return snapshot_download(
            repo_id,
            allow_patterns=list(HUB_PATTERNS),
            ignore_patterns=list(HUB_IGNORED),
            local_files_only=True,
        )

    return download


def _from_file(path: Path, cache_dir: Path, say: Callable[[str], None]) -> Path:
    if path.suffix != ".gguf":
        hint = "give its folder" if path.suffix == ".safetensors" else "give a .gguf file"
        raise ModelError(f"{path} is a file of a kind that cannot be served alone; {hint}.")
    target = converted_folder(path, cache_dir)
    if not target.is_dir():
        say(f"Converting {path.name} to safetensors, once, into {target}")
        convert_gguf(path, target, _every_tenth(path.name, say))
    return _checked(target)


def _from_store(name: str, store: ModelStore, say: Callable[[str], None]) -> Path | None:
    """A model of Stoker's own cache, made first if it is built in; None for any other name."""
    if (builtin := store.builtin(name)) is not None:
        try:
            return _checked(store.ensure(builtin, told_by_step(name, say)))
        except EngineError as error:
            reason = f"Cannot get the model {name}: {_with_hint(error)}"
            raise ModelNotFoundError(reason) from error
    folder = store.folder(name)
    return None if folder is None else _checked(folder)


def _from_hub(repo_id: str, download: Download, say: Callable[[str], None]) -> Path:
    cached = _from_hub_cache(repo_id, download)
    if cached is not None:
        return cached
    say(f"Downloading {repo_id} from the Hugging Face hub")
    from huggingface_hub import errors

    try:
        return _checked(Path(download(repo_id, False)))
    except ModelStoreError as error:
        raise ModelStoreError(_with_hint(error)) from error
    except errors.GatedRepoError as error:
        raise GatedModelError(_gated_message(repo_id)) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"The Hugging Face hub has no model {repo_id} that you may see. Check the spelling; "
            "for a private model give a token that can read it: stoker models login, or HF_TOKEN."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise OfflineError(_offline_message(repo_id)) from error
    except (errors.HfHubHTTPError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        raise OfflineError(
            f"Downloading {repo_id} failed ({type(error).__name__}). Run the command again: files "
            "that are complete are not fetched a second time, others go on where they stopped."
        ) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise OfflineError(f"Downloading {repo_id} failed: {error}. Run again.") from error
        raise ModelStoreError(
            f"The disk became full while {repo_id} was downloaded; free some space, or "
            f"{HUB_CACHE_ELSEWHERE}."
        ) from error


def _from_hub_cache(repo_id: str, download: Download) -> Path | None:
    """The cached snapshot; None when there is none or an interrupted download cut it short."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return _checked(Path(download(repo_id, True)))
    except (LocalEntryNotFoundError, CorruptModelError, ModelNotFoundError):
        return None


def _checked(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        ggufs = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f" It holds {ggufs[0]}: give that file instead." if ggufs else ""
        raise ModelNotFoundError(f"{folder} holds no config.json; it is not a model folder.{hint}")
    checkpoint_files(folder)
    return folder


def _with_hint(error: EngineError) -> str:
    """In one text: the log of a server has no second line for it."""
    return f"{error}; {error.hint}" if error.hint else str(error)


def _gated_message(repo_id: str) -> str:
    return (
        f"{repo_id} is gated: its owners ask everyone to accept terms first. To get it, "
        f"{gated_steps(repo_id, os.environ)}."
    )


def _offline_message(repo_id: str) -> str:
    if (name := offline_variable(os.environ)) is not None:
        return (
            f"{repo_id} is not in the local cache, and {name} forbids downloading it. "
            f"Unset {name}, or copy the model here and give its folder."
        )
    return (
        f"{repo_id} is not in the local cache and the Hugging Face hub cannot be reached. Check "
        "the network (HTTPS_PROXY, HF_ENDPOINT), or copy the model here and give its folder."
    )


def _every_tenth(name: str, say: Callable[[str], None]) -> Callable[[int, int, str], None]:
    last = [-1]

    def on_progress(done: int, total: int, what: str) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth > last[0]:
            last[0] = tenth
            say(f"Converting {name}: {10 * tenth}% ({done}/{total} tensors)")

    return on_progress


def _silent(text: str) -> None:
    """Progress that nobody asked for."""
