"""Finds a model's folder through the engine (`resolve`) and describes what lies in it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import ExitCode, StokerError
from app.launch.launch_specs import require_model_name
from app.model_store.store import folder_bytes, list_hub_models
from app.supervise.child_process import engine_command
from engine.machine.secrets import HUB_SECRETS, child_environment
from engine.model_files.checkpoint import checkpoint_headers

if TYPE_CHECKING:
    from app.model_store.store import ModelStore


def resolve_model(model: str) -> Path:
    """Let the engine find or download MODEL; it talks on stderr, its last line is the folder."""
    done = subprocess.run(
        engine_command("resolve", model),
        env=child_environment(*HUB_SECRETS),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        # The engine has already said on stderr what is wrong with the model.
        code = ExitCode.USAGE if done.returncode == ExitCode.USAGE else ExitCode.NO
        raise StokerError(f"the model {model} cannot be used", exit_code=code)
    return Path(lines[-1])


def find_local_model(store: ModelStore, name: str) -> Path:
    """Folder of a model that is already here: built-in name, path, or id in the hub's cache."""
    ready = store.ready_path(name)
    if ready is not None:
        return ready
    if store.builtin(name) is not None:
        raise StokerError(f"{name} is not on this machine yet", hint=f"stoker models pull {name}")
    if Path(name).is_dir():
        return Path(name).absolute()
    for model in list_hub_models():
        if model.name == name and model.path is not None:
            return model.path
    require_model_name(name)
    raise StokerError(
        f"no model {name} on this machine",
        hint=f"`stoker models list` shows what is here; `stoker models pull {name}` gets it",
    )


def describe_model(store: ModelStore, name: str) -> dict[str, Any]:
    """Facts about a model, in the order in which they are shown."""
    from engine.errors import EngineError, ModelNotFoundError
    from engine.model_config import ModelConfig

    folder = find_local_model(store, name)
    try:
        config = ModelConfig.from_folder(folder, name)
        parameters = count_parameters(folder)
    except EngineError as error:
        is_none = isinstance(error, ModelNotFoundError)
        code = ExitCode.USAGE if is_none else ExitCode.NO
        raise StokerError(str(error).rstrip("."), exit_code=code) from error
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


def count_parameters(folder: Path) -> int | None:
    """Sum over the safetensors headers; None when there are no such files."""
    if not any(folder.glob("*.safetensors")):
        return None
    headers = checkpoint_headers(folder).values()
    return sum(entry.num_values for header in headers for entry in header.values())
