"""From a checked request to its LaunchSpec: program found, flags translated, model got.

Everything that can be refused is refused here, before a process exists; cheap checks come first.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from app.errors import ExitCode, StokerError, UsageError
from app.launch.engine_programs import require_engine_extra
from app.launch.engines import LLAMA_CPP, STOKER, VLLM
from app.launch.launch_specs import LaunchSpec, ServeRequest, check_fits_model, stoker_spec
from app.launch.llama_spec import (
    find_llama_server,
    llama_flags,
    llama_spec,
    require_llama_model,
    require_llama_room,
)
from app.launch.vllm_parsers import fill_in_parsers
from app.launch.vllm_spec import (
    download_dir,
    find_vllm,
    packages_beside,
    require_vllm_model,
    require_vllm_uds,
    vllm_flags,
    vllm_spec,
)
from engine.machine.ports import bind_error, describe_holder, is_uds_served
from engine.model_store.files import find_hub_model
from engine.model_store.hub_download import require_room_for
from engine.model_store.progress import OnProgress
from engine.model_store.store import ModelStore

_LONGEST_UDS = 107
OpenStore = Callable[[], ModelStore]
"""Makes the folder of the models, so it is called when all cheap checks are through."""


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where the user says that the engine is; None is for us to find out."""

    python: str | None = None
    binary: str | None = None


def launch_spec(
    request: ServeRequest,
    place: EnginePlace,
    api_key: str | None,
    open_store: OpenStore,
    on_progress: OnProgress,
) -> LaunchSpec:
    """What starts `request`; StokerError says what is missing or not possible."""
    _require_used(request.engine, place)
    if request.engine == VLLM:
        return _vllm(request, place, api_key, open_store, on_progress)
    if request.engine == LLAMA_CPP:
        return _llama_cpp(request, place, api_key, open_store, on_progress)
    return _stoker(request, api_key, open_store, on_progress)


def _stoker(
    request: ServeRequest, api_key: str | None, open_store: OpenStore, on_progress: OnProgress
) -> LaunchSpec:
    require_engine_extra()
    _require_free_place(request)
    path = _folder(request, open_store(), on_progress)
    if path.is_dir():
        check_fits_model(request, path)
    return stoker_spec(request, _local_or_id(request, path), api_key)


def _vllm(
    request: ServeRequest,
    place: EnginePlace,
    api_key: str | None,
    open_store: OpenStore,
    on_progress: OnProgress,
) -> LaunchSpec:
    program = find_vllm(place.python)
    vllm_flags(request)
    if request.uds:
        require_vllm_uds(program)
    _require_free_place(request)
    store = open_store()
    if store.builtin(request.model) and store.ready_path(request.model) is None:
        require_engine_extra()  # it converts the model once
    path = _folder(request, store, on_progress)
    require_vllm_model(path)
    here = path if path.is_dir() else find_hub_model(request.model)
    if here is None and not path.exists():
        require_room_for(request.model, download_dir(request.engine_words))
    filled = fill_in_parsers(request, here, packages_beside(program))
    spec = vllm_spec(filled.request, program, _local_or_id(request, path), api_key)
    return replace(spec, notes=filled.notes)


def _llama_cpp(
    request: ServeRequest,
    place: EnginePlace,
    api_key: str | None,
    open_store: OpenStore,
    on_progress: OnProgress,
) -> LaunchSpec:
    program = find_llama_server(place.binary, place.python)
    llama_flags(request)
    _require_free_place(request)
    store = open_store()
    builtin = store.builtin(request.model)
    path = Path(request.model).expanduser()
    if builtin is not None:
        path = store.ensure_gguf(builtin, on_progress)
    require_llama_model(path)
    if not path.exists():
        require_llama_room(request.model)
    return llama_spec(request, program, _local_or_id(request, path), api_key)


def _folder(request: ServeRequest, store: ModelStore, on_progress: OnProgress) -> Path:
    builtin = store.builtin(request.model)
    if builtin is not None:
        return store.ensure(builtin, on_progress)
    return Path(request.model).expanduser()


def _local_or_id(request: ServeRequest, path: Path) -> str:
    return str(path.absolute()) if path.exists() else request.model


def _require_used(engine: str, place: EnginePlace) -> None:
    """An option that would do nothing is a misunderstanding."""
    if place.python is not None and engine == STOKER:
        raise _unused("--engine-python", engine)
    if place.binary is not None and engine != LLAMA_CPP:
        raise _unused("--engine-binary", engine)


def _unused(option: str, engine: str) -> StokerError:
    hint = {
        STOKER: "choose the engine too: --engine vllm or --engine llama.cpp",
        VLLM: "name the Python that has vLLM: --engine-python ENVIRONMENT/bin/python",
    }[engine]
    return UsageError(f"{option} says nothing to --engine {engine}", hint=hint)


def _require_free_place(request: ServeRequest) -> None:
    if request.args.is_headless:  # it listens nowhere
        return
    if request.uds:
        require_free_uds(request.uds)
    else:
        require_free_port(request.args.host, request.args.port)


def require_free_uds(path: str) -> None:
    """StokerError for a socket file that somebody listens on, or that cannot be made."""
    if (length := len(os.fsencode(path))) > _LONGEST_UDS:
        raise UsageError(
            f"--uds {path} has {length} bytes, and the kernel takes {_LONGEST_UDS}",
            hint="$XDG_RUNTIME_DIR is a short place",
        )
    file = Path(path)
    folder = shlex.quote(str(file.parent))
    if not file.parent.is_dir():
        raise UsageError(f"--uds {path}: its folder is not there", hint=f"mkdir -p -m 700 {folder}")
    if os.path.lexists(file) and not file.is_socket():
        raise UsageError(f"--uds {path} is there and no socket", hint="name a new file")
    if is_uds_served(path):
        raise StokerError(
            f"--uds {path} is in use by a server that answers",
            hint="name another file, or end that server",
            exit_code=ExitCode.ENGINE_FAILED_TO_START,
        )
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"--uds {path}: this user may not make a file in {folder}",
            hint="name one in a folder of yours, e.g. in $XDG_RUNTIME_DIR",
        )


def require_free_port(host: str, port: int) -> None:
    """Raise StokerError naming who holds the port, or why it cannot be used at all."""
    problem = bind_error(host, port)
    if problem is None:
        return
    if problem == errno.EADDRINUSE:
        raise _in_use(port)
    if problem == errno.EACCES:
        raise StokerError(
            f"this user may not listen on port {port}",
            hint="use a port from 1024 on",
            exit_code=ExitCode.ENGINE_FAILED_TO_START,
        )
    raise UsageError(
        f"this machine has no address {host} to listen on",
        hint="--host 127.0.0.1 (this machine only) or --host 0.0.0.0 (open to the network)",
    )


def _in_use(port: int) -> StokerError:
    """A server of ours is named, and can be stopped by that name."""
    from app.registry.server_registry import open_registry

    another = f"--port {port + 1 if port < 65535 else port - 1}"
    ours = [one for one in open_registry().running() if one.port == port]
    if ours:
        name = ours[0].name
        what = f"port {port} is in use by the Stoker server {name}, {ours[0].model}"
        hint = f"use another one: {another}, or end it: stoker stop {name}"
    else:
        what = f"port {port} is in use{_by(describe_holder(port))}"
        hint = f"use another one: {another}"
    return StokerError(what, hint=hint, exit_code=ExitCode.ENGINE_FAILED_TO_START)


def _by(holder: str) -> str:
    return f" by {holder}" if holder else ""
