"""A model of the Hugging Face hub, fetched into huggingface_hub's own cache.

Metadata, small files, token and the cache's layout are that library's. Its downloads begin anew in
a process that follows a killed one, so weights are fetched here, by its HTTP client, to where it
then finds them: from the byte at which they stopped, and checked by their hash.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CorruptModelError
from engine.machine.hub import hub_cache, is_hub_id
from engine.machine.locks import file_lock
from engine.model_store.disk_space import HUB_CACHE_ELSEWHERE, require_room
from engine.model_store.file_hashes import file_sha256
from engine.model_store.progress import OnProgress, StoreProgress

HUB_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.model", "tokenizer*", "*.txt")
"""What is downloaded. Never pickles, never code."""

HUB_IGNORED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.py", "*.gguf", "original/*", "onnx/*")

_AT_ONCE = 4
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository; `sha256` is None for those that are kept in git itself."""

    name: str
    size: int
    sha256: str | None
    blob: Path  # where the cache keeps its content

    @property
    def partial(self) -> Path:
        """What has come so far, of this process or of one that was killed."""
        return self.blob.with_name(f"{self.blob.name}.stoker.incomplete")

    @property
    def partial_bytes(self) -> int:
        """How much of it has come."""
        return self.partial.stat().st_size if self.partial.exists() else 0

    @property
    def missing_bytes(self) -> int:
        """What is still to come."""
        return 0 if self.blob.exists() else self.size - self.partial_bytes


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """What `main` of a repository holds now, of the files that were asked for."""

    repo_id: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def missing_bytes(self) -> int:
        """What a download would fetch."""
        return sum(file.missing_bytes for file in self.files)


def download_snapshot(repo_id: str, on_progress: OnProgress) -> str:
    """The folder with the files that this engine reads; raises what huggingface_hub raises.

    ModelStoreError when the disk has no room for them, CorruptModelError for bytes that do not have
    the hash that the hub tells.
    """
    from huggingface_hub import snapshot_download

    snapshot = find_snapshot(repo_id)
    if snapshot is not None:
        require_hub_room(snapshot)
        _fetch_weights(snapshot, on_progress)
    return snapshot_download(  # says itself why, where there was no answer
        repo_id,
        allow_patterns=list(HUB_PATTERNS),
        ignore_patterns=list(HUB_IGNORED),
        tqdm_class=_silent_bar(),
    )


def fetch_weights(repo_id: str, on_progress: OnProgress) -> None:
    """The large files alone, for a bar before the engine gets the rest.

    What the hub refuses, or a network breaks off, is told when the model is asked for, not here.
    ModelStoreError and CorruptModelError as in `download_snapshot`.
    """
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    snapshot = find_snapshot(repo_id)
    if snapshot is not None:
        require_hub_room(snapshot)
        with contextlib.suppress(HTTPError, OSError):
            _fetch_weights(snapshot, on_progress)


def find_snapshot(
    repo_id: str,
    *,
    allowed: Sequence[str] = HUB_PATTERNS,
    ignored: Sequence[str] = HUB_IGNORED,
    cache: Path | None = None,
) -> HubSnapshot | None:
    """What the hub tells of the repository; None where it cannot be asked or does not say."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HfHubHTTPError,
        HTTPError,
        OfflineModeIsEnabled,
    )
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

    try:
        info = HfApi().model_info(repo_id, files_metadata=True, timeout=_TIMEOUT_S)
    except (HfHubHTTPError, HTTPError, OfflineModeIsEnabled):
        return None
    entries = filter_repo_objects(
        info.siblings or [],
        allow_patterns=list(allowed),
        ignore_patterns=list(ignored),
        key=lambda entry: entry.rfilename,
    )
    folder = (cache or hub_cache(os.environ)) / f"models--{repo_id.replace('/', '--')}" / "blobs"
    files = tuple(file for entry in entries if (file := _hub_file(entry, folder)) is not None)
    return HubSnapshot(repo_id, info.sha, files) if info.sha else None


def require_room_for(repo_id: str, cache: Path | None = None) -> None:
    """For a server that fetches the model itself into `cache` (None: huggingface_hub's): its disk.

    Nothing is said where nobody can be asked.
    """
    is_there = importlib.util.find_spec("huggingface_hub") is not None
    if is_there and is_hub_id(repo_id) and (snapshot := find_snapshot(repo_id, cache=cache)):
        require_hub_room(snapshot)


def require_hub_room(snapshot: HubSnapshot) -> None:
    """ModelStoreError with both figures unless the cache's disk has room for what is missing."""
    if snapshot.files and snapshot.missing_bytes:
        folder = snapshot.files[0].blob.parents[2]
        require_room(snapshot.repo_id, snapshot.missing_bytes, folder, HUB_CACHE_ELSEWHERE)


def _hub_file(entry: Any, folder: Path) -> HubFile | None:
    sha256 = entry.lfs.sha256 if entry.lfs is not None else None
    identity = sha256 or entry.blob_id
    if entry.size is None or identity is None:  # a mirror that does not tell them
        return None
    return HubFile(entry.rfilename, entry.size, sha256, folder / identity)


def _fetch_weights(snapshot: HubSnapshot, on_progress: OnProgress) -> None:
    from huggingface_hub.constants import MAX_HTTP_DOWNLOAD_SIZE  # above, the library has its way

    missing = [
        file
        for file in snapshot.files
        if file.sha256 and not file.blob.exists() and file.size <= MAX_HTTP_DOWNLOAD_SIZE
    ]
    if not missing:
        return
    total = sum(file.size for file in missing)
    counter = _Counter(total - sum(file.missing_bytes for file in missing), total, on_progress)
    try:
        _at_once(lambda file: _fetch(snapshot, file, counter), missing)
    except BaseException:
        counter.stop()
        raise


def _at_once(fetch: Callable[[HubFile], None], files: Sequence[HubFile]) -> None:
    """Some at a time; the first error is raised, and an interrupt waits for no network.

    A pool of concurrent.futures would be waited for at the end of the process.
    """
    todo: queue.SimpleQueue[HubFile] = queue.SimpleQueue()
    done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for file in files:
        todo.put(file)

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                file = todo.get_nowait()
                try:
                    fetch(file)
                except BaseException as error:  # raised again by whoever waits
                    done.put(error)
                    return
                done.put(None)

    for _ in files[:_AT_ONCE]:
        threading.Thread(target=work, daemon=True).start()
    for _ in files:
        if (error := done.get()) is not None:
            raise error


def _fetch(snapshot: HubSnapshot, file: HubFile, counter: _Counter) -> None:
    """One file of weights into its blob; whoever else fetches it is waited for."""
    locks = file.blob.parents[2] / ".locks" / file.blob.parents[1].name
    for folder in (locks, file.blob.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with file_lock(locks / f"{file.blob.name}.stoker.lock"):
        if file.blob.exists():
            return
        _fetch_rest(snapshot, file, counter)
        if file_sha256(file.partial) != file.sha256:
            file.partial.unlink()
            raise CorruptModelError(
                f"{file.name} of {snapshot.repo_id} arrived damaged and was thrown away. Run the "
                "command again; what is complete is not fetched a second time."
            )
        file.partial.replace(file.blob)


def _fetch_rest(snapshot: HubSnapshot, file: HubFile, counter: _Counter) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    have = file.partial_bytes
    if have > file.size:
        file.partial.unlink()
        have = 0
    with file.partial.open("ab") as partial:
        http_get(
            hf_hub_url(snapshot.repo_id, file.name, revision=snapshot.commit),
            partial,
            resume_size=have,
            headers=build_hf_headers(),
            expected_size=file.size,
            tqdm_class=counter.bar,  # type: ignore[arg-type]  # it asks for no more than ours has
        )


def _silent_bar() -> Any:
    """For what is left to huggingface_hub: small files, whose bar would be no line of a log."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Silent(tqdm):  # type: ignore[misc]
        """A bar that is never drawn, also where a log is written."""

        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **{**options, "disable": True})

    return Silent


class _Counter:
    """Sums the bytes of downloads that run at once."""

    def __init__(self, done: int, total: int, on_progress: OnProgress) -> None:
        self._done, self._total, self._on_progress = done, total, on_progress
        self._lock = threading.Lock()
        self._is_stopped = False
        self.add(0)

    def add(self, count: int) -> None:
        """`count` is negative when a server sends a file from its beginning again.

        Raises ConnectionAbortedError in a download that nobody waits for any more.
        """
        with self._lock:
            if self._is_stopped:
                raise ConnectionAbortedError("another part of the download failed")
            self._done += count
            self._on_progress(StoreProgress("download", min(self._done, self._total), self._total))

    def stop(self) -> None:
        """Let what still runs end with its next bytes."""
        with self._lock:
            self._is_stopped = True

    def bar(self, **_: object) -> _Bar:
        """What huggingface_hub takes for the progress bar of one download."""
        return _Bar(self.add)


class _Bar:
    """As much of tqdm as a download calls."""

    def __init__(self, add: Callable[[int], None]) -> None:
        self._add = add

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is drawn here, so nothing has to be closed."""

    def update(self, count: float | None = 1) -> None:
        """`count` more bytes of this download have come."""
        self._add(int(count or 0))
